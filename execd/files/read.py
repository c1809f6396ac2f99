"""Reading one regular file: an open descriptor, its validators, and bytes by offset."""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat

from execd.errors import NotFound
from execd.files.paths import blame
from execd.files.root import Moved, Root, reopen, settle


class RegularFile:
    """A regular file that was inside the root when it was opened. Owns one descriptor; ``close`` ends it.

    What is read is the file that was opened, also after another took its name or none has it any more.
    """

    def __init__(self, fd: int, name: str) -> None:
        info = os.fstat(fd)
        self._fd = fd
        self.name = name
        self.size_bytes = info.st_size
        self.modified_at = info.st_mtime
        self.etag = etag(info)

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Up to ``size_bytes`` from ``offset``, no bytes at the end. Never blocks on anything but the disk."""
        try:
            return os.pread(self._fd, size_bytes, offset)
        except OSError as error:
            raise blame(error, repr(self.name)) from error

    def close(self) -> None:
        """Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # the descriptor is gone all the same, and nothing was written to it
                os.close(fd)


def etag(info: os.stat_result) -> str:
    """A strong validator (RFC 9110 8.8.1) without reading the file.

    Device and inode change with every upload, since those replace the file. For writes in place there are size, mtime
    and ctime; ctime because mtime can be set back (tar, cp -p, touch -d) and it cannot. chmod and rename change the tag
    too, which costs a client one download and never gives it wrong bytes. Left open: writes in place of the same size
    within one tick of the kernel's clock (4 ms; Linux 6.13 and later stamp finer); only a hash could tell those.
    """
    fields = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    return '"' + "-".join(f"{field:x}" for field in fields) + '"'


def open_file(root: Root, path: str) -> RegularFile:
    """Open the regular file at ``path``; the caller closes it.

    Raises NotFound (nothing there, or something else than a regular file), PermissionDenied, InvalidArgument, Conflict.
    """

    def attempt() -> RegularFile:
        with root.resolve(path) as landing:
            info = landing.stat
            if info is None:
                raise NotFound(f"{path!r}: no such file")
            if not stat.S_ISREG(info.st_mode):
                raise NotFound(f"{path!r} is not a regular file")
            try:
                fd = reopen(landing.leaf, os.O_RDONLY)
            except FileNotFoundError:
                raise Moved from None  # removed since the walk; on some file systems no descriptor survives that
        try:
            return RegularFile(fd, posixpath.basename(path.rstrip("/")))
        except BaseException:
            os.close(fd)
            raise

    return settle(attempt, path)


def exists(root: Root, path: str) -> bool:
    """Whether ``path`` leads to anything. Raises PermissionDenied, InvalidArgument, Conflict: then nobody can know."""

    def attempt() -> bool:
        with root.resolve(path) as landing:
            return landing.exists

    try:
        return settle(attempt, path)
    except NotFound:
        return False  # a loop of links leads nowhere
