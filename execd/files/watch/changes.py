"""Sums of file changes, at most a single change for each name; and the plain list. Pure.

Within a batch the changes of a name are summed: two writes are a single "modified"; created and
removed cancel out; removed and created again is "modified". The names are in the order of their
last change.

The rule that readers rely on: ``path`` is a name after the batch, and ``old_path`` a name before. A
name in ``path`` exists, unless the change is "deleted"; below a ``path`` that is no directory is
nothing. A name before the batch

  1. has gone along with the nearest move: with the name itself, or the nearest directory above,
     that is an ``old_path``; without such a move the name has stayed;
  2. is gone nevertheless, if the batch tells "deleted" or "moved" of the name or of a directory
     above, or "created" of a directory above. After a move only names strictly below the ``path``
     of the move count.

For that rule a batch tells of a removal that may not have happened rather than forget a removal: a
rename replaces without a word, so a name that a rename made may have existed before. A directory
that has come back below another directory than before is "moved" to its own name.
"""

from __future__ import annotations

from typing import Literal

import msgspec

ChangeKind = Literal["created", "modified", "deleted", "moved", "chmod"]

LostChanges = Literal["queue", "flood", "directories"]
"""Why changes are missing: the kernel's queue was full, a batch had too many changes, or not every
directory could be watched."""

# Above this number a list of changes is of no use, and the caller had better list the directory.
MAX_CHANGES = 10_000

# A directory that moves takes the changes below it along, and looking for these changes costs a
# pass over the batch.
MAX_MOVED_DIRECTORIES = 100

# Each level above an old name is looked up, and a path of 4 KiB may have 2,000.
MAX_LEVELS = 100

# (earlier change, new change) -> sum. Other pairs: the new change. "created" and "deleted", and
# whatever follows "moved", need more than a table.
_SUM: dict[tuple[ChangeKind, ChangeKind], ChangeKind] = {
    ("created", "modified"): "created",
    ("created", "chmod"): "created",
    ("created", "created"): "created",
    ("modified", "chmod"): "modified",
    ("modified", "created"): "modified",
    ("chmod", "created"): "modified",
    ("deleted", "created"): "modified",
}


class Change(msgspec.Struct, frozen=True):
    """A change of a path below a watched directory."""

    kind: ChangeKind
    path: bytes
    is_directory: bool
    old_path: bytes | None = None
    """The path before a move. A moved file may have been modified as well."""
    may_replace: bool = False
    """Whether ``path`` may have existed before a change that made the name, as for a rename."""
    is_new: bool = False
    """Whether something new is at ``path`` since the batch began, although the change is not
    "created": the name was there before."""


class Batch:
    """Collects changes and sums them."""

    def __init__(self) -> None:
        self._changes: dict[bytes, Change] = {}
        self._moved_directories: dict[bytes, bytes] = {}
        """The names after the move, by ``old_path``, of the directories in ``_changes``."""
        self._n_moved_directories = 0
        self.has_overflowed = False

    def add(self, change: Change) -> None:
        if change.kind == "moved":
            self._move(change)
        else:
            self._sum(change)
        if (
            len(self._changes) > MAX_CHANGES
            or self._n_moved_directories > MAX_MOVED_DIRECTORIES
            or (change.old_path or b"").count(b"/") > MAX_LEVELS
        ):
            self.take()
            self.has_overflowed = True
        assert len(self._changes) <= MAX_CHANGES

    def take(self) -> list[Change]:
        taken, self._changes, self._moved_directories = list(self._changes.values()), {}, {}
        return taken

    def _put(self, change: Change) -> None:
        self._pop(change.path)
        self._changes[change.path] = change
        if change.is_directory and change.old_path is not None:
            self._moved_directories[change.old_path] = change.path

    def _pop(self, path: bytes) -> Change | None:
        change = self._changes.pop(path, None)
        # Two directories have the same ``old_path`` if changes were lost, or after an exchange of
        # both (renameat2).
        if (
            change is not None
            and change.old_path is not None
            and self._moved_directories.get(change.old_path) == path
        ):
            del self._moved_directories[change.old_path]
        return change

    def move_out(self, change: Change) -> None:
        """Add the removal of a directory that still has content, out of sight."""
        assert change.kind == "deleted"
        assert change.is_directory
        forgotten = self._pop_below(change.path)
        self.add(change)
        for lost in forgotten:
            self._tell_old_path(lost)

    def _sum(self, change: Change) -> None:
        before = self._pop(change.path)
        if before is None:
            self._put(change)
        elif before.kind == "moved" and change.kind in ("modified", "chmod"):
            self._put(before)
        else:
            if change.kind != "deleted" or _may_have_existed(before):
                kind = _SUM.get((before.kind, change.kind), change.kind)
                if change.is_directory and change.kind == "created":
                    kind = "created"  # without the content of the directory that is gone
                self._put(
                    msgspec.structs.replace(
                        change,
                        kind=kind,
                        may_replace=_may_have_existed(before),
                        is_new=change.kind != "deleted"
                        and (before.is_new or before.kind == "deleted"),
                    )
                )
            self._tell_old_path(before)

    def _move(self, change: Change) -> None:
        assert change.old_path is not None
        source = self._pop(change.old_path)
        replaced = self._pop(change.path)
        told = msgspec.structs.replace(
            change,
            old_path=self._name_before(change.old_path),
            may_replace=_may_have_existed(replaced),
        )
        if source is not None and (source.kind == "created" or source.is_new):
            told = msgspec.structs.replace(told, kind="created", old_path=None)
        elif source is not None and source.kind == "moved":
            told = msgspec.structs.replace(told, old_path=source.old_path)
        self._put_moved(told)
        if change.is_directory:
            # A directory that is replaced is empty: removals were told below, which are not true of
            # the moved directory.
            self._pop_below(change.path)
            for below in self._pop_below(change.old_path):
                path = change.path + below.path[len(change.old_path) :]
                self._put_moved(msgspec.structs.replace(below, path=path))
        if source is not None and source.may_replace:
            self._tell_removal(change.old_path, change.is_directory)
        if replaced is not None:
            self._tell_old_path(replaced)

    def _put_moved(self, change: Change) -> None:
        if change.old_path == change.path == self._name_after(change.path):  # moved out and back
            change = msgspec.structs.replace(change, kind="modified", old_path=None)
        self._put(change)

    def _name_before(self, path: bytes) -> bytes:
        """Return the name before the batch, if a directory above has moved."""
        above = path
        while above := above.rpartition(b"/")[0]:
            change = self._changes.get(above)
            if change is not None and change.old_path is not None:
                return change.old_path + path[len(above) :]
        return path

    def _name_after(self, path: bytes) -> bytes | None:
        """Return where a name before the batch is now, if nothing but directories above the name
        have changed. None: gone with a directory that another directory has replaced."""
        root = b""
        above = path
        while above := above.rpartition(b"/")[0]:
            if above in self._moved_directories:
                root = self._moved_directories[above]
                path = root + path[len(above) :]
                break
        above = path
        while (above := above.rpartition(b"/")[0]) != root:
            change = self._changes.get(above)
            if change is not None and change.kind == "moved":
                return None
        return path

    def _pop_below(self, directory: bytes) -> list[Change]:
        self._n_moved_directories += 1
        paths = [path for path in self._changes if path.startswith(directory + b"/")]
        return [change for path in paths if (change := self._pop(path)) is not None]

    def _tell_old_path(self, forgotten: Change) -> None:
        """Tell that the old name of a move is gone, if no change in the batch tells that."""
        if forgotten.old_path is not None:
            path = self._name_after(forgotten.old_path)
            if path is not None:
                self._tell_removal(path, forgotten.is_directory)

    def _tell_removal(self, path: bytes, is_directory: bool) -> None:
        there = self._changes.get(path)
        # Not by ``_put``: the name keeps the place of its last change, and ``old_path`` stays.
        self._changes[path] = (
            Change("deleted", path, is_directory)
            if there is None
            else msgspec.structs.replace(there, may_replace=True)
        )


class ChangeList:
    """Collects every single change in order, for readers that count on each of them. Equal changes
    in a row are one."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self.has_overflowed = False

    def add(self, change: Change) -> None:
        if self._changes and self._changes[-1] == change:
            return
        self._changes.append(change)
        if len(self._changes) > MAX_CHANGES:
            self._changes.clear()
            self.has_overflowed = True

    def move_out(self, change: Change) -> None:
        """Add the removal of a directory that still has content, out of sight."""
        self.add(change)

    def take(self) -> list[Change]:
        taken, self._changes = self._changes, []
        return taken


def _may_have_existed(change: Change | None) -> bool:
    """Whether the name existed, or may have existed, before the batch."""
    if change is None or change.kind in ("modified", "chmod", "deleted"):
        return True
    return change.may_replace
