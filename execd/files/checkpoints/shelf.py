"""All checkpoints of a state dir: a manifest file each, and the kept contents of all together.

    checkpoints/ID.manifest   the digest of the rest, then the checkpoint as MessagePack
    checkpoints/content/      a file for each content, whose name is the digest in hex

A content is a clone of the file where the file system can share blocks (FICLONE), else a copy,
whose holes stay holes. It is never a hard link, because user code writes in place. A content gets
its name when it is whole and has been hashed. A manifest is the last that a new checkpoint writes,
and appears by a rename. So a checkpoint is there with all of its contents, or it is not there, and
whatever else a daemon left that died goes with the next ``sweep``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from execd.files.checkpoints.entries import StoredCheckpoint
from execd.files.checkpoints.scan import READ_FILE
from execd.files.copy import STAT_BLOCK_BYTES, copy_bytes
from execd.files.resolve import held, open_directory, undoing
from execd.files.write import leave_hole, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

FOLDER = b"checkpoints"
BLOCK_BYTES = 4096
_SUFFIX = ".manifest"
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FICLONE = 0x40049409
_DIGEST_BYTES = 32
_DECODER = msgspec.msgpack.Decoder(StoredCheckpoint)


class Damaged(Exception):
    """A manifest file is gone, or is not what was written."""


class Shelf:
    """For threads with the daemon's own rights. Owns descriptors; ``close`` releases them. Contents
    can be opened and kept by several threads at once."""

    def __init__(self, state_dir: int) -> None:
        """Open the folder in the state dir, or make it. Raises OSError."""
        self._folder = _open_folder(FOLDER, state_dir)
        with undoing(os.close, self._folder):
            self._contents = _open_folder(b"content", self._folder)

    def close(self) -> None:
        os.close(self._contents)
        os.close(self._folder)

    # Manifests.

    def ids(self) -> list[str]:
        """Raises OSError."""
        names = os.listdir(self._folder)
        return [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]

    def load(self, checkpoint_id: str) -> StoredCheckpoint:
        """Raises Damaged; OSError: the checkpoint may be whole."""
        import hashlib  # see lean_imports

        try:
            fd = os.open(checkpoint_id + _SUFFIX, READ_FILE, dir_fd=self._folder)
            with open(fd, "rb") as file:
                digest, data = file.read(_DIGEST_BYTES), file.read()
        except FileNotFoundError:
            raise Damaged("the manifest is gone") from None
        if hashlib.sha256(data).digest() != digest:
            raise Damaged("the digest is not that of the manifest")
        try:
            return _DECODER.decode(data)
        except msgspec.DecodeError:
            raise Damaged("the manifest is of another version of execd") from None

    def save(self, checkpoint_id: str, data: bytes) -> None:
        """Put a manifest, as ``encode`` makes one, in place, and on the disk. Raises OSError."""
        name, fd = self._make_file(self._folder)
        with undoing(partial(os.unlink, name, dir_fd=self._folder)):
            with held(fd):
                write_all(fd, data)
                os.fsync(fd)
            os.rename(
                name, checkpoint_id + _SUFFIX, src_dir_fd=self._folder, dst_dir_fd=self._folder
            )
        os.fsync(self._folder)

    def remove(self, checkpoint_id: str) -> None:
        """Remove a manifest. The contents go with the next ``sweep``. Raises OSError."""
        os.unlink(checkpoint_id + _SUFFIX, dir_fd=self._folder)

    # Contents.

    def has_content(self, digest: bytes) -> bool:
        return os.access(digest.hex(), os.F_OK, dir_fd=self._contents)

    def open_content(self, digest: bytes) -> int:
        """Open a content for reading; the caller closes the descriptor. Raises OSError."""
        return os.open(digest.hex(), READ_FILE, dir_fd=self._contents)

    def begin_content(self) -> tuple[str, int]:
        """Make a file for a content. Return its name, and the descriptor, which the caller closes.
        Raises OSError."""
        return self._make_file(self._contents)

    def finish_content(self, name: str, digest: bytes) -> None:
        """Give a whole content its name. Raises OSError."""
        os.rename(name, digest.hex(), src_dir_fd=self._contents, dst_dir_fd=self._contents)

    def sweep(self, checkpoint_ids: Iterable[str], unreadable_ids: Collection[str] = ()) -> int:
        """Remove all that belongs to none of these checkpoints. Return the bytes of the rest.
        While there are unreadable checkpoints all whole contents stay, as they may be needed.
        Raises OSError, Damaged."""
        kept = {"content"}
        needed: set[str] = set()
        for checkpoint_id in checkpoint_ids:
            kept.add(checkpoint_id + _SUFFIX)
            needed.update(digest.hex() for digest in digests_of(self.load(checkpoint_id)))
        if unreadable_ids:
            kept.update(each + _SUFFIX for each in unreadable_ids)
            needed.update(name for name in os.listdir(self._contents) if not name.startswith("+"))
        return _remove_others(self._folder, kept) + _remove_others(self._contents, needed)

    @staticmethod
    def _make_file(folder: int) -> tuple[str, int]:
        name = "+" + secrets.token_hex(8)
        return name, os.open(name, _CREATE, 0o600, dir_fd=folder)


def _open_folder(name: bytes, parent: int) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    return open_directory(name, parent)


def _remove_others(folder: int, kept: set[str]) -> int:
    """Remove all files but ``kept``. Return the bytes of these."""
    n_bytes = 0
    for name in os.listdir(folder):
        if name not in kept:
            os.unlink(name, dir_fd=folder)
        else:
            info = os.stat(name, dir_fd=folder, follow_symlinks=False)
            n_bytes += used_bytes(info) if stat.S_ISREG(info.st_mode) else 0
    return n_bytes


def used_bytes(info: os.stat_result) -> int:
    """Return the room of a file on the disk: whole blocks, without holes. Some file systems show no
    blocks for the bytes of a small file."""
    return min(needed_bytes(info.st_size), max(info.st_blocks * STAT_BLOCK_BYTES, BLOCK_BYTES))


def needed_bytes(size_bytes: int) -> int:
    """Return the room of a file without holes."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def copy_content(source: int, target: int, stop: Callable[[], bool]) -> None:
    """Give the empty file ``target`` the bytes of ``source``. Raises OSError, Conflict."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        copy_bytes(source, partial(write_all, target), partial(leave_hole, target), stop)


def digests_of(stored: StoredCheckpoint) -> set[bytes]:
    """Return the digests of all contents that a checkpoint needs."""
    return {
        entry.digest
        for manifest in stored.manifests
        if manifest.has_content
        for entry in manifest.entries
        if entry.digest
    }


def encode(stored: StoredCheckpoint) -> bytes:
    import hashlib  # see lean_imports

    data = msgspec.msgpack.encode(stored)
    return hashlib.sha256(data).digest() + data
