"""Disk: when to look, when to walk, and which tree must end so that the pod survives. Pure.

The kubelet evicts a pod whose emptyDir is over its ``sizeLimit``, whatever the pod does later, and
deletes no file. So a tree that fills a guarded directory must end while there is room left. Three
figures are available, and each figure is inexact:

  a walk           The kubelet's own figure: st_blocks of each entry on the file system of the top,
                   each inode once. Right, but costs a system call for each file. Files that are
                   deleted and still open are in no walk, and do not count for the kubelet either.
                   A walk does not see below a directory that the daemon may not read.
  file system      Used blocks of statfs(2): one system call. Of the whole node as a rule, with the
                   files of other pods, and with files that are deleted and still open. If the file
                   system is no larger than the limit, the figure replaces the walk.
  written bytes    What each tree has written since the walk before (/proc/PID/io). ``write_bytes``
                   counts what goes to a disk; it is 0 in gVisor and for tmpfs. ``wchar`` counts
                   pipes and sockets too.

The estimate is the last walk's figure and the growth of the file system since then, from its lowest
figure on, because the end of a neighbour's file would hide growth. Half of the room until the next
decision, filled by the estimate, leads to a walk; only a walk leads to a decision. Falls of the
file system's figure may hide growth, so a walk comes also when the sum of all falls could.

A directory that cannot be read counts with the growth of the file system since the last walk that
read everything, so that nobody hides bytes behind mode 000: an upper bound, unless somebody deletes
files elsewhere on the file system meanwhile. The sum of all rises would be a bound without that
exception, and on a busy node would soon blame a pod for its neighbours.

Uploads are no fault of a program. Room is taken before the write, so a walk may miss bytes that
have been taken before the walk's end; the next walk then finds the bytes. So what uploads have
taken explains growth in two walks: in the first that ends after the taking, and, as far as that
walk has not found the bytes, in the walk after.

No cascade: a dead tree gives no bytes back. After a decision the next decision comes when half of
the remaining room is gone, or when the directory is below its threshold again. A directory that is
over the threshold at the first walk is the fault of no running program.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

# The part of a limit that commands and uploads leave free: room for what is written between a look
# and the end of a tree.
RESERVE_SHARE, MAX_RESERVE_BYTES = 8, 1 << 30
# The assumed fastest growth, which with the room makes the pause between two looks.
FILL_BYTES_PER_SECOND = 2 << 30
LOOK_SECONDS = (0.05, 1.0)
# The pause after a walk is at least the walk's cost times a factor: a small one where the estimate
# asks for the walk, a large one where growth may only be hidden.
URGENT_FACTOR, REGULAR_FACTOR = 4.0, 50.0
HIDDEN_SECONDS, REGULAR_SECONDS = 8.0, 60.0
# Growth that is worth a walk or a decision even if the directory is full.
MIN_STEP_BYTES = 1 << 20
# A tree explains growth if it has written at least this share of the growth.
EXPLAINED_SHARE = 4
MAX_HISTORY = 1024


class FileSystem(NamedTuple):
    """What statfs(2) says of the file system of a directory."""

    used_bytes: int
    size_bytes: int


class Walked(NamedTuple):
    """The result of a walk."""

    used_bytes: int
    n_unreadable: int
    """Directories and entries that the walk could not read."""
    busy_seconds: float
    """The time that the walk worked."""


class NextLook(NamedTuple):
    """The consequence of a look."""

    needs_walk: bool
    pause_seconds: float
    """The time until the next look."""


class Candidate(NamedTuple):
    """A tree that may be guilty."""

    tag: int
    began: float
    """When the program, or the cell, began, on the monotonic clock."""
    write_bytes: int
    """Since the walk before, or since the tree's start."""
    wchar_bytes: int


class BlamedTree(NamedTuple):
    tag: int
    is_guess: bool
    """No figure of the kernel says that the tree wrote to a disk."""


def reserve_bytes(limit_bytes: int) -> int:
    return min(limit_bytes // RESERVE_SHARE, MAX_RESERVE_BYTES)


class DiskPolicy:
    """Judges one guarded directory from looks and walks. The first look comes before all else."""

    def __init__(self, limit_bytes: int) -> None:
        assert limit_bytes > 0
        self.limit_bytes = limit_bytes
        self.threshold_bytes = limit_bytes - reserve_bytes(limit_bytes)
        """More than this ends the tree that writes, and no upload goes over it."""
        self.walked_bytes: int | None = None
        """The figure of the last walk."""
        self.grown_bytes = 0
        """The growth from the walk before to the last walk, without uploads. While ``is_over``, the
        growth from the last walk that was not over."""
        self.is_over = False
        """A tree must end. ``settle`` is the answer."""
        self._decision_bytes = self.threshold_bytes
        """More than this in a walk leads to a decision."""
        self._is_settling = False
        self._walked_at = 0.0
        self._walk_seconds = 0.0
        self._used = self._low = self._clear_low = 0
        """Of the file system: at the last look, lowest since the last walk, and lowest since the
        last walk that read everything."""
        self._clear_bytes: int | None = None
        self._fallen = 0
        self._uploaded = 0
        """Since the last walk."""
        self._unfound = 0
        """Uploaded between the walk before and the last walk, and not in that walk's growth."""
        self._uploaded_since_look = 0
        self._total_grown = 0
        self._history: list[tuple[float, int]] = []
        """(time, growth of the file system until then), oldest first."""

    @property
    def estimated_bytes(self) -> int:
        """An upper bound of the bytes in the directory, unless a fall of the file system's figure
        hides growth."""
        grown = max(self._used - self._low, 0) + self._uploaded_since_look
        return (self.walked_bytes or 0) + max(grown, self._uploaded)

    @property
    def is_known(self) -> bool:
        """Whether there was a walk."""
        return self.walked_bytes is not None

    def is_own(self, found: FileSystem) -> bool:
        """Whether the file system holds nothing but the directory, as far as its size tells."""
        return 0 < found.size_bytes <= self.limit_bytes

    def record_look(self, now: float, found: FileSystem) -> NextLook:
        """Take note of a look; return what to do next."""
        if not self._history:
            self._low = self._clear_low = found.used_bytes
        else:
            self._fallen += max(self._used - found.used_bytes, 0)
            self._total_grown += max(found.used_bytes - self._used, 0)
        self._used = found.used_bytes
        self._low = min(self._low, self._used)
        self._clear_low = min(self._clear_low, self._used)
        self._uploaded_since_look = 0
        self._history.append((now, self._total_grown))
        if len(self._history) > MAX_HISTORY:
            del self._history[: MAX_HISTORY // 2]
        room = self._decision_bytes - self.estimated_bytes
        pause = min(max(room / FILL_BYTES_PER_SECOND, LOOK_SECONDS[0]), LOOK_SECONDS[1])
        return NextLook(self._needs_walk(now), pause)

    def _needs_walk(self, now: float) -> bool:
        if self.walked_bytes is None or self._is_settling:
            return True
        since = now - self._walked_at
        worth = self.walked_bytes + max(
            (self._decision_bytes - self.walked_bytes) // 2, MIN_STEP_BYTES
        )
        if self.estimated_bytes >= worth:
            return since >= self._walk_seconds * URGENT_FACTOR
        if since < self._walk_seconds * REGULAR_FACTOR:
            return False
        hidden = self.estimated_bytes + self._fallen >= worth
        return since >= (HIDDEN_SECONDS if hidden else REGULAR_SECONDS)

    def record_walk(self, now: float, before: FileSystem, walked: Walked) -> None:
        """Take note of a walk that began after the look ``before``; perhaps set ``is_over``."""
        used = walked.used_bytes
        if walked.n_unreadable and self._clear_bytes is not None:
            used = max(used, self._clear_bytes + self._used - self._clear_low)
        else:
            self._clear_bytes, self._clear_low = used, before.used_bytes
        is_first = self.walked_bytes is None
        grown = max(used - (self.walked_bytes or 0), 0)
        explained = min(grown, self._unfound + self._uploaded)
        self._unfound = min(self._uploaded, self._unfound + self._uploaded - explained)
        self.grown_bytes = grown - explained + (self.grown_bytes if self.is_over else 0)
        self.walked_bytes = used
        self._walked_at, self._walk_seconds = now, walked.busy_seconds
        self._low, self._fallen, self._uploaded = before.used_bytes, 0, 0
        if used <= self.threshold_bytes:
            self._decision_bytes, self._is_settling = self.threshold_bytes, False
            self.is_over = False
            return
        halfway = used + max((self.limit_bytes - used) // 2, MIN_STEP_BYTES)
        if is_first or self._is_settling:
            self._decision_bytes, self._is_settling = halfway, False
        elif used <= self._decision_bytes:
            self._decision_bytes = min(self._decision_bytes, halfway)
        elif self.grown_bytes < MIN_STEP_BYTES:  # uploads, or what the walk before has judged
            self._decision_bytes = halfway
        else:
            self.is_over = True

    def settle(self) -> None:
        """A decision has ended a tree, or found no tree to end. The next walk judges nobody, and
        sets the bound of the next decision: the tree wrote on until its end."""
        self._is_settling, self.is_over = True, False

    def take(self, n_bytes: int) -> bool:
        """Whether ``n_bytes`` of an upload fit below the threshold; if so they count from now
        on."""
        if self.estimated_bytes + n_bytes > self.threshold_bytes:
            return False
        self._uploaded += n_bytes
        self._uploaded_since_look += n_bytes
        return True

    def blame(self, now: float, candidates: Collection[Candidate]) -> BlamedTree | None:
        """Return the tree that filled the directory since the walk before; None without
        candidates.

        A tree that wrote a fair share of the growth is guilty. Without such a tree the choice is a
        guess by time: most growth per second of run time, where a second more keeps a tree that
        began a moment ago from being chosen.
        """
        if not candidates:
            return None
        share = max(self.grown_bytes // EXPLAINED_SHARE, 1)
        writer = max(candidates, key=lambda candidate: candidate.write_bytes)
        if writer.write_bytes >= share:
            return BlamedTree(writer.tag, False)
        writer = max(candidates, key=lambda candidate: candidate.wchar_bytes)
        if writer.wchar_bytes >= share:
            return BlamedTree(writer.tag, True)
        return BlamedTree(
            max(
                candidates,
                key=lambda candidate: (
                    self._grown_since(candidate.began) / (max(now - candidate.began, 0.0) + 1.0)
                ),
            ).tag,
            True,
        )

    def _grown_since(self, began: float) -> int:
        """The growth of the file system since ``began``, as far as the looks tell."""
        at = bisect.bisect_right(self._history, began, key=lambda entry: entry[0])
        before = self._history[at - 1][1] if at else self._history[0][1] if self._history else 0
        return self._total_grown - before
