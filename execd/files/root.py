"""Where a path leads below a root, decided so that the answer cannot be changed afterwards.

Theory. The daemon opens files on behalf of peers, in a tree that user code rewrites at will and at any moment. Any rule
of the form "look at the path, then open the path" loses that race (the python-runtime's realpath-then-open does), so
here a path is never handed to the kernel whole. ``Root.resolve`` walks it: every name is opened O_PATH|O_NOFOLLOW below
the descriptor of the directory before it, judged by fstat of that very descriptor, and the caller gets descriptors,
not a path. What happens to the names later does not matter.

* Symlinks are read as text and walked by the same loop, absolute ones from "/". The kernel never follows one for us.
  So magic links (/proc/<pid>/root, /proc/self/fd/N) cannot carry a walk into another mount namespace, where a bind
  mount can give any file any name. This is why the walk does not open the whole path and then compare readlink of
  /proc/self/fd/N with the root: the string of a foreign mount may say anything, and " (deleted)" ends that of a removed
  file as well as of one that is called so. openat2(RESOLVE_BENEATH) would do much of this in one call; gVisor has none.
* Inside is what was reached from the root's own directory, known by (st_dev, st_ino): ``_trail`` holds the identities
  of the directories walked, ``_inside`` the place of the root among them. A walk may leave and come back
  ("../app/x", an absolute link into the root); only where it ends counts.
* ".." is the kernel's, checked against the trail: if the parent is not the directory we came from, user code has moved
  a directory under us. Then, as whenever a name changes kind between two calls, the walk starts again; after ``TRIES``
  rounds the caller is told so (Conflict).
* Below a name that does not exist, or that is no directory, names are only counted: "missing/../x" is x, as for
  realpath(3) without strict, which the python-runtime's clients see.
* procfs, sysfs and the state dir are refused wherever the walk meets them, at the end or on the way, also if they lie
  inside the root. The one procfs path in use is our own /proc/self/fd/N, to reopen a descriptor for reading.

A directory that is moved out of the root while a walk stands in it stays reachable for that one operation. Who can move
it could have copied it; no file that was outside before becomes readable.

The base dir is found by name for every operation, since it may be a symlink, or be removed and made again at any time.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from execd.errors import Conflict, ExecdError, NotFound
from execd.files.paths import blame, denied, encode, readings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# path_resolution(7) follows as many. A bound on links bounds the work one request can ask for.
MAX_LINKS = 40

# A walk starts again only when user code changed the path in the microseconds between two calls. Against a process that
# does nothing else, ten rounds were the most that any of 20,000 operations took.
TRIES = 32

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

Identity = tuple[int, int]
"""(st_dev, st_ino): what a file is, whatever it is called."""


class Moved(Exception):
    """The tree changed between two calls of one walk. Never leaves this package: the operation starts again."""


def _identity(info: os.stat_result) -> Identity:
    return info.st_dev, info.st_ino


def _names(path: bytes) -> list[bytes]:
    """The components of ``path`` in the order of a stack: the first is the last."""
    return [name for name in reversed(path.split(b"/")) if name not in (b"", b".")]


def _open(path: bytes | str, flags: int, directory: int | None = None) -> tuple[int, os.stat_result]:
    fd = os.open(path, flags, dir_fd=directory)
    try:
        return fd, os.fstat(fd)
    except BaseException:
        os.close(fd)
        raise


class Forbidden(NamedTuple):
    """What no walk may touch, by what it is and not by what it is called."""

    devices: frozenset[int]
    """st_dev of procfs and sysfs: their files act on the daemon, or show its secrets to a peer."""
    state_dir: Identity | None


class Landing:
    """Where a path leads: descriptors, owned by this object, and what of the path does not exist.

    * a directory: ``directory`` is it, ``names`` is empty;
    * anything else: ``names`` is its one name in ``directory``, ``leaf`` and ``leaf_stat`` describe it;
    * nothing: ``names`` are those that ``directory`` would have to get; the first of them may be a ``leaf`` in the way.

    The descriptors are O_PATH: good for fstat and as a starting point, not for reading.
    """

    def __init__(self, directory: int, info: os.stat_result, forbidden: Forbidden) -> None:
        self.directory = directory
        self.directory_stat = info
        self.leaf = -1
        self.leaf_stat: os.stat_result | None = None
        self.names: list[bytes] = []
        self._trail = [_identity(info)]
        self._inside: int | None = 0  # the index in _trail of the root
        self._root_identity = _identity(info)
        self._forbidden = forbidden

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._drop_leaf()
        if self.directory >= 0:
            os.close(self.directory)
            self.directory = -1

    @property
    def exists(self) -> bool:
        return not self.names or (self.leaf >= 0 and len(self.names) == 1)

    @property
    def stat(self) -> os.stat_result | None:
        """What is there; ``None`` if nothing is."""
        if not self.names:
            return self.directory_stat
        return self.leaf_stat if self.exists else None

    def below(self, name: bytes) -> Landing:
        """Where ``name`` in this directory leads, from a walk of its own. Raises as ``Root.resolve`` does."""
        other = Landing(os.dup(self.directory), self.directory_stat, self._forbidden)
        other._trail = self._trail.copy()
        other._inside = self._inside
        other._root_identity = self._root_identity
        try:
            other.walk(name)
        except BaseException:
            other.close()
            raise
        return other

    def walk(self, path: bytes) -> None:
        """Go on along ``path``. Raises Moved, OSError, PermissionDenied when it ends outside, NotFound for a link loop.

        After an error only ``close`` is allowed.
        """
        todo = _names(path)
        if path.startswith(b"/"):
            self._go_to_slash()
        n_links = 0
        while todo:
            name = todo.pop()
            if name == b"..":
                self._up()
            elif self.names:
                self.names.append(name)
            elif (target := self._down(name)) is not None:
                n_links += 1
                if n_links > MAX_LINKS:
                    if self._inside is None:
                        raise denied()
                    raise NotFound(f"too many levels of symbolic links: more than {MAX_LINKS}")
                todo += _names(target)
                if target.startswith(b"/"):
                    self._go_to_slash()
        if self._inside is None:
            raise denied()

    def make_directories(self) -> None:
        """Make all but the last of ``names``, and move there. Raises Moved, OSError."""
        assert self.exists or self.leaf < 0, "a leaf in the way is for the caller to refuse"
        while len(self.names) > 1:
            name = self.names.pop(0)
            try:
                os.mkdir(name, 0o777, dir_fd=self.directory)  # less the umask
            except FileExistsError:
                pass  # made by someone else since the walk: whatever it is, the next lines judge it
            except FileNotFoundError:
                raise Moved from None  # the directory we stand in was removed
            try:
                fd, info = _open(name, _STEP | os.O_DIRECTORY, self.directory)
            except (FileNotFoundError, NotADirectoryError):
                raise Moved from None
            self._enter(fd, info)

    def _down(self, name: bytes) -> bytes | None:
        """One name further; the target's text if it is a symlink, which is not entered."""
        try:
            fd, info = _open(name, _STEP, self.directory)
        except FileNotFoundError:
            self.names.append(name)
            return None
        except OSError:
            # Out there even "too long" or "no permission" would tell something of what is there.
            if self._inside is None:
                raise denied() from None
            raise
        if stat.S_ISDIR(info.st_mode):
            self._enter(fd, info)
        elif stat.S_ISLNK(info.st_mode):
            os.close(fd)
            try:
                # By name again: the text of any link is safe to walk, and a name that is no link any more says so.
                return os.readlink(name, dir_fd=self.directory)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINVAL):
                    raise Moved from None
                raise
        else:
            self.leaf, self.leaf_stat = fd, info
            self.names.append(name)
            self._refuse(info)
        return None

    def _up(self) -> None:
        if self.names:
            self.names.pop()
            if not self.names:
                self._drop_leaf()
            return
        try:
            fd, info = _open(b"..", _STEP | os.O_DIRECTORY, self.directory)
        except OSError:
            if self._inside is None:
                raise denied() from None
            raise
        self._trail.pop()
        if self._inside == len(self._trail):
            self._inside = None
        expected = self._trail.pop() if self._trail else None
        self._enter(fd, info, expected)

    def _go_to_slash(self) -> None:
        assert not self.names
        fd, info = _open(b"/", _STEP | os.O_DIRECTORY)
        self._trail.clear()
        self._inside = None
        self._enter(fd, info)

    def _enter(self, fd: int, info: os.stat_result, expected: Identity | None = None) -> None:
        """Make ``fd`` the current directory. It is ours from the first line on, also when this raises."""
        os.close(self.directory)
        self.directory, self.directory_stat = fd, info
        identity = _identity(info)
        if expected is not None and identity != expected:
            raise Moved
        if self._inside is None and identity == self._root_identity:
            self._inside = len(self._trail)
        self._trail.append(identity)
        self._refuse(info)

    def _refuse(self, info: os.stat_result) -> None:
        if info.st_dev in self._forbidden.devices or _identity(info) == self._forbidden.state_dir:
            raise denied()

    def _drop_leaf(self) -> None:
        if self.leaf >= 0:
            os.close(self.leaf)
            self.leaf, self.leaf_stat = -1, None


class Root:
    """A directory that paths are confined to, and what is refused even inside it. Holds no descriptor, has no end.

    Safe to use from any number of threads.
    """

    def __init__(self, base_dir: str, state_dir: str | None = None) -> None:
        self.base_dir = os.path.abspath(base_dir)
        self._state_dir = state_dir
        self._devices = frozenset(os.stat(path).st_dev for path in ("/proc", "/sys") if os.path.exists(path))

    def resolve(self, path: str) -> Landing:
        """Where ``path`` leads. Raises Moved, OSError and what ``Landing.walk`` and ``encode`` raise."""
        preferred, *others = readings(encode(path), self._base_names())
        landing = self._walk(preferred)
        for other in others:
            if landing.exists:
                break
            try:
                candidate = self._walk(other)
            except (ExecdError, OSError):
                continue  # a reading that cannot even be walked is not what was meant
            except BaseException:
                landing.close()
                raise
            if candidate.exists:
                landing.close()
                return candidate
            candidate.close()
        return landing

    def ensure(self) -> None:
        """Make the base dir if it is gone, at the end of its links if it is one. Raises Moved, Conflict, ..."""
        try:
            os.makedirs(os.path.realpath(self.base_dir), exist_ok=True)
        except FileNotFoundError:
            raise Moved from None  # a parent of it was removed in between
        except (FileExistsError, NotADirectoryError):
            raise Conflict(f"base dir {self.base_dir!r} is not a directory") from None
        except OSError as error:
            raise blame(error, f"base dir {self.base_dir!r} cannot be made again") from error

    def _base_names(self) -> Iterator[bytes]:
        yield os.fsencode(self.base_dir)
        # What pwd prints to a command that runs in it. Looked up only when the first does not match.
        yield os.path.realpath(os.fsencode(self.base_dir))

    def _walk(self, path: bytes) -> Landing:
        forbidden = Forbidden(self._devices, self._state_identity())
        landing = Landing(*self._open_base(), forbidden)
        try:
            landing.walk(path)
        except BaseException:
            landing.close()
            raise
        return landing

    def _open_base(self) -> tuple[int, os.stat_result]:
        for _ in range(2):
            try:
                return _open(self.base_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                self.ensure()
            except NotADirectoryError:
                raise Conflict(f"base dir {self.base_dir!r} is not a directory") from None
            except OSError as error:
                raise blame(error, f"base dir {self.base_dir!r}") from error
        raise Moved

    def _state_identity(self) -> Identity | None:
        if self._state_dir is None:
            return None
        try:
            return _identity(os.stat(self._state_dir))
        except OSError:
            return None  # not made yet, or gone: nothing to protect


T = TypeVar("T")


def settle(operation: Callable[[], T], path: str) -> T:
    """Run ``operation`` until the tree holds still for it, and turn what the kernel says into our own errors.

    Raises Conflict after ``TRIES`` rounds, and any ExecdError.
    """
    for _ in range(TRIES):
        try:
            return operation()
        except Moved:
            continue
        except OSError as error:
            raise blame(error, repr(path)) from error
    raise Conflict(f"{path!r} kept changing while it was being opened")


def reopen(fd: int, flags: int) -> int:
    """A descriptor for the same file as the O_PATH one ``fd``, good for I/O; the caller closes both. Raises OSError.

    O_NONBLOCK in ``flags`` even for what fstat called regular: nothing this package opens may ever wait for a peer.
    """
    return os.open(f"/proc/self/fd/{fd}", flags | os.O_NONBLOCK | os.O_CLOEXEC)
