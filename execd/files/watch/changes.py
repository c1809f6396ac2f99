"""Sums of file changes, at most a single change for each name. Pure.

Within a batch the changes of a name are summed: two writes are a single "modified"; created and
removed cancel out; removed and created again is "modified". The names are in the order of their
last change.
"""

from __future__ import annotations

from typing import Literal

import msgspec

ChangeKind = Literal["created", "modified", "deleted", "moved", "chmod"]

# Above this number a list of changes is of no use, and the caller had better list the directory.
MAX_CHANGES = 10_000

# (earlier change, new change) -> sum. None: no change.
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
    """The path before a move. A moved file may have been modified as well."""


class Batch:
    """Collects changes and sums them."""

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
        assert len(self._changes) <= MAX_CHANGES

    def take(self) -> list[Change]:
        taken, self._changes = list(self._changes.values()), {}
        return taken
