"""Resolve a path below a root so that user code cannot change the answer afterwards.

Theory. The daemon opens files on behalf of peers, in a tree that user code rewrites at any moment.
A rule of the form "check the path, then open the path" loses that race: user code swaps a directory
for a link between the two calls (the python-runtime's realpath-then-open loses this way). So the
kernel never gets a whole path here. ``ResolvedPath.walk`` opens each name with O_PATH|O_NOFOLLOW
below the descriptor of the directory before, judges the entry by fstat of that descriptor, and
returns descriptors instead of a path. Later changes to names do not matter.

* Symlinks are read as text and walked by the same loop, absolute links from "/". The kernel never
  follows a link for the daemon. So a magic link (/proc/<pid>/root, /proc/self/fd/N) cannot carry a
  walk into another mount namespace, where a bind mount can give any file any name. The same danger
  rules out opening the whole path and comparing readlink of /proc/self/fd/N with the root: the
  string of a foreign mount can be anything, and " (deleted)" ends the string of a removed file as
  well as of a file with that name. openat2(RESOLVE_BENEATH) would do much of the work in a single
  call; gVisor has no openat2.
* Inside means reached from the root's own directory, identified by (st_dev, st_ino). ``_trail``
  holds the directories walked, open, and ``_root_index`` is the place of the root in the trail. A
  walk may leave and come back ("../app/x", an absolute link into the root); only the end of the
  walk counts.
* ".." means the previous directory in the trail, by descriptor, not the kernel's "..". A directory
  may be moved during the walk. And in gVisor (20240729) opening ".." of a directory whose parent
  was removed too ends the whole sandbox ("Incrementing non-positive count"); an ``rm -rf`` beside a
  walk is common. The walk opens the kernel's ".." only above the start.
* If a name changes kind between two calls, the walk starts again. After ``TRIES`` rounds the caller
  gets an error (``root.retry_on_change``).
* Below a name that does not exist, or is not a directory, names are only counted: "missing/../x" is
  x, as for realpath(3) without strict. Clients of the python-runtime see this rule.
* procfs, sysfs, similar file systems (``syscalls``) and the state dir are refused wherever the walk
  meets them, at the end or on the way, also inside the root. The only procfs path in use is the
  daemon's own /proc/self/fd/N, to reopen a descriptor.
* A root may be the whole tree ("/", ``Root.whole_tree``). Then nothing is outside, and the refused
  directories are the only border.
* The daemon's own directories (``open_own_directory``) are walked by the same loop. A root daemon
  follows there only links of root, since user code cannot make a link of root. A directory made by
  root must still belong to root when root opens the directory: otherwise user code has replaced the
  directory between mkdir and open.

A directory moved out of the root during a walk stays reachable for that single operation. A process
that can move the directory could have copied the content; no file that was outside before becomes
readable.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, NamedTuple, Self

from execd.errors import ExecdError, InvalidArgument, NotFound, PermissionDenied
from execd.files.paths import denied
from execd.files.syscalls import is_kernel_interface

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The same bound as in path_resolution(7). The bound limits the work of a request.
MAX_LINKS = 40

# Directories in the trail of a walk, with a descriptor each. A path has at most half of PATH_MAX
# names, and the base dir as many. But each link may add as many again, and without a bound a single
# walk could hold all descriptors of the process.
MAX_DEPTH = 4096

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

Identity = tuple[int, int]
"""(st_dev, st_ino): identifies a file under any name."""


class TreeChanged(Exception):
    """The tree changed between two calls of a walk. Never leaves this package: the operation starts
    again."""


def identity(info: os.stat_result) -> Identity:
    return info.st_dev, info.st_ino


def _names(path: bytes) -> list[bytes]:
    """Return the components of ``path`` as a stack: the first component is the last item."""
    return [name for name in reversed(path.split(b"/")) if name not in (b"", b".")]


@contextlib.contextmanager
def undoing(undo: Callable[..., object], *of: object) -> Iterator[None]:
    """Call ``undo`` if the block raises: the block gives what ``undo`` ends to somebody else."""
    try:
        yield
    except BaseException:
        undo(*of)
        raise


@contextlib.contextmanager
def held(fd: int) -> Iterator[int]:
    """Close the descriptor at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def open_and_stat(
    path: bytes | str, flags: int, directory: int | None = None
) -> tuple[int, os.stat_result]:
    """Open ``path`` and fstat the descriptor. Raises OSError."""
    fd = os.open(path, flags, dir_fd=directory)
    try:
        return fd, os.fstat(fd)
    except BaseException:
        os.close(fd)
        raise


class Forbidden(NamedTuple):
    """Files that a walk may not touch, identified by device and inode rather than by name."""

    devices: frozenset[int]
    """st_dev of /proc and /sys: the files there act on the daemon, or show secrets of the daemon to
    a peer. Further mounts of the same type are recognised by statfs, where a walk enters a new
    device."""
    own: frozenset[Identity]
    """The daemon's own directories: the state dir, and the tree that the next warden runs from."""
    foreign: bool = False
    """Links, and directories in the place of new directories, that do not belong to root."""

    def includes(self, fd: int, info: os.stat_result, from_device: int) -> bool:
        """Whether the file is forbidden, in a walk that comes from a directory of ``from_device``.

        The type of a file system is checked only where the walk enters a new device.
        """
        if info.st_dev in self.devices or identity(info) in self.own:
            return True
        return info.st_dev != from_device and is_kernel_interface(fd)


class _TrailEntry(NamedTuple):
    """A directory in the trail."""

    fd: int
    info: os.stat_result
    name: bytes
    """The name under which the walk entered."""


class ResolvedPath:
    """The end of a path: descriptors, and the names of the path that do not exist.

    * A directory: ``directory`` is the descriptor, ``names`` is empty.
    * Any other file: ``names`` holds a single name in ``directory``; ``leaf`` and ``leaf_stat``
      describe the file.
    * Nothing: ``names`` holds the missing names below ``directory``; the first name may be a
      ``leaf`` in the way.

    Owns the descriptors. The descriptors are O_PATH: good for fstat and as a starting point, not
    for reading.
    """

    def __init__(self, directory: int, info: os.stat_result, forbidden: Forbidden) -> None:
        self.leaf = -1
        self.leaf_stat: os.stat_result | None = None
        self.names: list[bytes] = []
        self._trail = [_TrailEntry(directory, info, b"")]
        self._n_borrowed = 0  # the first descriptors in _trail that belong to another walk
        self._root_index: int | None = 0  # the index in _trail of the root
        self._root_identity = identity(info)
        self.forbidden = forbidden

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        self._drop_leaf()
        while self._trail:
            self._drop_last_directory()

    @property
    def directory(self) -> int:
        return self._trail[-1].fd

    @property
    def directory_stat(self) -> os.stat_result:
        """The stat from when the walk entered the directory."""
        return self._trail[-1].info

    @property
    def exists(self) -> bool:
        return not self.names or (self.leaf >= 0 and len(self.names) == 1)

    @property
    def stat(self) -> os.stat_result | None:
        """The stat of the end of the path; None if nothing exists there."""
        if not self.names:
            return self.directory_stat
        return self.leaf_stat if self.exists else None

    @property
    def place(self) -> bytes:
        """The resolved path below the root, as bytes. For people to read: names may have changed
        since."""
        assert self._root_index is not None
        return b"/".join([entry.name for entry in self._trail[self._root_index + 1 :]] + self.names)

    def below(self, name: bytes) -> ResolvedPath:
        """Walk ``name`` in this directory, and return a new result, to be closed before this
        result.

        Raises the errors of ``Root.resolve``.
        """
        other = ResolvedPath(self.directory, self.directory_stat, self.forbidden)
        other._trail = self._trail.copy()
        other._n_borrowed = len(self._trail)
        other._root_index = self._root_index
        other._root_identity = self._root_identity
        with undoing(other.close):
            other.walk(name)
        return other

    def walk(self, path: bytes, *, follow: bool = True) -> None:
        """Walk on along ``path``.

        Without ``follow`` a link at the end of the path is not followed: the link is the leaf.
        Raises TreeChanged, OSError, PermissionDenied for an end outside, NotFound for a link loop.
        After an error only ``close`` is allowed.
        """
        names_to_walk = _names(path)
        if path.startswith(b"/"):
            self._go_to_slash()
        n_links = 0
        while names_to_walk:
            name = names_to_walk.pop()
            if name == b"..":
                self._walk_up()
            elif self.names:
                self.names.append(name)
            elif (
                target := self._walk_down(name, is_followed=follow or bool(names_to_walk))
            ) is not None:
                n_links += 1
                if n_links > MAX_LINKS:
                    if self._root_index is None:
                        raise denied()
                    raise NotFound(f"too many levels of symbolic links: more than {MAX_LINKS}")
                names_to_walk += _names(target)
                if target.startswith(b"/"):
                    self._go_to_slash()
        if self._root_index is None:
            raise denied()

    def parent(self) -> tuple[int, bytes]:
        """Return the descriptor of a directory's parent, which stays this object's, and the
        directory's name.

        Raises PermissionDenied for the root.
        """
        assert not self.names
        if self.is_root:
            raise PermissionDenied("the root itself cannot be moved or removed")
        return self._trail[-2].fd, self._trail[-1].name

    def open_above(self) -> int:
        """Open the parent of ``directory``; the caller closes the descriptor. Raises TreeChanged,
        OSError."""
        if len(self._trail) > 1:
            return os.dup(self._trail[-2].fd)
        # At the start of a walk only the kernel's ".." is left (see the theory), and a small race
        # with it.
        if os.stat(b"..", dir_fd=self.directory).st_nlink == 0:
            raise TreeChanged
        return os.open(b"..", _STEP | os.O_DIRECTORY, dir_fd=self.directory)

    @property
    def is_root(self) -> bool:
        return not self.names and self._root_index == len(self._trail) - 1

    def is_in_or_below(self, directory: os.stat_result) -> bool:
        """Whether the walk ended in, or below, that directory."""
        return any(identity(entry.info) == identity(directory) for entry in self._trail)

    def make_directories(self, n_left: int = 1, mode: int = 0o777) -> None:
        """Make all but the last ``n_left`` of ``names``, and enter the new directories. Raises
        TreeChanged, OSError."""
        assert self.exists or self.leaf < 0, "a leaf in the way is for the caller to refuse"
        while len(self.names) > n_left:
            name = self.names.pop(0)
            try:
                os.mkdir(name, mode, dir_fd=self.directory)  # less the umask
            except FileExistsError:
                pass  # made since the walk; the next lines check the kind
            except FileNotFoundError:
                raise TreeChanged from None  # the current directory was removed
            try:
                fd, info = open_and_stat(name, _STEP | os.O_DIRECTORY, self.directory)
            except (FileNotFoundError, NotADirectoryError):
                raise TreeChanged from None
            self._enter(fd, info, name)
            if self.forbidden.foreign and info.st_uid != 0:
                raise PermissionError(errno.EACCES, "somebody took the name of a new directory")

    def _walk_down(self, name: bytes, *, is_followed: bool) -> bytes | None:
        """Walk a single name. Return the text of a symlink, which is not entered, else None."""
        assert not self.names
        try:
            fd, info = open_and_stat(name, _STEP, self.directory)
        except FileNotFoundError:
            self.names.append(name)
            return None
        except OSError:
            # Outside, even "too long" or "no permission" would reveal something to the peer.
            if self._root_index is None:
                raise denied() from None
            raise
        if stat.S_ISDIR(info.st_mode):
            self._enter(fd, info, name)
        elif stat.S_ISLNK(info.st_mode) and is_followed:
            try:
                if self.forbidden.foreign and info.st_uid != 0:
                    raise PermissionError(
                        errno.EACCES, f"a link that belongs to uid {info.st_uid}", name
                    )
                return os.readlink(b"", dir_fd=fd)
            finally:
                os.close(fd)
        else:
            self.leaf, self.leaf_stat = fd, info
            self.names.append(name)
            self._refuse_forbidden(fd, info, self.directory_stat.st_dev)
        return None

    def _walk_up(self) -> None:
        if self.names:
            self.names.pop()
            if not self.names:
                self._drop_leaf()
            return
        if len(self._trail) > 1:
            self._drop_last_directory()
            if self._root_index == len(self._trail):
                self._root_index = None
            return
        self._root_index = None
        try:
            fd = self.open_above()
        except OSError:
            raise denied() from None
        self._replace_trail(fd, os.fstat(fd))

    def _go_to_slash(self) -> None:
        assert not self.names
        self._root_index = None
        self._replace_trail(*open_and_stat(b"/", _STEP | os.O_DIRECTORY))

    def _replace_trail(self, fd: int, info: os.stat_result) -> None:
        device = self.directory_stat.st_dev
        while self._trail:
            self._drop_last_directory()
        self._enter(fd, info, b"", device)

    def _enter(
        self, fd: int, info: os.stat_result, name: bytes, from_device: int | None = None
    ) -> None:
        """Make ``fd`` the current directory. This object owns ``fd`` from the first line on, also
        after an error."""
        assert fd >= 0
        device = self.directory_stat.st_dev if from_device is None else from_device
        if self._root_index is None and identity(info) == self._root_identity:
            self._root_index = len(self._trail)
        self._trail.append(_TrailEntry(fd, info, name))
        self._refuse_forbidden(fd, info, device)
        if len(self._trail) > MAX_DEPTH:
            raise (
                denied()
                if self._root_index is None
                else InvalidArgument(f"the path leads through more than {MAX_DEPTH} directories")
            )

    def _drop_last_directory(self) -> None:
        assert self._n_borrowed <= len(self._trail)
        entry = self._trail.pop()
        if len(self._trail) < self._n_borrowed:
            self._n_borrowed = len(self._trail)
        else:
            os.close(entry.fd)

    def _refuse_forbidden(self, fd: int, info: os.stat_result, from_device: int) -> None:
        """Raises PermissionDenied."""
        if self.forbidden.includes(fd, info, from_device):
            raise denied()

    def _drop_leaf(self) -> None:
        if self.leaf >= 0:
            os.close(self.leaf)
            self.leaf, self.leaf_stat = -1, None


def open_own_directory(path: str, mode: int) -> int:
    """Open a directory of the daemon at the absolute ``path`` (O_PATH), made with ``mode`` if
    missing.

    Missing parents get mode 0755. Raises OSError with the path at fault.
    """
    forbidden = Forbidden(frozenset(), frozenset(), foreign=os.geteuid() == 0)
    with ResolvedPath(*open_and_stat(b"/", _STEP | os.O_DIRECTORY), forbidden) as found:
        try:
            found.walk(os.fsencode(path))
            if found.leaf >= 0:
                raise NotADirectoryError(
                    errno.ENOTDIR, os.strerror(errno.ENOTDIR), found.names.pop(0)
                )
            found.make_directories(mode=0o755)
            found.make_directories(n_left=0, mode=mode)
            return os.dup(found.directory)
        except (ExecdError, TreeChanged) as error:
            reason = str(error) or "the path changed meanwhile"
            raise PermissionError(errno.EACCES, reason, path) from None
        except OSError as error:
            found.names.clear()
            place = os.path.join(b"/", found.place, error.filename or b"")
            error.filename = os.fsdecode(place).rstrip("/")
            raise


def reopen(fd: int, flags: int) -> int:
    """Open the file of the O_PATH descriptor ``fd`` for I/O; the caller closes both. Raises
    OSError.

    O_NONBLOCK is set even for a regular file: nothing opened here may wait for a peer, and the file
    may be a FIFO by now.
    """
    return os.open(f"/proc/self/fd/{fd}", flags | os.O_NONBLOCK | os.O_CLOEXEC)


def open_directory(name: bytes, parent: int) -> int:
    """Open the directory ``name`` below ``parent`` for listing, never through a link. Raises
    OSError.

    Two steps, because gVisor (20240729) follows a link for O_DIRECTORY with O_NOFOLLOW, unless
    O_PATH is set too.
    """
    fd = os.open(name, _STEP | os.O_DIRECTORY, dir_fd=parent)
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(fd)


def go_down(fd: int, name: bytes) -> int:
    """Open the directory ``name`` below the directory ``fd``, and close ``fd``. Raises OSError, and
    leaves ``fd`` open then."""
    below = open_directory(name, fd)
    os.close(fd)
    return below
