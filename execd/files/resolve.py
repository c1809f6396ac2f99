"""Where a path leads below a root, decided so that the answer cannot be changed afterwards.

Theory. The daemon opens files on behalf of peers, in a tree that user code rewrites at will and at
any moment. Any rule of the form "look at the path, then open the path" loses that race (the
python-runtime's realpath-then-open does), so here a path is never handed to the kernel whole.
``ResolvedPath.walk`` goes along it: every name is opened O_PATH|O_NOFOLLOW below the descriptor of
the directory before it, judged by fstat of that very descriptor, and the caller gets descriptors,
not a path. What happens to the names later does not matter.

* Symlinks are read as text and walked by the same loop, absolute ones from "/". The kernel never
  follows one for us. So magic links (/proc/<pid>/root, /proc/self/fd/N) cannot carry a walk into
  another mount namespace, where a bind mount can give any file any name. This is why the walk does
  not open the whole path and then compare readlink of /proc/self/fd/N with the root: the string of
  a foreign mount may say anything, and " (deleted)" ends that of a removed file as well as of one
  that is called so. openat2(RESOLVE_BENEATH) would do much of this in one call; gVisor has none.
* Inside is what was reached from the root's own directory, known by (st_dev, st_ino): ``_trail``
  holds the directories walked, open, and ``_inside`` the place of the root among them. A walk may
  leave and come back ("../app/x", an absolute link into the root); only where it ends counts.
* ".." is the directory we came from, by its descriptor. Not the kernel's "..": a directory may be
  moved under us, and in gVisor (20240729) opening ".." of a directory whose parent was removed too
  ends the whole sandbox ("Incrementing non-positive count"). An ``rm -rf`` beside a walk is no rare
  thing. Only above the start of a walk is it asked.
* Whenever a name changes kind between two calls, the walk starts again; after ``TRIES``
  rounds the caller is told so (``root.retry_on_change``).
* Below a name that does not exist, or that is no directory, names are only counted: "missing/../x"
  is x, as for realpath(3) without strict, which the python-runtime's clients see.
* procfs, sysfs, their like (``kernel``) and the state dir are refused wherever the walk meets them,
  at the end or on the way, also if they lie inside the root. The one procfs path in use is our own
  /proc/self/fd/N, to reopen a descriptor.
* A root may be the whole tree ("/", ``Root.whole_tree``): then nothing is outside, and what is
  refused is the only border.

A directory that is moved out of the root while a walk stands in it stays reachable for that one
operation. Who can move it could have copied it; no file that was outside before becomes readable.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple, Self

from execd.errors import InvalidArgument, NotFound, PermissionDenied
from execd.files.paths import denied
from execd.files.syscalls import is_kernel_interface

# path_resolution(7) follows as many. A bound on links bounds the work one request can ask for.
MAX_LINKS = 40

# Directories that one walk may be in, each of which is a descriptor. A path has half of PATH_MAX at
# the most, the base dir's own names as many; but each link may add as many again, and one walk
# could hold all descriptors that the process may have.
MAX_DEPTH = 4096

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

Identity = tuple[int, int]
"""(st_dev, st_ino): what a file is, whatever it is called."""


class TreeChanged(Exception):
    """The tree changed between two calls of one walk. Never leaves this package: the operation
    starts again."""


def identity(info: os.stat_result) -> Identity:
    return info.st_dev, info.st_ino


def _names(path: bytes) -> list[bytes]:
    """The components of ``path`` in the order of a stack: the first is the last."""
    return [name for name in reversed(path.split(b"/")) if name not in (b"", b".")]


def open_and_stat(
    path: bytes | str, flags: int, directory: int | None = None
) -> tuple[int, os.stat_result]:
    """Raises OSError."""
    fd = os.open(path, flags, dir_fd=directory)
    try:
        return fd, os.fstat(fd)
    except BaseException:
        os.close(fd)
        raise


class Forbidden(NamedTuple):
    """What no walk may touch, by what it is and not by what it is called."""

    devices: frozenset[int]
    """st_dev of /proc and /sys: their files act on the daemon, or show its secrets to a peer. Other
    mounts of the same kind are known by their type, which is asked where a walk comes to another
    device."""
    state_dir: Identity | None


class _Stop(NamedTuple):
    """A directory on the way."""

    fd: int
    info: os.stat_result
    name: bytes
    """By which it was entered."""


class ResolvedPath:
    """Where a path leads: descriptors, owned by this object, and what of the path does not exist.

    * a directory: ``directory`` is it, ``names`` is empty;
    * anything else: ``names`` is its one name in ``directory``, ``leaf`` and ``leaf_stat`` describe
      it;
    * nothing: ``names`` are those that ``directory`` would have to get; the first of them may be a
      ``leaf`` in the way.

    The descriptors are O_PATH: good for fstat and as a starting point, not for reading.
    """

    def __init__(self, directory: int, info: os.stat_result, forbidden: Forbidden) -> None:
        self.leaf = -1
        self.leaf_stat: os.stat_result | None = None
        self.names: list[bytes] = []
        self._trail = [_Stop(directory, info, b"")]
        self._n_borrowed = 0  # of these, at its beginning, the descriptors are another's
        self._inside: int | None = 0  # the index in _trail of the root
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
            self._drop_stop()

    @property
    def directory(self) -> int:
        return self._trail[-1].fd

    @property
    def directory_stat(self) -> os.stat_result:
        """As it was entered."""
        return self._trail[-1].info

    @property
    def exists(self) -> bool:
        return not self.names or (self.leaf >= 0 and len(self.names) == 1)

    @property
    def stat(self) -> os.stat_result | None:
        """What is there; ``None`` if nothing is."""
        if not self.names:
            return self.directory_stat
        return self.leaf_stat if self.exists else None

    @property
    def place(self) -> bytes:
        """Where this is, links resolved, as names below the root. For people to read: names may
        have changed since."""
        assert self._inside is not None
        return b"/".join([stop.name for stop in self._trail[self._inside + 1 :]] + self.names)

    def below(self, name: bytes) -> ResolvedPath:
        """Where ``name`` in this directory leads, from a walk of its own, to be closed before this
        one. Raises as ``Root.resolve``."""
        other = ResolvedPath(self.directory, self.directory_stat, self.forbidden)
        other._trail = self._trail.copy()
        other._n_borrowed = len(self._trail)
        other._inside = self._inside
        other._root_identity = self._root_identity
        try:
            other.walk(name)
        except BaseException:
            other.close()
            raise
        return other

    def walk(self, path: bytes, *, follow: bool = True) -> None:
        """Go on along ``path``. Raises TreeChanged, OSError, PermissionDenied when it ends outside,
        NotFound for a link loop.

        Without ``follow`` a link that the path ends in is not followed: it is the leaf. After an
        error only ``close`` is allowed.
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
            elif (target := self._down(name, is_followed=follow or bool(todo))) is not None:
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

    def parent(self) -> tuple[int, bytes]:
        """For a directory: the descriptor of the one it lies in, which stays this object's, and its
        name there.

        Raises PermissionDenied for the root itself.
        """
        assert not self.names
        if self.is_root:
            raise PermissionDenied("the root itself cannot be moved or removed")
        return self._trail[-2].fd, self._trail[-1].name

    def open_above(self) -> int:
        """A descriptor, the caller's, of the directory that ``directory`` lies in. Raises
        TreeChanged, OSError."""
        if len(self._trail) > 1:
            return os.dup(self._trail[-2].fd)
        # See the theory; what is left of that race is the start of a walk.
        if os.stat(b"..", dir_fd=self.directory).st_nlink == 0:
            raise TreeChanged
        return os.open(b"..", _STEP | os.O_DIRECTORY, dir_fd=self.directory)

    @property
    def is_root(self) -> bool:
        return not self.names and self._inside == len(self._trail) - 1

    def passes(self, directory: os.stat_result) -> bool:
        """Whether the walk ended in, or below, that directory."""
        return any(identity(stop.info) == identity(directory) for stop in self._trail)

    def make_directories(self) -> None:
        """Make all but the last of ``names``, and move there. Raises TreeChanged, OSError."""
        assert self.exists or self.leaf < 0, "a leaf in the way is for the caller to refuse"
        while len(self.names) > 1:
            name = self.names.pop(0)
            try:
                os.mkdir(name, 0o777, dir_fd=self.directory)  # less the umask
            except FileExistsError:
                pass  # made by someone else since the walk: whatever it is, the next lines judge it
            except FileNotFoundError:
                raise TreeChanged from None  # the directory we stand in was removed
            try:
                fd, info = open_and_stat(name, _STEP | os.O_DIRECTORY, self.directory)
            except (FileNotFoundError, NotADirectoryError):
                raise TreeChanged from None
            self._enter(fd, info, name)

    def _down(self, name: bytes, *, is_followed: bool) -> bytes | None:
        """One name further; the target's text if it is a symlink, which is not entered."""
        try:
            fd, info = open_and_stat(name, _STEP, self.directory)
        except FileNotFoundError:
            self.names.append(name)
            return None
        except OSError:
            # Out there even "too long" or "no permission" would tell something of what is there.
            if self._inside is None:
                raise denied() from None
            raise
        if stat.S_ISDIR(info.st_mode):
            self._enter(fd, info, name)
        elif stat.S_ISLNK(info.st_mode) and is_followed:
            os.close(fd)
            try:
                # By name again: the text of any link is safe to walk, and a name that is no link
                # any more says so.
                return os.readlink(name, dir_fd=self.directory)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINVAL):
                    raise TreeChanged from None
                raise
        else:
            self.leaf, self.leaf_stat = fd, info
            self.names.append(name)
            self._refuse(fd, info, self.directory_stat.st_dev)
        return None

    def _up(self) -> None:
        if self.names:
            self.names.pop()
            if not self.names:
                self._drop_leaf()
            return
        if len(self._trail) > 1:
            self._drop_stop()
            if self._inside == len(self._trail):
                self._inside = None
            return
        self._inside = None
        try:
            fd = self.open_above()
        except OSError:
            raise denied() from None
        self._replace_trail(fd, os.fstat(fd))

    def _go_to_slash(self) -> None:
        assert not self.names
        self._inside = None
        self._replace_trail(*open_and_stat(b"/", _STEP | os.O_DIRECTORY))

    def _replace_trail(self, fd: int, info: os.stat_result) -> None:
        device = self.directory_stat.st_dev
        while self._trail:
            self._drop_stop()
        self._enter(fd, info, b"", device)

    def _enter(
        self, fd: int, info: os.stat_result, name: bytes, from_device: int | None = None
    ) -> None:
        """Make ``fd`` the current directory. It is ours from the first line on, also when this
        raises."""
        device = self.directory_stat.st_dev if from_device is None else from_device
        if self._inside is None and identity(info) == self._root_identity:
            self._inside = len(self._trail)
        self._trail.append(_Stop(fd, info, name))
        self._refuse(fd, info, device)
        if len(self._trail) > MAX_DEPTH:
            raise (
                denied()
                if self._inside is None
                else InvalidArgument(f"the path leads through more than {MAX_DEPTH} directories")
            )

    def _drop_stop(self) -> None:
        stop = self._trail.pop()
        if len(self._trail) < self._n_borrowed:
            self._n_borrowed = len(self._trail)
        else:
            os.close(stop.fd)

    def _refuse(self, fd: int, info: os.stat_result, from_device: int) -> None:
        """Raises PermissionDenied. The type of a file system is asked at its border only."""
        if info.st_dev in self.forbidden.devices or identity(info) == self.forbidden.state_dir:
            raise denied()
        if info.st_dev != from_device and is_kernel_interface(fd):
            raise denied()

    def _drop_leaf(self) -> None:
        if self.leaf >= 0:
            os.close(self.leaf)
            self.leaf, self.leaf_stat = -1, None


def reopen(fd: int, flags: int) -> int:
    """A descriptor for the same file as the O_PATH one ``fd``, good for I/O; the caller closes
    both. Raises OSError.

    O_NONBLOCK in ``flags`` even for what fstat called regular: nothing this package opens may ever
    wait for a peer.
    """
    return os.open(f"/proc/self/fd/{fd}", flags | os.O_NONBLOCK | os.O_CLOEXEC)


def open_directory(name: bytes, parent: int) -> int:
    """A descriptor, good for listing, of the directory of this one name, never through a link.
    Raises OSError.

    In two steps, because gVisor (20240729) follows a link when O_NOFOLLOW comes with O_DIRECTORY,
    unless O_PATH does too.
    """
    fd = os.open(name, _STEP | os.O_DIRECTORY, dir_fd=parent)
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(fd)
