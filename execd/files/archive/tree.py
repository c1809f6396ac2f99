"""Make an archive's files, directories and links below a descriptor, by rules for every format.

* Names go down through directories, each opened by a single name, never through a link. Neither a
  link of the archive nor a link that user code swaps in can lead a write elsewhere. Absolute names
  and ".." are refused, not corrected.
* Symlinks may point below the top, by a relative path; hard links only to a file of the same
  archive. This rule protects later users of the tree. The daemon itself is confined by ``resolve``,
  at each later request.
* No devices, no FIFOs, no owners, and of a file's mode only the permission bits: no set-user-ID.
* During the work directories are open to their owner and have no special bits. The modes of the
  archive come last, for the directories that the archive has made.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from execd.errors import InvalidArgument, NotFound, PayloadTooLarge, PermissionDenied
from execd.files.paths import MAX_NAME_BYTES, MAX_PATH_BYTES
from execd.files.resolve import ResolvedPath, go_down
from execd.files.tree_walk import Step, walk
from execd.files.write import write_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.files.resolve import Forbidden
    from execd.files.root import Room

MAX_STEPS = 1_000_000
"""Directories on the ways to the entries of an uploaded archive. More are 413.

Entries of one directory that follow each other have one way. Without the limit a few entries with
2,000 names each, from two directories in turn, keep a thread busy for minutes."""
MAX_NAMES_BYTES = 64 << 20
"""Names in an uploaded archive that are in memory together. More are 413.

With names of 200 characters, 200,000 entries of a zip need 55 MB: an entry has 46 bytes besides,
with extra fields and comments."""
_DIRECTORY_MODE = 0o3777
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

T = TypeVar("T")

EntryKind = Literal["file", "directory", "symlink", "hardlink"]


class Member(msgspec.Struct, frozen=True):
    """An entry of an archive. The name has not been checked yet."""

    name: bytes
    kind: EntryKind
    size_bytes: int
    mode: int
    modified_at: float
    """Seconds since the epoch."""
    target: bytes
    """The target of a link: a symlink's relative to the link's directory, a hard link's relative to
    the top."""


class Unpacked(msgspec.Struct):
    """The counts of an unpacked archive."""

    n_files: int = 0
    n_directories: int = 0
    """Directories that the archive names; implied parents are not counted."""
    n_links: int = 0
    n_bytes: int = 0


class UnpackingLimits(msgspec.Struct, frozen=True):
    max_bytes: int
    """The limit for all files together."""
    max_entries: int


class Tree:
    """Takes member after member: ``begin``, for a file any number of ``write``, ``end``.

    Owns the open descriptors; ``close`` ends the tree.
    """

    def __init__(self, top: int, limits: UnpackingLimits, room: Room | None = None) -> None:
        self.done = Unpacked()
        self._top = top
        self._limits = limits
        self._room = room
        self._n_entries = self._n_steps = 0
        self._has_links_to_check = False
        self._parent: tuple[list[bytes], int] | None = None
        """The directory of the last entry, held open: archives list a directory's entries together.
        """
        self.modes: dict[bytes, int] = {}
        """The modes that directories get last, by path."""
        self._modes_bytes = 0
        self._file = -1
        self._member: Member | None = None

    def begin(self, member: Member) -> None:
        """Make the entry of ``member``, empty if a file. Raises InvalidArgument, PayloadTooLarge,
        OSError."""
        assert self._file < 0, "begin before the end of the last file"
        self._n_entries += 1
        if self._n_entries > self._limits.max_entries:
            raise PayloadTooLarge(f"the archive has more than {self._limits.max_entries} entries")
        self._refuse_size(member.size_bytes)
        names = _safe_names(member.name)
        self._member = member
        if member.kind == "directory":
            if names:  # "./" is the top itself
                os.fchmod(self._open(names), mode := member.mode & 0o777 | 0o700)
                self.modes.pop(path := b"/".join(names), None)
                if member.mode & _DIRECTORY_MODE != mode:
                    self.modes[path] = member.mode & _DIRECTORY_MODE
                    self._modes_bytes += len(path)
                    if self._modes_bytes > MAX_NAMES_BYTES:
                        raise too_many_names()
                self.done.n_directories += 1
            return
        if not names:
            raise InvalidArgument("the archive has a file without a name")
        *parents, name = names
        parent = self._open(parents)
        match member.kind:
            case "file":
                self._file = _replacing(
                    parent, name, partial(os.open, name, _CREATE, 0o600, dir_fd=parent)
                )
                self.done.n_files += 1
            case "symlink":
                _refuse_link_out(parents, name, member.target)
                self._has_links_to_check = self._has_links_to_check or _ascends_after_descending(
                    member.target
                )
                _replacing(parent, name, partial(os.symlink, member.target, name, dir_fd=parent))
                self.done.n_links += 1
            case "hardlink":
                self._hard_link(_safe_names(member.target), parent, name)
                self.done.n_links += 1

    def write(self, data: bytes) -> None:
        """Write to the file begun last. Raises PayloadTooLarge, NoSpace, OSError."""
        assert self._file >= 0
        self._refuse_size(len(data))
        self.take_room(len(data))
        write_all(self._file, data)
        self.done.n_bytes += len(data)

    def take_room(self, n_bytes: int) -> None:
        """Count bytes that are about to be written for the archive. Raises NoSpace."""
        if self._room is not None:
            self._room.take(n_bytes)

    def end(self) -> None:
        """Set mode and time of the file begun last. Raises OSError."""
        fd, self._file = self._file, -1
        if fd < 0:
            return
        assert self._member is not None
        try:
            os.fchmod(fd, self._member.mode & 0o777)
            # an impossible time is no reason to fail
            with contextlib.suppress(OverflowError, ValueError, OSError):
                os.utime(fd, (self._member.modified_at, self._member.modified_at))
        finally:
            os.close(fd)

    def set_directory_modes(self, top: int) -> None:
        """Give the directories below ``top`` the ``modes``.

        The archive is in place by now, so a directory that user code has changed is passed over.
        """
        for path in sorted(self.modes, reverse=True):  # before its parent
            with contextlib.suppress(OSError):
                fd = os.dup(top)
                try:
                    for name in path.split(b"/"):
                        fd = go_down(fd, name)
                    os.fchmod(fd, self.modes[path])
                finally:
                    os.close(fd)

    def refuse_links_out(self, forbidden: Forbidden) -> None:
        """Check, after the last member, that links with ".." after a name stay inside.

        Such a link may leave through another link: the name before ".." may be a link that leads
        up. Other links need no check: every ".." of another link leaves a real directory, and a way
        down leads only through links checked here. Raises InvalidArgument, TreeChanged, OSError.
        """
        if not self._has_links_to_check:
            return
        for visit in walk(self._top, forbidden):
            if (
                visit.step is not Step.LEAF
                or visit.info is None
                or not stat.S_ISLNK(visit.info.st_mode)
            ):
                continue
            with ResolvedPath(os.dup(self._top), os.fstat(self._top), forbidden) as resolved:
                try:
                    resolved.walk(visit.path)
                except PermissionDenied:
                    raise _link_out(visit.name) from None
                except (NotFound, OSError):
                    continue  # a loop, or an impossible name: no file

    def close(self) -> None:
        """Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None

    def _refuse_size(self, more_bytes: int) -> None:
        if self.done.n_bytes + more_bytes > self._limits.max_bytes:
            raise PayloadTooLarge(
                f"the archive unpacks to more than {self._limits.max_bytes} bytes"
            )

    def _open(self, names: list[bytes]) -> int:
        """Open the directory of these names; missing directories are made.

        The descriptor belongs to the tree and is good until the next call.
        """
        if self._parent is not None and self._parent[0] == names:
            return self._parent[1]
        self._count_steps(len(names))
        fd = os.dup(self._top)
        try:
            for name in names:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=fd)
                try:
                    fd = go_down(fd, name)
                except NotADirectoryError:  # a link too: O_NOFOLLOW
                    shown = repr(b"/".join(names).decode("utf-8", "replace"))
                    raise InvalidArgument(
                        f"{shown} in the archive goes through something that is no directory"
                    ) from None
        except BaseException:
            os.close(fd)
            raise
        if self._parent is not None:
            os.close(self._parent[1])
        self._parent = names, fd
        return fd

    def _count_steps(self, n_steps: int) -> None:
        self._n_steps += n_steps
        if self._n_steps > MAX_STEPS:
            raise PayloadTooLarge(
                f"the ways to the entries of the archive lead through more than {MAX_STEPS:,} "
                "directories; list the entries of a directory together, or use shorter paths"
            )

    def _hard_link(self, target: list[bytes], parent: int, name: bytes) -> None:
        self._count_steps(len(target))
        fd = os.dup(self._top)
        try:
            try:
                for directory in target[:-1]:
                    fd = go_down(fd, directory)
                is_file = bool(target) and stat.S_ISREG(
                    os.stat(target[-1], dir_fd=fd, follow_symlinks=False).st_mode
                )
            except OSError:
                is_file = False
            if not is_file:
                shown = repr(name.decode("utf-8", "replace"))
                raise InvalidArgument(
                    f"{shown} in the archive is a hard link to no file that comes before it"
                )
            _replacing(
                parent,
                name,
                partial(
                    os.link,
                    target[-1],
                    name,
                    src_dir_fd=fd,
                    dst_dir_fd=parent,
                    follow_symlinks=False,
                ),
            )
        finally:
            os.close(fd)


def too_many_names() -> PayloadTooLarge:
    return PayloadTooLarge(f"the names in the archive take more than {MAX_NAMES_BYTES >> 20} MiB")


def _replacing(parent: int, name: bytes, make: Callable[[], T]) -> T:
    """Call ``make``, and replace an existing entry: as in every tar, the later entry of a name
    counts."""
    try:
        return make()
    except FileExistsError:
        os.unlink(name, dir_fd=parent)
        return make()


def _safe_names(path: bytes) -> list[bytes]:
    """Split an entry's name, and refuse an unsafe name. Raises InvalidArgument."""
    shown = repr(path[:200].decode("utf-8", "replace"))
    if path.startswith(b"/"):
        raise InvalidArgument(f"{shown} in the archive is an absolute path")
    names = [name for name in path.split(b"/") if name not in (b"", b".")]
    if b".." in names:
        raise InvalidArgument(f"{shown} in the archive has '..' in it")
    if (
        b"\0" in path
        or len(path) > MAX_PATH_BYTES
        or any(len(name) > MAX_NAME_BYTES for name in names)
    ):
        raise InvalidArgument(f"{shown} in the archive is a name that no file can have")
    return names


def _refuse_link_out(parents: list[bytes], name: bytes, target: bytes) -> None:
    """Refuse a symlink that leads out by text alone. Raises InvalidArgument."""
    where = posixpath.normpath(posixpath.join(*parents, target))
    if (
        not target
        or b"\0" in target
        or target.startswith(b"/")
        or where == b".."
        or where.startswith(b"../")
    ):
        raise _link_out(name)


def _link_out(name: bytes) -> InvalidArgument:
    return InvalidArgument(
        f"{name.decode('utf-8', 'replace')!r} in the archive is a link that leads out of it"
    )


def _ascends_after_descending(target: bytes) -> bool:
    """Whether the target has ".." after a name."""
    names = [name for name in target.split(b"/") if name not in (b"", b".")]
    n_up = next((at for at, name in enumerate(names) if name != b".."), len(names))
    return b".." in names[n_up:]
