"""What happened to files, told once a name. Pure.

Within one batch a name has one change, the sum of what happened to it: written twice is modified
once, made and removed is nothing at all, removed and made again is modified. The order of names is
that of their last change.
"""

from __future__ import annotations

from typing import Literal

import msgspec

ChangeKind = Literal["created", "modified", "deleted", "moved", "chmod"]

# More are no news but a flood: the caller had better look for himself.
MAX_CHANGES = 10_000

# What was, and what happens now -> what it comes to. None: as if nothing had happened.
_SUM: dict[tuple[ChangeKind, ChangeKind], ChangeKind | None] = {
    ("created", "modified"): "created",
    ("created", "chmod"): "created",
    ("created", "created"): "created",
    ("created", "deleted"): None,
    ("modified", "chmod"): "modified",
    ("moved", "modified"): "moved",
    ("moved", "chmod"): "moved",
    ("deleted", "created"): "modified",
}


class Change(msgspec.Struct, frozen=True):
    kind: ChangeKind
    path: bytes
    is_directory: bool
    old_path: bytes | None = None
    """Of what was moved, and may have been modified as well."""


class Batch:
    """Changes as they come, in sums."""

    def __init__(self) -> None:
        self._changes: dict[bytes, Change] = {}
        self.has_overflowed = False

    def add(self, change: Change) -> None:
        before = self._changes.pop(change.path, None)
        kind: ChangeKind | None = change.kind
        old_path = change.old_path
        if before is not None and change.kind != "moved":
            kind = _SUM.get((before.kind, change.kind), change.kind)
            if kind == "moved":
                old_path = before.old_path
        if change.kind == "moved" and change.old_path is not None:
            source = self._changes.pop(change.old_path, None)
            if source is not None and source.kind == "created":
                kind, old_path = "created", None
            elif source is not None and source.kind == "moved":
                old_path = source.old_path
        if kind is not None:
            self._changes[change.path] = Change(kind, change.path, change.is_directory, old_path)
        if len(self._changes) > MAX_CHANGES:
            self._changes.clear()
            self.has_overflowed = True

    def take(self) -> list[Change]:
        taken, self._changes = list(self._changes.values()), {}
        return taken
