"""All checkpoints of a state dir: a manifest file each, and the contents of all together.

    checkpoints/ID.manifest   the digest of the rest, then the checkpoint as MessagePack
    checkpoints/content/      see ``content``

A manifest is the last that a new checkpoint writes, and appears by a rename. So a checkpoint is
there with all of its contents, or it is not there.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import msgspec

from execd.files.checkpoints.content import ContentStore, needed_bytes
from execd.files.checkpoints.entries import StoredCheckpoint
from execd.files.resolve import open_directory, undoing
from execd.files.write import write_all

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER = b"checkpoints"
_SUFFIX = ".manifest"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_DIGEST_BYTES = 32
_DECODER = msgspec.msgpack.Decoder(StoredCheckpoint)


class Damaged(Exception):
    """A manifest file is gone, or is not what was written."""


class Shelf:
    """For threads with the daemon's own rights. Owns descriptors; ``close`` releases them."""

    def __init__(self, state_dir: int) -> None:
        """Open the folder in the state dir, or make it. Raises OSError."""
        self._folder = _open_folder(FOLDER, state_dir)
        with undoing(os.close, self._folder):
            self._content = _open_folder(b"content", self._folder)
        self.contents = ContentStore(self._content)

    def close(self) -> None:
        os.close(self._content)
        os.close(self._folder)

    def ids(self) -> list[str]:
        """Raises OSError."""
        names = os.listdir(self._folder)
        return [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]

    def load(self, checkpoint_id: str) -> StoredCheckpoint:
        """Raises Damaged."""
        import hashlib  # see lean_imports

        try:
            fd = os.open(
                checkpoint_id + _SUFFIX,
                os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC,
                dir_fd=self._folder,
            )
            with open(fd, "rb") as file:
                digest, data = file.read(_DIGEST_BYTES), file.read()
        except OSError as error:
            raise Damaged(error.strerror) from None
        if hashlib.sha256(data).digest() != digest:
            raise Damaged("the digest is not that of the manifest")
        return _DECODER.decode(data)

    def save(self, checkpoint_id: str, data: bytes) -> None:
        """Put a manifest, as ``encode`` makes one, in place. Raises OSError."""
        name, temporary = checkpoint_id + _SUFFIX, "+manifest"
        fd = os.open(temporary, _CREATE, 0o600, dir_fd=self._folder)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)
        os.rename(temporary, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def remove(self, checkpoint_id: str) -> None:
        """Remove a manifest. The contents go with the next ``sweep``. Raises OSError."""
        os.unlink(checkpoint_id + _SUFFIX, dir_fd=self._folder)

    def sweep(self, checkpoint_ids: Iterable[str]) -> int:
        """Remove all that belongs to none of these checkpoints. Return the bytes of the rest.
        Raises OSError, Damaged."""
        kept = set(checkpoint_ids)
        needed: set[bytes] = set()
        for checkpoint_id in kept:
            needed |= digests_of(self.load(checkpoint_id))
        used_bytes = 0
        with os.scandir(self._folder) as found:
            for entry in found:
                if entry.name.removesuffix(_SUFFIX) in kept and entry.name.endswith(_SUFFIX):
                    used_bytes += needed_bytes(entry.stat(follow_symlinks=False).st_size)
                elif not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=self._folder)
        return used_bytes + self.contents.sweep(needed)


def _open_folder(name: bytes, parent: int) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    return open_directory(name, parent)


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
