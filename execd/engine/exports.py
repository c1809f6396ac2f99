"""The changes since a checkpoint as a patch or as an archive, made while the caller reads."""

from __future__ import annotations

import errno
import os
from functools import partial
from typing import TYPE_CHECKING, Literal

from execd.engine.files.transfers import Transfer
from execd.errors import Conflict
from execd.files.paths import blame

if TYPE_CHECKING:
    from collections.abc import Generator

    from execd.engine.checkpoints import Checkpoints
    from execd.engine.files.threads import FileThreads

_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
ExportFormat = Literal["patch", "tar", "tar.gz"]


class Export(Transfer):
    """The bytes of an export: an async context manager."""

    def __init__(self, threads: FileThreads, pieces: Generator[bytes, None, None]) -> None:
        super().__init__(threads, pieces.close)
        self._pieces = pieces

    async def read(self) -> bytes:
        """Read the next bytes. No bytes: the end.

        Raises Conflict if a file changes or the checkpoint is deleted meanwhile, PermissionDenied;
        the bytes read so far are then no complete export.
        """
        return await self.run(self._next)

    def _next(self) -> bytes:
        from execd.files.archive.pack import next_chunk  # see lean_imports

        try:
            return next_chunk(self._pieces)
        except OSError as error:
            if error.errno in _GONE:
                raise Conflict(
                    "a changed file, or the checkpoint, is gone; repeat the request"
                ) from None
            raise blame(error, "changes") from error


async def export(
    checkpoints: Checkpoints, checkpoint_id: str, kind: ExportFormat, path: str | None
) -> Export:
    """Begin to export what has changed since. Names begin below the root of the checkpoint; with
    several roots, below the root of the tree. ``path`` and errors: see ``Checkpoints.changes``."""
    from execd.files.checkpoints.packed_changes import pack_changes  # see lean_imports
    from execd.files.checkpoints.patch import Sources, patch

    changes = await checkpoints.changes(checkpoint_id, path)
    roots = [root.path for root in checkpoints.get(checkpoint_id).roots]
    prefixes = {root: os.fsencode(root.strip("/") + "/").lstrip(b"/") for root in roots}
    if len(roots) == 1:
        prefixes = {roots[0]: b""}
    sources = Sources(partial(checkpoints.open_old, checkpoint_id), checkpoints.open_new)
    if kind == "patch":
        return Export(checkpoints.threads, patch(changes, prefixes, sources))
    return Export(checkpoints.threads, pack_changes(changes, prefixes, sources, kind))
