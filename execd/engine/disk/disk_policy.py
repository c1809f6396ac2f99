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
  written bytes    What each tree has written (/proc/PID/io). ``write_bytes`` counts what goes to a
                   disk; it is 0 in gVisor and for tmpfs. ``wchar`` counts pipes and sockets too.
                   Neither counts what fallocate(2) takes, nor what a mapping writes in gVisor, nor
                   there what a child wrote that lived between two reads. CPU time shows that a tree
                   may have done so.

The estimate is the last walk's figure and the growth of the file system since then, from its lowest
figure on, because the end of a neighbour's file would hide growth. A walk beside a fast writer
counts an unknown part of the bytes that are written meanwhile: the estimate goes on from the figure
within these bounds that is nearest to the estimate before. Half of the room until the next
decision, filled by the estimate, leads to a walk, and a walk leads to a decision. Falls of the file
system's figure may hide growth: when all falls together could hide that much, a walk is due too.

A walk over many files takes seconds, and a writer needs less for the rest of the room. So the looks
go on during a walk, and where a walk takes that long and the estimate has passed half of the room
above the decision, the estimate decides. Because the file system may be the node's, growth counts
in this decision up to twice of what the pod's own trees have written since the walk before: a file
takes more on the disk than its bytes.

A directory that cannot be read counts with the growth of the file system since the last walk that
read everything, so that nobody hides bytes behind mode 000: an upper bound, unless somebody deletes
files elsewhere on the file system meanwhile. The sum of all rises would be a bound without that
exception, and on a busy node would soon blame a pod for its neighbours.

Uploads are no fault of a program. Room is taken before the write, so a walk may miss bytes that
have been taken before the walk's end; the next walk then finds the bytes. So the bytes of uploads
excuse growth in the next walk that ends, and what that walk has not found excuses growth in the
walk after.

Guilty is who writes when the bound is crossed: the tree that wrote most from the look before the
crossing on. A tree that has written nothing since then never ends. If no tree is found guilty, the
bytes from that look on count in the next decision too.

No cascade: a dead tree gives no bytes back. After a decision the next decision comes when half of
the remaining room is gone, or when the directory is below its threshold again. A directory that is
over the threshold at the first walk is the fault of no running program.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

    from execd.files.disk_usage import DiskUsage

# The part of a limit that commands and uploads leave free: room for what is written between a look
# and the end of a tree.
RESERVE_SHARE, MAX_RESERVE_BYTES = 8, 1 << 30
# The assumed fastest growth, which with the room makes the pause between two looks.
FILL_BYTES_PER_SECOND = 2 << 30
LOOK_SECONDS = (0.05, 1.0)
# The pause after a walk is at least the walk's cost times a factor: 1 where the estimate asks for a
# decision, a small one where the estimate asks for the walk, a large one where growth may only be
# hidden.
URGENT_FACTOR, REGULAR_FACTOR = 4.0, 50.0
HIDDEN_SECONDS, REGULAR_SECONDS = 8.0, 60.0
# Growth that is worth a walk or a decision even if the directory is full.
MIN_STEP_BYTES = 1 << 20
# A walk that takes longer than this cannot be waited for when a decision is due.
PROMPT_WALK_SECONDS = 0.1
# A decision by the estimate takes growth for the trees' own up to this multiple of their bytes.
BLOCKS_FACTOR = 2
# A tree wrote if it wrote at least this share of the growth since the crossing. In gVisor a read
# meets few of the processes of a tree that starts a process for each file.
WRITER_SHARE = 64


class FileSystem(NamedTuple):
    """What statfs(2) says of the file system of a directory."""

    used_bytes: int
    size_bytes: int


class NextLook(NamedTuple):
    """The consequence of a look."""

    needs_walk: bool
    is_near: bool
    """A decision may be near: what the trees have written should be known as of this look."""
    is_due: bool
    """The estimate is over the bound of the decision: the crossing may lie before this look, and no
    walk has told yet."""
    pause_seconds: float
    """The time until the next look."""


class Candidate(NamedTuple):
    """A tree that may be guilty, with its figures since the look before the crossing, or since the
    tree's start."""

    tag: int
    write_bytes: int
    wchar_bytes: int
    cpu_ms: int


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
        self.found_bytes = 0
        """The figure that led to ``is_over``."""
        self._decision_bytes = self.threshold_bytes
        """More than this in a walk leads to a decision."""
        self._is_settling = False
        self._walked_at = 0.0
        self._walk_seconds = 0.0
        self._base_bytes = 0
        """The bytes at the beginning of the last walk, as the walk and the estimate tell."""
        self.used_bytes = self._low = self._clear_low = 0
        """Of the file system: at the last look, lowest since the last walk, and lowest since the
        last walk that read everything."""
        self._clear_bytes: int | None = None
        self._fallen = 0
        self._uploaded = 0
        """Since the last walk."""
        self._unfound = 0
        """Uploaded between the walk before and the last walk, and not in that walk's growth."""
        self._uploaded_since_look = 0
        self._has_looked = False
        self.is_unsolved = False
        """The last decision found no guilty tree."""

    @property
    def estimated_bytes(self) -> int:
        """An upper bound of the bytes in the directory, unless a fall of the file system's figure
        hides growth."""
        grown = max(self.used_bytes - self._low, 0) + self._uploaded_since_look
        return self._base_bytes + max(grown, self._uploaded)

    @property
    def is_known(self) -> bool:
        """Whether there was a walk."""
        return self.walked_bytes is not None

    def is_own(self, found: FileSystem) -> bool:
        """Whether the file system holds nothing but the directory, as far as its size tells."""
        return 0 < found.size_bytes <= self.limit_bytes

    def record_look(self, now: float, found: FileSystem) -> NextLook:
        """Take note of a look; return what to do next."""
        if self._has_looked:
            self._fallen += max(self.used_bytes - found.used_bytes, 0)
        else:
            self._low = self._clear_low = found.used_bytes
        self._has_looked = True
        self.used_bytes = found.used_bytes
        self._low = min(self._low, self.used_bytes)
        self._clear_low = min(self._clear_low, self.used_bytes)
        self._uploaded_since_look = 0
        room = self._decision_bytes - self.estimated_bytes
        pause = min(max(room / FILL_BYTES_PER_SECOND, LOOK_SECONDS[0]), LOOK_SECONDS[1])
        return NextLook(self._needs_walk(now), self._is_near, self._is_due, pause)

    @property
    def _is_near(self) -> bool:
        room = (self.limit_bytes - self.threshold_bytes) // 2
        near_bytes = min(self._worth_bytes, self._decision_bytes - room)
        return self.is_over or self.estimated_bytes >= near_bytes

    @property
    def _is_due(self) -> bool:
        return self.estimated_bytes > self._decision_bytes

    @property
    def _worth_bytes(self) -> int:
        """An estimate of so much is worth a walk."""
        used = self._base_bytes
        return used + max((self._decision_bytes - used) // 2, MIN_STEP_BYTES)

    def _needs_walk(self, now: float) -> bool:
        if self.walked_bytes is None or self._is_settling:
            return True
        since = now - self._walked_at
        if self.estimated_bytes >= self._worth_bytes:
            return since >= self._walk_seconds * (1.0 if self._is_due else URGENT_FACTOR)
        if since < self._walk_seconds * REGULAR_FACTOR:
            return False
        hidden = self.estimated_bytes + self._fallen >= self._worth_bytes
        return since >= (HIDDEN_SECONDS if hidden else REGULAR_SECONDS)

    def record_walk(self, now: float, before: FileSystem, walked: DiskUsage) -> None:
        """Take note of a walk between the look ``before`` and the last look; perhaps set
        ``is_over``."""
        used = walked.used_bytes
        if walked.n_unreadable and self._clear_bytes is not None:
            used = max(used, self._clear_bytes + self.used_bytes - self._clear_low)
        else:
            self._clear_bytes, self._clear_low = used, before.used_bytes
        is_first = self.walked_bytes is None
        grown = max(used - (self.walked_bytes or 0), 0)
        explained = min(grown, self._unfound + self._uploaded)
        self._unfound = min(self._uploaded, self._unfound + self._uploaded - explained)
        self.grown_bytes = grown - explained + (self.grown_bytes if self.is_over else 0)
        self.walked_bytes = used
        self._walked_at, self._walk_seconds = now, walked.busy_seconds
        estimated = self._base_bytes + max(before.used_bytes - self._low, 0)
        grown_meanwhile = max(self.used_bytes - before.used_bytes, 0)
        self._base_bytes = min(used, max(estimated, used - grown_meanwhile))
        self._low, self._fallen, self._uploaded = before.used_bytes, 0, 0
        if used <= self.threshold_bytes:
            self._decision_bytes, self._is_settling = self.threshold_bytes, False
            self.is_over = self.is_unsolved = False
            return
        halfway = self._halfway(used)
        if is_first or self._is_settling:
            self._decision_bytes, self._is_settling = halfway, False
        elif used <= self._decision_bytes:
            self._decision_bytes = min(self._decision_bytes, halfway)
        elif self.grown_bytes < MIN_STEP_BYTES:  # uploads, or what the walk before has judged
            self._decision_bytes = halfway
        else:
            self.is_over, self.found_bytes = True, used

    def judge_estimate(self, written_bytes: int) -> None:
        """Perhaps set ``is_over`` without a walk. ``written_bytes``: by all trees since the walk
        before."""
        before = self._base_bytes + self._uploaded
        grown = min(self.estimated_bytes - before, written_bytes * BLOCKS_FACTOR)
        if (
            self._walk_seconds > PROMPT_WALK_SECONDS
            and before + grown > self._halfway(self._decision_bytes)
            and grown >= MIN_STEP_BYTES
            and not self.is_over
        ):
            self.is_over, self.found_bytes, self.grown_bytes = True, before + grown, grown

    def _halfway(self, used_bytes: int) -> int:
        return used_bytes + max((self.limit_bytes - used_bytes) // 2, MIN_STEP_BYTES)

    def settle(self, *, is_solved: bool) -> None:
        """A decision has ended a tree (``is_solved``), or found no tree to end. The next walk
        judges nobody, and sets the bound of the next decision: the tree wrote on until its end."""
        self._is_settling, self.is_over = True, False
        self.is_unsolved = not is_solved
        self._decision_bytes = self._halfway(self.estimated_bytes)

    def take(self, n_bytes: int) -> bool:
        """Whether ``n_bytes`` of an upload fit below the threshold; if so they count from now
        on."""
        if self.estimated_bytes + n_bytes > self.threshold_bytes:
            return False
        self._uploaded += n_bytes
        self._uploaded_since_look += n_bytes
        return True

    def blame(self, candidates: Collection[Candidate], used_before: int) -> BlamedTree | None:
        """Return the tree that writes; None if no tree is known to write. ``used_before``: of the
        file system, at the look from which the candidates' figures count.

        CPU time alone is a reason only if the directory has grown on after a decision that found
        nobody.
        """
        grown = min(self.grown_bytes, self.used_bytes - used_before)
        share = max(grown // WRITER_SHARE, 1)
        for field, least in (("write_bytes", share), ("wchar_bytes", share), ("cpu_ms", 1)):
            if field == "cpu_ms" and not self.is_unsolved:
                return None
            writer = max(candidates, key=operator.attrgetter(field), default=None)
            if writer is not None and getattr(writer, field) >= least:
                return BlamedTree(writer.tag, field != "write_bytes")
        return None
