"""The kept contents of files: once for each digest, in a directory of the daemon.

A content is a clone of the file where the file system can share blocks (FICLONE), else a copy,
whose holes stay holes. It is never a hard link, because user code writes in place. A content gets
its name, the digest in hex, when it is whole and has been hashed; whatever else lies in the
directory is left over from a daemon that died, and goes with the next ``sweep``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from execd.files.checkpoints.scan import READ_FILE, digest_of
from execd.files.copy import STAT_BLOCK_BYTES, copy_bytes
from execd.files.resolve import open_and_stat
from execd.files.write import leave_hole, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from execd.files.checkpoints.crew import Place
    from execd.files.checkpoints.directories import Directories
    from execd.files.checkpoints.entries import TreeEntry

_FICLONE = 0x40049409
BLOCK_BYTES = 4096
SPARSE_BYTES = 1 << 16
"""The least size of a file whose holes count."""
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Draft(NamedTuple):
    """A content in the making."""

    name: bytes
    fd: int


class ContentStore:
    """The contents. For threads with the daemon's own rights; each method is safe for several
    threads at once, but for ``sweep``."""

    def __init__(self, directory: int) -> None:
        """The descriptor stays the caller's."""
        self._directory = directory

    def has(self, digest: bytes) -> bool:
        try:
            os.stat(digest.hex(), dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def open(self, digest: bytes) -> int:
        """Open a content for reading; the caller closes the descriptor. Raises OSError."""
        return os.open(digest.hex(), READ_FILE, dir_fd=self._directory)

    def begin(self) -> Draft:
        """Make a file for a content; the caller closes it. Raises OSError."""
        name = b"+" + secrets.token_hex(8).encode()
        return Draft(name, os.open(name, _CREATE, 0o600, dir_fd=self._directory))

    def finish(self, draft: Draft, digest: bytes) -> None:
        """Give a whole content its name. Raises OSError."""
        os.rename(draft.name, digest.hex(), src_dir_fd=self._directory, dst_dir_fd=self._directory)

    def sweep(self, needed: Container[bytes]) -> int:
        """Remove all but the contents with these digests. Return their bytes. Raises OSError."""
        n_bytes = 0
        with os.scandir(self._directory) as found:
            for entry in found:
                try:
                    is_needed = bytes.fromhex(entry.name) in needed
                except ValueError:
                    is_needed = False
                if is_needed:
                    n_bytes += used_bytes(entry.stat(follow_symlinks=False))
                else:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(entry.name, dir_fd=self._directory)
        return n_bytes


def needed_bytes(size_bytes: int) -> int:
    """Return the room of a file without holes."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def used_bytes(info: os.stat_result) -> int:
    """Return the room of a file on the disk: whole blocks, without holes. Some file systems show no
    blocks for the bytes of a small file."""
    return min(needed_bytes(info.st_size), max(info.st_blocks * STAT_BLOCK_BYTES, BLOCK_BYTES))


def room_of(directories: Directories, entry: TreeEntry) -> int:
    """Return the room that the content of a scanned file takes. Raises OSError."""
    if entry.size_bytes < SPARSE_BYTES:
        return needed_bytes(entry.size_bytes)
    parent, name = directories.open_parent(entry.path)
    return used_bytes(os.stat(name, dir_fd=parent, follow_symlinks=False))


def copy_content(source: int, target: int, stop: Callable[[], bool]) -> None:
    """Give the empty file ``target`` the bytes of ``source``. Raises OSError, Conflict."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        copy_bytes(source, partial(write_all, target), partial(leave_hole, target), stop)


def keep(
    place: Place,
    entry: TreeEntry,
    begin: Callable[[], Draft],
    finish: Callable[[Draft, bytes], None],
) -> bool:
    """Keep the content of a scanned file. Return whether the file still has that content.
    ``begin``, ``finish``: of the store. Raises OSError, Conflict."""
    parent, name = place.directories.open_parent(entry.path)
    source, _ = open_and_stat(name, READ_FILE, parent)
    try:
        draft = begin()
        try:
            copy_content(source, draft.fd, place.stop)
            os.lseek(draft.fd, 0, os.SEEK_SET)
            if digest_of(place, draft.fd, os.fstat(draft.fd)) != entry.digest:
                return False
            finish(draft, entry.digest)
            return True
        finally:
            os.close(draft.fd)
    finally:
        os.close(source)
