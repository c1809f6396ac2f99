"""Room on the disk: what the writers of files ask before they write.

The engine limits what a directory may hold (``engine.disk``). The kernel has no such limit, so each
writer takes the room for its bytes first.
"""

from __future__ import annotations

from typing import Protocol


class Room(Protocol):
    """The room of a guarded directory. Safe for any number of threads."""

    def take(self, n_bytes: int) -> None:
        """Count bytes that are about to be written. Raises NoSpace if there is no room."""


class Rooms(Protocol):
    """The guarded directories."""

    def of(self, fd: int) -> Room | None:
        """Return the room of the guarded directory that holds the file or directory ``fd``."""
