"""Memory: when to sample, and which tree must end so that the pod survives. ``MemoryPolicy``
decides; ``MemoryMonitor`` reads.

No cgroup counts a tree, and a sandbox without memory dies as a whole. Four figures are available
(``memory_meter``). Where a cgroup limits the whole pod, the first three are the cgroup's: they show
at once, and no program outside the pod moves them. Each figure is inexact:

  used memory      MemTotal - MemAvailable of /proc/meminfo: the kernel's own figure, but of all
                   processes together, and outside gVisor of the whole machine. Memory given back
                   shows late: in gVisor after 75 to 165 ms; in Linux pages linger on the lists of
                   the CPUs, hundreds of MB for seconds, so lingering pages count as free
                   (/proc/zoneinfo, absent in gVisor).
  anonymous        Active(anon) + Inactive(anon) + Unevictable: memory of processes, tmpfs and
                   memfd. Shows at once in both directions.
  shared           Shmem: the part of anonymous memory in tmpfs and memfd, whoever filled the
                   files; in Linux also in shared mappings.
  RSS of a tree    The sum over the processes of the tree. Needs a scan. Pages shared after a fork
                   count in full in each process, and so do libraries; memory in a memfd or tmpfs
                   file counts in no process. An upper bound of the mapped part.

A tree is over its limit only if two figures are over the limit: the tree's RSS, and the growth of
anonymous memory since the tree's start. Forks of a large process raise only the RSS; a neighbour
raises only the anonymous memory. Growth counts from the lowest figure since the start, because the
end of a neighbour would hide growth.

The reserve is judged by used memory. When too little is left, the tree with the largest RSS ends,
provided that the tree holds more than the growth of shared memory since the tree's start. Otherwise
a tmpfs or memfd file is the largest consumer: no tree ends, and the warden only reports the
shortage.

No cascade. After a decision the threshold is half of the remaining memory, until the reserve is
whole again or SETTLE_SECONDS are over. The memory of a dead tree on the way back fits into that
half. A second tree that grows does not fit, and ends at once. A dying tree may grow on until the
KILL takes effect, and a dead tree shows no RSS while the memory still counts as used: so the growth
of a dying tree cannot be measured. The growth of the living trees can. A second tree ends only if
the living trees alone have taken half of the memory that was left, or an innocent tree would end
for the growth of the dying tree. However a tree has ended, the memory of a process without an
address space counts as coming back until the process is a zombie. Memory of a removed file is
treated like the memory of a dead tree: the recent fall of anonymous memory counts as coming back,
as far as used memory exceeds anonymous memory by more than before.

In gVisor the pod dies with the last byte, and beside busy programs a scan of a few processes takes
0.1 to 0.5 s. So the memory that the programs take in that time, at their present pace, counts as
used already (``_record_pace``), a scan begins as much earlier, and trees end together that would
fill the rest (``_fast_growing``).

The reserve is not judged before a reading has shown the reserve whole. A pod that begins without
its reserve, or a /proc/meminfo of a different machine, is not the fault of a running program.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, NamedTuple

from execd.proc.memory_meter import open_meter
from execd.proc.messages import Configure, MemoryShort

if TYPE_CHECKING:
    from collections.abc import Collection

    from execd.proc.memory_meter import Meter, Reading

# The assumed fastest growth of all trees together. Measured: 1.3 GB/s per thread in gVisor, about 3
# GB/s natively. The bounds of the pause between two samples follow.
FILL_BYTES_PER_SECOND = 8 << 30
SAMPLE_SECONDS = (0.01, 0.25)
# The pause after a scan, or after a sample natively, is at least its CPU time times this factor.
COST_FACTOR = 20.0
# Growth since the last scan that justifies a new scan, so that no peak between two regular scans is
# missed.
NOTABLE_BYTES = 64 << 20
# Without room for growth a smaller growth justifies a scan, with a shorter pause. Only a
# fast-growing tree can make the shorter pause expensive.
URGENT_BYTES, URGENT_FACTOR = 16 << 20, 0.5
_UNKNOWN = 1 << 63
# Three times the longest time that gVisor was seen to need to take back a gigabyte.
SETTLE_SECONDS = 0.5
# A shortage that no tree explains is over once the reserve was whole for so long; the next is told
# again. Figures of gVisor jump about the edge of the reserve.
EPISODE_SECONDS = 5.0
# In gVisor a sample is late by so much, and a scan takes this multiple of the scan before.
LATE_SECONDS, SCAN_FACTOR = 0.1, 2.0
# Growth is judged earlier by so many reserves at the most.
MAX_LEAD_RESERVES = 2
# How long the memory of a tree needs to come back in gVisor while further trees keep the CPUs busy.
RETURN_SECONDS = 1.0


class Account:
    """The known memory figures of a tree."""

    def __init__(self, tag: int, limit_bytes: int, before: Reading | None) -> None:
        self.tag = tag
        self.limit_bytes = limit_bytes
        """0: no limit."""
        # Unknown until the first sample if there is no recent sample. Then the growth of the first
        # few milliseconds is not counted.
        self.anonymous_before = before.anonymous_bytes if before else _UNKNOWN
        self.shared_before = before.shared_bytes if before else _UNKNOWN
        self.tree_bytes = 0
        """RSS of the tree at the last scan."""
        self.peak_tree_bytes = 0
        self.lately_bytes = 0
        """Growth of the RSS from the scan before, or from the start, to the last scan."""
        self.is_ending = False
        """The tree has got KILL."""
        self.coming_back_bytes = 0
        """The memory of processes of the tree that give their memory back. A dying process gives
        its memory to the kernel before the process becomes a zombie, and shows no RSS from the
        beginning of this step: a step of more than SETTLE_SECONDS, beside busy processes."""

    def grown_bytes(self, reading: Reading) -> int:
        """Return an upper bound of the memory that the tree has taken since its start.

        The bound is the smaller of two figures: the mapped memory of the tree, and the growth of
        all trees together.
        """
        return min(self.tree_bytes, reading.anonymous_bytes - self.anonymous_before)

    def record_scan(self, tree_bytes: int, *, ending: bool, coming_back_bytes: int = 0) -> None:
        """Note the tree's figures in a scan: the RSS, and the memory on its way back. ``ending``:
        the tree has got KILL."""
        self.coming_back_bytes = coming_back_bytes
        self.lately_bytes = max(tree_bytes - self.tree_bytes, 0)
        self.tree_bytes = tree_bytes
        self.peak_tree_bytes = max(self.peak_tree_bytes, tree_bytes)
        self.is_ending = ending


def unused_bytes(reading: Reading, size_bytes: int, runtime_bytes: int) -> int:
    """Return what is left of a pod. ``runtime_bytes``: gVisor's own memory."""
    # Half at most: an estimate must not take the whole pod away from its programs.
    return size_bytes - reading.used_bytes - min(runtime_bytes, size_bytes // 2)


class NextSample(NamedTuple):
    """The consequence of a sample."""

    needs_scan: bool
    """The RSS of the trees must be known now."""
    pause_seconds: float
    """The time until the next sample."""


class MemoryDecision(NamedTuple):
    """The consequence of a scan."""

    to_end: list[Account]
    is_unexplained: bool
    """The reserve is touched and no tree is the cause. True once per shortage."""


class _Extremes(NamedTuple):
    """Extremes of the readings of a period."""

    peak_anonymous_bytes: int = 0
    lowest_rest_bytes: int = _UNKNOWN
    """Used memory minus anonymous memory: in gVisor almost only memory given back that still shows
    as used."""


class MemoryPolicy:
    """Decides from readings and accounts. ``configure`` comes before the first tree, if at all.

    States of the threshold: the whole reserve; or, for SETTLE_SECONDS after a decision, about half
    of the memory that was left at the decision. The threshold never exceeds the reserve.
    """

    def __init__(self) -> None:
        self.reserve_bytes = 0
        self.runtime_bytes = 0
        """Memory of the pod that the meter does not show: gVisor's own (``sentry_memory``)."""
        self._lead_bytes = 0
        """What the trees would take until a scan has ended, at the pace of the last readings."""
        self._asked_at = math.inf
        """When a sample asked for the scan under way."""
        self._scan_seconds = 0.0
        """The time that the last such scan took. Beside busy trees a scan takes a hundred times as
        long as its CPU time alone."""
        self._pace = 0.0
        """Growth of the programs in bytes a second, at the last new figures."""
        self._paced_at = self._paced_bytes = 0.0
        self._n_trees = 0
        """Trees that ran user code at the last sample."""
        self._pod_bytes = 0
        self._only_growth = False
        self.has_been_whole = False
        """A reading has shown the reserve whole."""
        self._threshold = 0
        self._settled_at = 0.0
        self._left_at_decision = 0
        self._tree_bytes_at_decision: dict[int, int] = {}
        """RSS of the trees at the last decision, by tag."""
        self._has_told = self._is_short = False
        self._short_at = 0.0
        """When the reserve was last not whole."""
        self._scanned_at = _UNKNOWN
        self._decided_at = 0.0
        self._scan_after = self._urgent_scan_after = 0.0
        self._recent = self._previous = _Extremes()
        self._recent_until = 0.0

    def configure(self, reserve_bytes: int, pod_bytes: int, *, only_growth: bool = False) -> None:
        """Set the reserve and the size of the pod.

        ``reserve_bytes`` 0 switches the reserve off. ``pod_bytes`` 0 means all memory of the meter.
        For ``only_growth`` see ``messages.Configure``.
        """
        self.reserve_bytes = self._threshold = reserve_bytes
        self._pod_bytes = pod_bytes
        self._only_growth = only_growth

    def left_bytes(self, reading: Reading) -> int:
        """Return the remaining memory. Negative if more than the configured size is in use."""
        size_bytes = min(self._pod_bytes or reading.total_bytes, reading.total_bytes)
        return unused_bytes(reading, size_bytes, self.runtime_bytes) - self._lead_bytes

    def plan_next_sample(
        self, now: float, reading: Reading, accounts: Collection[Account]
    ) -> NextSample:
        """Return when to sample next, and whether a scan must come first.

        The pause shrinks with the room: the memory that may still be filled before the threshold or
        before a limit.
        """
        self._n_trees = len(accounts)
        left = self.record(now, reading)
        self._scanned_at = min(self._scanned_at, reading.anonymous_bytes)
        room = (
            left - self._threshold
            if self.reserve_bytes and self.has_been_whole
            else reading.total_bytes
        )
        for account in accounts:
            account.anonymous_before = min(account.anonymous_before, reading.anonymous_bytes)
            account.shared_before = min(account.shared_before, reading.shared_bytes)
            if account.limit_bytes and not account.is_ending:
                room = min(
                    room, account.anonymous_before + account.limit_bytes - reading.anonymous_bytes
                )
        grown = reading.anonymous_bytes - self._scanned_at
        pause = min(max(room / FILL_BYTES_PER_SECOND, SAMPLE_SECONDS[0]), SAMPLE_SECONDS[1])
        due = (room <= self._lead_bytes or grown > NOTABLE_BYTES) and now >= self._scan_after
        is_growing = max(grown, self._lead_bytes) > URGENT_BYTES
        urgent = room <= self._lead_bytes and is_growing and now >= self._urgent_scan_after
        if due or urgent:
            self._asked_at = now
        return NextSample(due or urgent, pause)

    def decide(
        self, now: float, reading: Reading, accounts: Collection[Account], scan_seconds: float
    ) -> MemoryDecision:
        """Return the trees to end. To be called after a scan has updated the accounts.

        ``scan_seconds``: the CPU time of the scan, which sets the earliest time of the next scan.
        """
        self._scanned_at = reading.anonymous_bytes
        since_scan, self._decided_at = now - self._decided_at, now
        if now > self._asked_at:
            self._scan_seconds, self._asked_at = now - self._asked_at, math.inf
        self._scan_after, self._urgent_scan_after = (
            now + scan_seconds * COST_FACTOR,
            now + scan_seconds * URGENT_FACTOR,
        )
        left = self.record(now, reading)
        end = [
            account
            for account in accounts
            if not account.is_ending and self._is_over_limit(account, reading)
        ]
        if not self.reserve_bytes or not self.has_been_whole or left >= self._threshold:
            return MemoryDecision(end, False)
        settling = self._threshold < self.reserve_bytes
        if settling and self._left_at_decision - self._grown(accounts) >= self._threshold:
            return MemoryDecision(end, False)
        coming_back = sum(
            account.coming_back_bytes
            + (account.tree_bytes if account.is_ending or account in end else 0)
            for account in accounts
        )
        coming_back = max(coming_back, self.given_back_bytes(reading))
        is_coming_back = coming_back >= self.reserve_bytes - left
        # Half of the remaining memory is gone although a tree is about to end: a second tree grows.
        if settling or not is_coming_back:
            candidates = [
                account
                for account in self._eligible_accounts(left, reading, accounts)
                if account not in end
            ]
            if not candidates:
                is_unexplained = not self._has_told and not end
                self._has_told = self._has_told or is_unexplained
                return MemoryDecision(end, is_unexplained)
            guilty = max(candidates, key=lambda account: self._attributed_bytes(account, reading))
            end.append(guilty)
            candidates.remove(guilty)
            end += self._fast_growing(candidates, left + self._lead_bytes, since_scan)
        # Half of the remaining memory. If the remainder is negative, half as much again below the
        # remainder: the new threshold must be lower.
        self._threshold, self._settled_at = left - max(abs(left) // 2, 1), now + SETTLE_SECONDS
        self._left_at_decision = left
        self._tree_bytes_at_decision = {account.tag: account.tree_bytes for account in accounts}
        return MemoryDecision(end, False)

    def _grown(self, accounts: Collection[Account]) -> int:
        """Return by how much the trees that have not got KILL grew since the last decision."""
        return sum(
            max(account.tree_bytes - self._tree_bytes_at_decision.get(account.tag, 0), 0)
            for account in accounts
            if not account.is_ending
        )

    def record(self, now: float, reading: Reading) -> int:
        """Take note of a reading; return the remaining memory."""
        if now >= self._recent_until:
            self._previous = (
                self._recent if now < self._recent_until + SETTLE_SECONDS else _Extremes()
            )
            self._recent, self._recent_until = _Extremes(), now + SETTLE_SECONDS
        self._record_pace(now, reading)
        peak, lowest = self._recent
        rest = reading.used_bytes - reading.anonymous_bytes
        self._recent = _Extremes(max(peak, reading.anonymous_bytes), min(lowest, rest))
        left = self.left_bytes(reading)
        if left >= self.reserve_bytes:
            self.has_been_whole, self._threshold = True, self.reserve_bytes
            self._is_short = False
        else:
            if not self._is_short and now >= self._short_at + EPISODE_SECONDS:
                self._has_told = False
            self._is_short, self._short_at = True, now
            if now >= self._settled_at:
                self._threshold = self.reserve_bytes
        assert self._threshold <= self.reserve_bytes, "a decision only lowers the threshold"
        return left

    def _fast_growing(
        self, accounts: Collection[Account], left: int, since_scan: float
    ) -> list[Account]:
        """Return the trees that would fill the rest before the memory of an ended tree is back.

        Only in gVisor, where that takes long beside busy trees. As many as needed, the fastest
        first. ``since_scan``: the seconds in which the trees grew lately. A program that takes much
        at once may stop: a tree is expected to take at most as much again as the tree holds.
        """
        if not self.runtime_bytes:
            return []
        periods = RETURN_SECONDS / max(since_scan, SAMPLE_SECONDS[0])
        expected = {
            account: min(account.lately_bytes * periods, account.tree_bytes) for account in accounts
        }
        growing = sorted(expected, key=expected.__getitem__, reverse=True)
        n_ending = 0
        while sum(expected[each] for each in growing[n_ending:]) > max(left, URGENT_BYTES):
            n_ending += 1
        return growing[:n_ending]

    def _record_pace(self, now: float, reading: Reading) -> None:
        """In gVisor the pod does not survive a late decision: growth of programs is judged earlier,
        by as much as the programs take until a scan has ended. Files in memory are of no program,
        and where no trees are known (in the daemon's stand-in) there is nobody to judge."""
        if not self.runtime_bytes:
            return
        private_bytes = reading.anonymous_bytes - reading.shared_bytes
        seconds = now - self._paced_at
        # Releases of 2026 renew the figures only after 0.1 s and more.
        is_new = private_bytes != self._paced_bytes and seconds >= SAMPLE_SECONDS[0]
        if is_new or seconds > SETTLE_SECONDS:
            self._pace = max(private_bytes - self._paced_bytes, 0) / seconds
            self._paced_at, self._paced_bytes, seconds = now, private_bytes, 0.0
        lead_seconds = LATE_SECONDS + SCAN_FACTOR * self._scan_seconds + seconds
        most_bytes = MAX_LEAD_RESERVES * self.reserve_bytes if self._n_trees else 0
        self._lead_bytes = min(int(self._pace * lead_seconds), most_bytes)

    def _eligible_accounts(
        self, left: int, reading: Reading, accounts: Collection[Account]
    ) -> list[Account]:
        """Return the trees that may end for the reserve.

        Where further programs fill the memory too (``only_growth``), trees are the cause only if
        their joint growth is at least the missing memory or the remaining memory. With less growth
        the end of the trees would not save the machine.
        """
        if self._only_growth:
            grown = sum(max(account.grown_bytes(reading), 0) for account in accounts)
            if grown < min(self.reserve_bytes - left, max(left, 0)):
                return []
        return [
            account
            for account in accounts
            if not account.is_ending
            and self._attributed_bytes(account, reading)
            > reading.shared_bytes - account.shared_before
        ]

    def _attributed_bytes(self, account: Account, reading: Reading) -> int:
        """Return the memory that a tree answers for."""
        return account.grown_bytes(reading) if self._only_growth else account.tree_bytes

    def given_back_bytes(self, reading: Reading) -> int:
        """Return the memory that still counts as used although a process gave the memory back, no
        longer ago than one or two times SETTLE_SECONDS."""
        fallen = (
            max(self._recent.peak_anonymous_bytes, self._previous.peak_anonymous_bytes)
            - reading.anonymous_bytes
        )
        rest = reading.used_bytes - reading.anonymous_bytes
        return min(
            fallen, rest - min(self._recent.lowest_rest_bytes, self._previous.lowest_rest_bytes)
        )

    def _is_over_limit(self, account: Account, reading: Reading) -> bool:
        return 0 < account.limit_bytes < account.grown_bytes(reading)


class MemoryMonitor:
    """Samples a meter while trees that need samples run.

    Natively COST_FACTOR bounds the CPU time of samples: /proc/zoneinfo is long on a large machine.
    In gVisor nothing does but SAMPLE_SECONDS. There a clock shows the time of other trees too: the
    0.2 ms of a sample last 20 ms beside busy trees, and in a pause of twenty times as long eight
    programs took 400 MiB.
    """

    def __init__(self) -> None:
        self.policy = MemoryPolicy()
        self.next_sample = math.inf
        """Monotonic time of the next sample; infinity while no tree needs samples."""
        self._cgroup = ""
        self._meter: Meter | None = None
        self._latest: Reading | None = None
        self._latest_at = -math.inf

    def configure(self, configuration: Configure) -> str | None:
        """Open the meter. Return the reason if memory cannot be watched, else None."""
        self.close()
        self._cgroup = configuration.cgroup
        self.policy.configure(
            configuration.reserve_bytes,
            configuration.pod_bytes,
            only_growth=configuration.only_growth,
        )
        reading = self._read(time.monotonic())
        if reading is None:
            source = self._cgroup or "/proc/meminfo"
            return f"memory is not watched, and no limit of it enforced: {source} cannot be read"
        return None

    def close(self) -> None:
        """Close the meter. ``configure`` and the next reading open the meter again."""
        if self._meter is not None:
            self._meter.close()
            self._meter = None

    def open_account(self, tag: int, limit_bytes: int) -> Account:
        """Return the account of a new tree, before the first process of the tree exists.

        A tree without a limit costs no reading: a recent sample, if there is any, is the starting
        point.
        """
        now = time.monotonic()
        if limit_bytes:
            return Account(tag, limit_bytes, self._read(now))
        return Account(tag, 0, self._latest if now < self._latest_at + SAMPLE_SECONDS[1] else None)

    def begin_sampling(self, account: Account) -> None:
        """Sample soon, because the account's tree has begun to run user code."""
        # The pause between samples allows for the fastest growth of all trees together. A further
        # tree shortens the pause only by a limit of its own.
        if account.limit_bytes or (self.policy.reserve_bytes and self.next_sample == math.inf):
            self.next_sample = min(self.next_sample, time.monotonic() + SAMPLE_SECONDS[0])

    def sample(self, accounts: Collection[Account]) -> bool:
        """Sample the meter; return whether a scan is needed, followed by ``decide``.

        ``accounts``: of the trees that run user code.
        """
        began, began_busy = time.monotonic(), time.thread_time()
        needed = any(account.limit_bytes or self.policy.reserve_bytes for account in accounts)
        reading = self._read(began) if needed else None
        if reading is None:
            self.next_sample = math.inf
            return False
        plan = self.policy.plan_next_sample(began, reading, accounts)
        busy_seconds = 0.0 if self.policy.runtime_bytes else time.thread_time() - began_busy
        self.next_sample = time.monotonic() + max(plan.pause_seconds, busy_seconds * COST_FACTOR)
        return plan.needs_scan

    def decide(
        self, accounts: Collection[Account], scan_seconds: float
    ) -> tuple[list[Account], MemoryShort | None]:
        """Return the trees to end after a scan, and a report if no tree is the cause of a shortage.

        ``scan_seconds``: the CPU time of the scan.
        """
        now = time.monotonic()
        reading = self._read(now) if self.next_sample < math.inf else None
        if reading is None:
            return [], None
        end, is_unexplained = self.policy.decide(now, reading, accounts, scan_seconds)
        return end, MemoryShort(
            self.policy.left_bytes(reading), reading.shared_bytes
        ) if is_unexplained else None

    def reading(self) -> Reading | None:
        """Return a reading of now, or None if the meter cannot be read."""
        return self._read(time.monotonic())

    def _read(self, now: float) -> Reading | None:
        try:
            if self._meter is None:
                self._meter = open_meter(self._cgroup)
            reading = self._meter.read()
            if self.policy.left_bytes(reading) < self.policy.reserve_bytes:
                reading = self._meter.refine(reading)
        except (OSError, ValueError):
            return None  # reported once, by ``configure``
        self.policy.record(now, reading)
        self._latest, self._latest_at = reading, now
        return reading
