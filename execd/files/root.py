"""The root that confines paths: a base dir, or the whole tree as user code sees the tree.

The base dir is opened by name for every operation, since the base dir may be a symlink, or be
removed and made again at any time. ``resolve`` explains the walk below the base dir.
"""

from __future__ import annotations

import contextlib
import os
import stat
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from execd import own_tree
from execd.errors import Conflict, ExecdError, InvalidArgument, NotFound
from execd.files.paths import absolute_readings, blame, encode, readings
from execd.files.resolve import (
    Forbidden,
    Identity,
    ResolvedPath,
    TreeChanged,
    identity,
    open_and_stat,
    undoing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from execd.files.paths import Readings

# A walk starts again only if user code changed the path in the microseconds between two calls.
# Against a process that only swaps names, ten rounds were the most in 20,000 operations.
TRIES = 32

KERNEL_MOUNTS = ("/proc", "/sys")


class Room(Protocol):
    """The room of a directory whose size the engine limits (``engine.disk``). The kernel has no
    such limit, so each writer takes the room for its bytes first. Safe for any number of threads.
    """

    def take(self, n_bytes: int) -> None:
        """Count bytes that are about to be written. Raises NoSpace if there is no room."""


class Rooms(Protocol):
    """The guarded directories."""

    def of(self, fd: int) -> Room | None:
        """Return the room of the guarded directory that holds the file or directory ``fd``."""


class Root:
    """A directory that confines paths, and the files refused even inside.

    Holds no descriptor and needs no close. Safe for any number of threads.
    """

    def __init__(
        self, base_dir: str, state_dir: str | None = None, readings: Readings = readings
    ) -> None:
        self.base_dir = os.path.abspath(base_dir)
        self.own_dirs = tuple(path for path in (state_dir, own_tree.root()) if path)
        """Directories of the daemon. Commands have their own view of them, and the threads of file
        operations have the daemon's: here every walk refuses them."""
        self.rooms: Rooms | None = None
        """The directories whose room is limited."""
        self._top = self.base_dir
        self._readings = readings
        # Without a mount of its own such a folder is on the device of the image's files.
        self._devices = frozenset(
            os.stat(path).st_dev for path in KERNEL_MOUNTS if os.path.ismount(path)
        )

    @classmethod
    def whole_tree(cls, base_dir: str, state_dir: str | None = None) -> Root:
        """Make a root where paths mean the same as for user code: absolute, or relative to the base
        dir. No path is outside."""
        root = cls(base_dir, state_dir, absolute_readings)
        root._top = "/"
        return root

    @property
    def is_base_dir_only(self) -> bool:
        """Whether the root is the base dir; False for the whole tree."""
        return self._top == self.base_dir

    def room_of(self, fd: int) -> Room | None:
        """Return what limits the room for writing to the file, or in the directory, ``fd``."""
        return None if self.rooms is None else self.rooms.of(fd)

    def resolve(self, path: str, *, follow: bool = True) -> ResolvedPath:
        """Walk ``path`` and return the result; without ``follow`` a link in the last place is not
        followed.

        Raises TreeChanged, OSError and the errors of ``ResolvedPath.walk`` and ``encode``.
        """
        preferred, *others = self._readings(encode(path), self._base_names())
        if (
            not self.is_base_dir_only
            and not path.startswith("/")
            and not os.path.isdir(self.base_dir)
        ):
            self.ensure()
        resolved = self._walk(preferred, follow)
        for other in others:
            if resolved.exists:
                break
            try:
                candidate = self._walk(other, follow)
            except (ExecdError, OSError):
                continue  # a meaning that cannot be walked is not the intended meaning
            except BaseException:
                resolved.close()
                raise
            if candidate.exists:
                resolved.close()
                return candidate
            candidate.close()
        return resolved

    def ensure(self) -> None:
        """Make the base dir if missing, at the end of links if the base dir is a link.

        Raises TreeChanged, Conflict, and any error that ``blame`` returns.
        """
        try:
            os.makedirs(os.path.realpath(self.base_dir), exist_ok=True)
        except FileNotFoundError:
            raise TreeChanged from None  # a parent was removed in between
        except (FileExistsError, NotADirectoryError):
            raise Conflict(
                f"base dir {self.base_dir!r} is not a directory; make a directory of it"
            ) from None
        except OSError as error:
            raise blame(error, f"base dir {self.base_dir!r} cannot be made again") from error

    def forbidden(self) -> Forbidden:
        """Return the files that no walk below the root may touch, as they are now."""
        return Forbidden(self._devices, frozenset(self._own_identities()))

    def _base_names(self) -> Iterator[bytes]:
        yield os.fsencode(self.base_dir)
        # The output of pwd in the base dir. Looked up only if the first name does not match.
        yield os.path.realpath(os.fsencode(self.base_dir))

    def _walk(self, path: bytes, follow: bool) -> ResolvedPath:
        resolved = ResolvedPath(*self._open_base(), self.forbidden())
        with undoing(resolved.close):
            resolved.walk(path, follow=follow)
        return resolved

    def _open_base(self) -> tuple[int, os.stat_result]:
        for _ in range(2):
            try:
                return open_and_stat(self._top, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                self.ensure()
            except NotADirectoryError:
                raise Conflict(
                    f"base dir {self.base_dir!r} is not a directory; make a directory of it"
                ) from None
            except OSError as error:
                raise blame(error, f"base dir {self.base_dir!r}") from error
        raise TreeChanged

    def _own_identities(self) -> Iterator[Identity]:
        for path in self.own_dirs:
            with contextlib.suppress(OSError):  # not made yet, or gone: there is nothing to protect
                yield identity(os.stat(path))


def existing(resolved: ResolvedPath, path: str) -> os.stat_result:
    """Return the stat of the end of a walk. Raises NotFound."""
    if resolved.stat is None:
        raise NotFound(f"{path!r}: no such file or directory")
    return resolved.stat


def refuse_unless_file(resolved: ResolvedPath, path: str) -> None:
    """Raises InvalidArgument where neither a regular file is nor a new file can be made."""
    if not resolved.names:
        raise InvalidArgument(f"{path!r} is a directory")
    if resolved.leaf_stat is not None:
        if len(resolved.names) > 1:
            raise InvalidArgument(f"{path!r}: parent is not a directory")
        if not stat.S_ISREG(resolved.leaf_stat.st_mode):
            raise InvalidArgument(f"{path!r} is not a regular file")


T = TypeVar("T")
P = ParamSpec("P")


def retrying(
    operation: Callable[Concatenate[Root, str, P], T],
) -> Callable[Concatenate[Root, str, P], T]:
    """Let a function of a root and a path run again while the tree changes, as
    ``retry_on_change``."""

    @wraps(operation)
    def run(root: Root, path: str, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return retry_on_change(lambda: operation(root, path, *args, **kwargs), path)

    return run


def retry_on_change(operation: Callable[[], T], path: str) -> T:
    """Run ``operation`` again while the tree changes, and translate OSError into ExecdError.

    Raises Conflict after ``TRIES`` rounds, and any ExecdError.
    """
    for _ in range(TRIES):
        try:
            return operation()
        except TreeChanged:
            continue
        except OSError as error:
            raise blame(error, repr(path)) from error
    raise Conflict(f"{path!r} kept changing while it was being opened; repeat the request")
