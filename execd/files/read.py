"""Read a regular file by offset, with validators, or describe any other file."""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from typing import TYPE_CHECKING, Literal

import msgspec

from execd.errors import NotFound
from execd.files.paths import blame, decode
from execd.files.resolve import TreeChanged, reopen, undoing
from execd.files.root import existing, retry_on_change, retrying

if TYPE_CHECKING:
    from execd.files.resolve import ResolvedPath
    from execd.files.root import Root

# In gVisor a sendfile of 1 MiB is slower than read and send, one of 8 MiB is as fast.
SENT_AT_ONCE_BYTES = 8 << 20

FileKind = Literal[
    "file", "directory", "symlink", "fifo", "socket", "character_device", "block_device"
]

KINDS: dict[int, FileKind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character_device",
    stat.S_IFBLK: "block_device",
}


class RegularFile:
    """A regular file, inside the root at the time of opening. Owns a descriptor; ``close`` ends the
    file.

    Reads return the content of the file that was opened, also after a rename or removal.
    """

    def __init__(self, fd: int, name: str) -> None:
        info = os.fstat(fd)
        self._fd = fd
        self.name = name
        self.size_bytes = info.st_size
        self.modified_at = info.st_mtime
        self.etag = etag(info)

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return up to ``size_bytes`` from ``offset``; empty at the end. Waits only for disk."""
        try:
            return os.pread(self._fd, size_bytes, offset)
        except OSError as error:
            raise blame(error, repr(self.name)) from error

    def send(self, socket: int, offset: int, size_bytes: int) -> tuple[int, bool]:
        """Send up to ``size_bytes`` to a non-blocking socket by sendfile(2).

        Return the number of bytes sent, and whether the socket is full. Zero bytes to a socket that
        is not full means the end of the file. Raises ConnectionError, and the errors of ``read``.
        """
        n_sent = 0
        try:
            while n_sent < size_bytes:
                n_bytes = os.sendfile(
                    socket, self._fd, offset + n_sent, min(SENT_AT_ONCE_BYTES, size_bytes - n_sent)
                )
                if not n_bytes:
                    break
                n_sent += n_bytes
        except BlockingIOError:
            return n_sent, True
        except ConnectionError:
            raise
        except OSError as error:
            raise blame(error, repr(self.name)) from error
        return n_sent, False

    def close(self) -> None:
        """Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            # the kernel frees the descriptor despite the error, and nothing was written
            with contextlib.suppress(OSError):
                os.close(fd)


def etag(info: os.stat_result) -> str:
    """Return a strong validator (RFC 9110 8.8.1) without reading the file.

    An upload replaces the file, so device and inode change. A write in place changes size, mtime or
    ctime. ctime is part of the tag because mtime can be set back (tar, cp -p, touch -d) and ctime
    cannot. chmod and rename change the tag too: a client downloads once more, and never gets wrong
    bytes. Not covered: a write in place of the same size within a tick of the kernel's clock (4 ms;
    Linux 6.13 and later have finer stamps). Only a hash could detect such a write.
    """
    fields = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    return '"' + "-".join(f"{field:x}" for field in fields) + '"'


@retrying
def open_file(root: Root, path: str) -> RegularFile:
    """Open the regular file at ``path``; the caller closes the file.

    Raises NotFound (missing, or not a regular file), PermissionDenied, InvalidArgument, Conflict.
    """
    with root.resolve(path) as resolved:
        info = resolved.stat
        if info is None:
            raise NotFound(f"{path!r}: no such file")
        if not stat.S_ISREG(info.st_mode):
            raise NotFound(f"{path!r} is not a regular file")
        return open_leaf(resolved, path)


def open_leaf(resolved: ResolvedPath, path: str) -> RegularFile:
    """Open the regular file at the end of a walk. Raises TreeChanged, OSError."""
    try:
        fd = reopen(resolved.leaf, os.O_RDONLY)
    except FileNotFoundError:
        # removed since the walk; on some file systems a descriptor does not survive the removal
        raise TreeChanged from None
    with undoing(os.close, fd):
        return RegularFile(fd, posixpath.basename(path.rstrip("/")))


class Description(msgspec.Struct, frozen=True):
    """The result of stat(2). ``place`` and ``target`` hold undecodable bytes as surrogates."""

    place: str
    """The path below the root, with the parents' links resolved."""
    kind: FileKind
    size_bytes: int
    mode: int
    """Permission bits."""
    uid: int
    gid: int
    n_links: int
    modified_at: float
    """Seconds since the epoch."""
    changed_at: float
    """Time of the last change of the inode (ctime), in seconds since the epoch."""
    etag: str
    target: str | None
    """The text of a symlink; None for any other kind."""


@retrying
def describe(root: Root, path: str, *, follow: bool = True) -> Description:
    """Describe the file at ``path``; without ``follow`` a link itself.

    Raises NotFound, PermissionDenied, InvalidArgument, Conflict.
    """
    with root.resolve(path, follow=follow) as resolved:
        return describe_resolved(resolved, path)


def describe_resolved(resolved: ResolvedPath, path: str) -> Description:
    """Describe the end of a walk. Raises NotFound, OSError."""
    info = existing(resolved, path)
    # readlinkat(2) with an empty name reads the link of an O_PATH descriptor.
    target = os.readlink(b"", dir_fd=resolved.leaf) if stat.S_ISLNK(info.st_mode) else None
    return description(info, decode(resolved.place), target)


def description(info: os.stat_result, place: str, target: bytes | None) -> Description:
    return Description(
        place=place,
        kind=KINDS[stat.S_IFMT(info.st_mode)],
        size_bytes=info.st_size,
        mode=stat.S_IMODE(info.st_mode),
        uid=info.st_uid,
        gid=info.st_gid,
        n_links=info.st_nlink,
        modified_at=info.st_mtime,
        changed_at=info.st_ctime,
        etag=etag(info),
        target=None if target is None else decode(target),
    )


@retrying
def open_or_describe(root: Root, path: str) -> RegularFile | Description:
    """Open a regular file, which the caller closes, or describe any other file.

    Never blocks on a FIFO or a device. Raises NotFound, PermissionDenied, InvalidArgument,
    Conflict.
    """
    with root.resolve(path) as resolved:
        info = resolved.stat
        if info is not None and stat.S_ISREG(info.st_mode):
            return open_leaf(resolved, path)
        return describe_resolved(resolved, path)


def exists(root: Root, path: str) -> bool:
    """Whether ``path`` leads to a file. Raises PermissionDenied, InvalidArgument, Conflict: then
    the answer is unknown."""

    def attempt() -> bool:
        with root.resolve(path) as resolved:
            return resolved.exists

    try:
        return retry_on_change(attempt, path)
    except NotFound:
        return False  # a loop of links leads nowhere
