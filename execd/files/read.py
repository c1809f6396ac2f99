"""What is at a path: a regular file to read by offset, with its validators, or anything else,
described."""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from typing import TYPE_CHECKING, Literal

import msgspec

from execd.errors import NotFound
from execd.files.paths import blame, decode
from execd.files.resolve import TreeChanged, reopen
from execd.files.root import retry_on_change

if TYPE_CHECKING:
    from execd.files.resolve import ResolvedPath
    from execd.files.root import Root

# In gVisor a sendfile of 1 MiB is slower than read and send, one of 8 MiB is as fast.
SENT_AT_ONCE_BYTES = 8 << 20

Kind = Literal["file", "directory", "symlink", "fifo", "socket", "character_device", "block_device"]

KINDS: dict[int, Kind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character_device",
    stat.S_IFBLK: "block_device",
}


class RegularFile:
    """A regular file that was inside the root when it was opened. Owns one descriptor; ``close``
    ends it.

    What is read is the file that was opened, also after another took its name or none has it any
    more.
    """

    def __init__(self, fd: int, name: str) -> None:
        info = os.fstat(fd)
        self._fd = fd
        self.name = name
        self.size_bytes = info.st_size
        self.modified_at = info.st_mtime
        self.etag = etag(info)

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Up to ``size_bytes`` from ``offset``, no bytes at the end. Never blocks on anything but
        the disk."""
        try:
            return os.pread(self._fd, size_bytes, offset)
        except OSError as error:
            raise blame(error, repr(self.name)) from error

    def send(self, socket: int, offset: int, size_bytes: int) -> tuple[int, bool]:
        """sendfile(2) up to ``size_bytes`` to a non-blocking socket: how many went, and whether it
        takes no more for now.

        None went and it takes more: the file ends here. Raises ConnectionError, and what ``read``
        raises.
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
            # the descriptor is gone all the same, and nothing was written to it
            with contextlib.suppress(OSError):
                os.close(fd)


def etag(info: os.stat_result) -> str:
    """A strong validator (RFC 9110 8.8.1) without reading the file.

    Device and inode change with every upload, since those replace the file. For writes in place
    there are size, mtime and ctime; ctime because mtime can be set back (tar, cp -p, touch -d) and
    it cannot. chmod and rename change the tag too, which costs a client one download and never
    gives it wrong bytes. Left open: writes in place of the same size within one tick of the
    kernel's clock (4 ms; Linux 6.13 and later stamp finer); only a hash could tell those.
    """
    fields = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    return '"' + "-".join(f"{field:x}" for field in fields) + '"'


def open_file(root: Root, path: str) -> RegularFile:
    """Open the regular file at ``path``; the caller closes it.

    Raises NotFound (nothing there, or something else than a regular file), PermissionDenied,
    InvalidArgument, Conflict.
    """

    def attempt() -> RegularFile:
        with root.resolve(path) as resolved:
            info = resolved.stat
            if info is None:
                raise NotFound(f"{path!r}: no such file")
            if not stat.S_ISREG(info.st_mode):
                raise NotFound(f"{path!r} is not a regular file")
            return open_leaf(resolved, path)

    return retry_on_change(attempt, path)


def open_leaf(resolved: ResolvedPath, path: str) -> RegularFile:
    """The regular file that the walk ended at. Raises TreeChanged, OSError."""
    try:
        fd = reopen(resolved.leaf, os.O_RDONLY)
    except FileNotFoundError:
        # removed since the walk; on some file systems no descriptor survives that
        raise TreeChanged from None
    try:
        return RegularFile(fd, posixpath.basename(path.rstrip("/")))
    except BaseException:
        os.close(fd)
        raise


class Description(msgspec.Struct, frozen=True):
    """What stat(2) says of it. ``place`` and ``target`` hold undecodable bytes as surrogate
    escapes."""

    place: str
    """Where it is below the root, its parents' links resolved."""
    kind: Kind
    size_bytes: int
    mode: int
    """Permission bits."""
    uid: int
    gid: int
    n_links: int
    modified_at: float
    """Seconds since the epoch."""
    etag: str
    target: str | None
    """Of a symlink: where it leads, as it is written in it."""


def describe(root: Root, path: str, *, follow: bool = True) -> Description:
    """What is at ``path``; without ``follow`` a link itself. Raises NotFound, PermissionDenied,
    InvalidArgument, Conflict."""

    def attempt() -> Description:
        with root.resolve(path, follow=follow) as resolved:
            return describe_resolved(resolved, path)

    return retry_on_change(attempt, path)


def describe_resolved(resolved: ResolvedPath, path: str) -> Description:
    """Raises NotFound, OSError."""
    info = resolved.stat
    if info is None:
        raise NotFound(f"{path!r}: no such file or directory")
    is_link = stat.S_ISLNK(info.st_mode)
    return Description(
        place=decode(resolved.place),
        kind=KINDS[stat.S_IFMT(info.st_mode)],
        size_bytes=info.st_size,
        mode=stat.S_IMODE(info.st_mode),
        uid=info.st_uid,
        gid=info.st_gid,
        n_links=info.st_nlink,
        modified_at=info.st_mtime,
        etag=etag(info),
        # An O_PATH descriptor of a link can be read as one: readlinkat(2), "".
        target=decode(os.readlink(b"", dir_fd=resolved.leaf)) if is_link else None,
    )


def open_or_describe(root: Root, path: str) -> RegularFile | Description:
    """A regular file opened, which the caller closes; anything else described. Never blocks on a
    FIFO or a device.

    Raises NotFound, PermissionDenied, InvalidArgument, Conflict.
    """

    def attempt() -> RegularFile | Description:
        with root.resolve(path) as resolved:
            info = resolved.stat
            if info is not None and stat.S_ISREG(info.st_mode):
                return open_leaf(resolved, path)
            return describe_resolved(resolved, path)

    return retry_on_change(attempt, path)


def exists(root: Root, path: str) -> bool:
    """Whether ``path`` leads to anything. Raises PermissionDenied, InvalidArgument, Conflict: then
    nobody can know."""

    def attempt() -> bool:
        with root.resolve(path) as resolved:
            return resolved.exists

    try:
        return retry_on_change(attempt, path)
    except NotFound:
        return False  # a loop of links leads nowhere
