"""Memory: when to look, and which tree must end so that the pod does not. ``MemoryPolicy`` decides;
``MemoryMonitor`` reads.

No cgroup counts a tree, and a sandbox that runs out of memory dies whole. Four figures are at hand
(``memory_meter``; where a cgroup limits the whole pod the first three are the cgroup's, and neither
late nor anybody else's), and each lies in its way:

  what is used     MemTotal - MemAvailable of /proc/meminfo. The kernel's own, but nobody's in
                   particular; outside gVisor it is the machine's. What was given back shows late:
                   in gVisor after 75 to 165 ms; in Linux pages linger on the lists of the CPUs,
                   hundreds of MB for seconds, so these are counted as free (/proc/zoneinfo; gVisor
                   has none).
  anonymous        Active(anon) + Inactive(anon) + Unevictable: what processes, tmpfs and memfd
                   hold. Shows at once, both ways.
  shared           Shmem: the part of it in tmpfs and memfd (in Linux also in shared mappings),
                   whoever filled them.
  a tree's RSS     The sum over its processes. Needs a scan. Pages shared after a fork count in full
                   in each process, and so do libraries; memory in a memfd or tmpfs file counts in
                   none. An upper bound, of the part that is mapped.

A tree is over its limit only if its RSS and the growth of anonymous memory since its start both
are: forks of a large process raise only the one, a neighbour only the other. Growth counts from the
lowest figure since the start, or a neighbour's end would hide it.

The reserve is judged by what is used; when too little is left the largest tree by RSS is ended,
provided that it holds more than shared memory has grown since it began. Otherwise some tmpfs or
memfd is the largest: then no process is blamed, it is only said.

No cascade: after a verdict the threshold is half of what is left, until the reserve is whole again
or SETTLE_SECONDS are over. A dead tree's memory on its way back fits into that; a second tree that
still grows does not, and is ended at once. The same holds for memory that nobody had to be ended
for, that of a file that was removed: what anonymous memory fell by lately, as far as used memory
exceeds it by more than before.

The reserve is not judged before a reading has shown it whole: a pod that begins without it, or a
/proc/meminfo that tells of another machine, is no running program's fault.
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

# Faster than memory can be filled: 1.3 GB/s a thread in gVisor, some 3 natively. Looks come closer
# as room shrinks.
FILL_BYTES_PER_SECOND = 8 << 30
SAMPLE_SECONDS = (0.01, 0.25)
# Between two looks, and between two scans they call for, lie so many times what the last one took.
COST_FACTOR = 20.0
# Growth since the last scan that is worth one, so that a peak between two of the regular ones is
# not missed.
NOTABLE_BYTES = 64 << 20
# Where there is no room left, so little growth is worth one, and only a hog can grow at a rate that
# makes this pace cost much.
URGENT_BYTES, URGENT_FACTOR = 16 << 20, 2.0
_UNKNOWN = 1 << 63
# Thrice what gVisor was seen to need to take back a gigabyte.
SETTLE_SECONDS = 0.5


class Account:
    """What is known of one tree's memory."""

    def __init__(self, tag: int, limit_bytes: int, before: Reading | None) -> None:
        self.tag = tag
        self.limit_bytes = limit_bytes
        """0: none."""
        # Unknown until the first look, if nobody has looked lately: a few milliseconds of growth
        # are not counted then.
        self.anonymous_before = before.anonymous_bytes if before else _UNKNOWN
        self.shared_before = before.shared_bytes if before else _UNKNOWN
        self.tree_bytes = 0
        """Its RSS at the last scan."""
        self.peak_tree_bytes = 0
        self.is_ending = False
        """It has got KILL."""

    def grown_bytes(self, reading: Reading) -> int:
        """An upper bound of what the tree has taken since its start: what it maps, and what all
        together have grown by."""
        return min(self.tree_bytes, reading.anonymous_bytes - self.anonymous_before)

    def scanned(self, tree_bytes: int, *, ending: bool) -> None:
        self.tree_bytes = tree_bytes
        self.peak_tree_bytes = max(self.peak_tree_bytes, tree_bytes)
        self.is_ending = ending


class NextSample(NamedTuple):
    needs_scan: bool
    """The trees' memory must be known now."""
    pause_seconds: float
    """The next look."""


class MemoryDecision(NamedTuple):
    to_end: list[Account]
    is_unexplained: bool
    """The reserve is touched and no tree is to blame; said once."""


class _Extremes(NamedTuple):
    """Extremes of the readings of a while."""

    peak_anonymous_bytes: int = 0
    lowest_rest_bytes: int = _UNKNOWN
    """Used and not anonymous: in gVisor next to nothing, but for what has been given back and does
    not show yet."""


class MemoryPolicy:
    """Told the readings and the accounts, says what follows. ``configure`` comes before the first
    tree, if at all."""

    def __init__(self) -> None:
        self.reserve_bytes = 0
        self._pod_bytes = 0
        self._only_growth = False
        self.has_been_whole = False
        """Some reading has shown the reserve whole."""
        self._threshold = 0
        self._settled_at = 0.0
        self._has_reported = False
        self._scanned_at = _UNKNOWN
        self._scan_after = self._urgent_scan_after = 0.0
        self._recent = self._previous = _Extremes()
        self._recent_until = 0.0

    def configure(self, reserve_bytes: int, pod_bytes: int, *, only_growth: bool = False) -> None:
        """``reserve_bytes`` 0 turns it off; ``pod_bytes`` 0 means all there is. For ``only_growth``
        see messages.Configure."""
        self.reserve_bytes = self._threshold = reserve_bytes
        self._pod_bytes = pod_bytes
        self._only_growth = only_growth

    def left_bytes(self, reading: Reading) -> int:
        """Negative where the pod's size is set below what is in use."""
        return min(self._pod_bytes or reading.total_bytes, reading.total_bytes) - reading.used_bytes

    def plan_next_sample(
        self, now: float, reading: Reading, accounts: Collection[Account]
    ) -> NextSample:
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
        due = (room <= 0 or grown > NOTABLE_BYTES) and now >= self._scan_after
        urgent = room <= 0 and grown > URGENT_BYTES and now >= self._urgent_scan_after
        return NextSample(due or urgent, pause)

    def decide(
        self, now: float, reading: Reading, accounts: Collection[Account], scan_seconds: float
    ) -> MemoryDecision:
        """After a scan that took so long has brought the accounts up to date."""
        self._scanned_at = reading.anonymous_bytes
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
        coming_back = max(
            sum(account.tree_bytes for account in accounts if account.is_ending or account in end),
            self._given_back_bytes(reading),
        )
        # Half of what was left is gone although a tree is on its way out: another one grows.
        settling = self._threshold < self.reserve_bytes
        if settling or coming_back < self.reserve_bytes - left:
            candidates = [
                account
                for account in self._eligible_accounts(left, reading, accounts)
                if account not in end
            ]
            if not candidates:
                is_unexplained = not self._has_reported and not end
                self._has_reported = self._has_reported or is_unexplained
                return MemoryDecision(end, is_unexplained)
            end.append(
                max(candidates, key=lambda account: self._attributed_bytes(account, reading))
            )
        # Half of what is left, or as much below nothing: it must be lower.
        self._threshold, self._settled_at = left - max(abs(left) // 2, 1), now + SETTLE_SECONDS
        return MemoryDecision(end, False)

    def record(self, now: float, reading: Reading) -> int:
        """Take note of a reading; what is left."""
        if now >= self._recent_until:
            self._previous = (
                self._recent if now < self._recent_until + SETTLE_SECONDS else _Extremes()
            )
            self._recent, self._recent_until = _Extremes(), now + SETTLE_SECONDS
        peak, lowest = self._recent
        rest = reading.used_bytes - reading.anonymous_bytes
        self._recent = _Extremes(max(peak, reading.anonymous_bytes), min(lowest, rest))
        left = self.left_bytes(reading)
        if left >= self.reserve_bytes:
            self.has_been_whole, self._has_reported = True, False
            self._threshold = self.reserve_bytes
        elif now >= self._settled_at:
            self._threshold = self.reserve_bytes
        return left

    def _eligible_accounts(
        self, left: int, reading: Reading, accounts: Collection[Account]
    ) -> list[Account]:
        """The trees that may end for the reserve.

        Where others fill the memory too, trees are to blame only if together they have grown by
        what is missing, or by as much as is left: else their end would not save the machine.
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
        """What a tree answers for."""
        return account.grown_bytes(reading) if self._only_growth else account.tree_bytes

    def _given_back_bytes(self, reading: Reading) -> int:
        """What is in use only because it was given back no longer than SETTLE_SECONDS ago, or twice
        that."""
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
    """The watch at work: reads a meter while trees run that need it, within COST_FACTOR."""

    def __init__(self) -> None:
        self.policy = MemoryPolicy()
        self.next_look = math.inf
        """Monotonic time; never, while nobody needs it."""
        self._cgroup = ""
        self._meter: Meter | None = None
        self._latest: Reading | None = None
        self._latest_at = -math.inf

    def configure(self, configuration: Configure) -> str | None:
        """Returns why memory cannot be watched, if it cannot."""
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
        """Configured again, or asked for a reading, it opens its meter again."""
        if self._meter is not None:
            self._meter.close()
            self._meter = None

    def open_account(self, tag: int, limit_bytes: int) -> Account:
        """Before the tree's first process is there. Without a limit of its own a tree costs no
        reading."""
        now = time.monotonic()
        if limit_bytes:
            return Account(tag, limit_bytes, self._read(now))
        return Account(tag, 0, self._latest if now < self._latest_at + SAMPLE_SECONDS[1] else None)

    def begin(self, account: Account) -> None:
        """Its tree is there, and runs user code: look soon, and go on looking."""
        # The pace of looks allows for the fastest growth of all: one more tree changes it only by a
        # limit of its own.
        if account.limit_bytes or (self.policy.reserve_bytes and self.next_look == math.inf):
            self.next_look = min(self.next_look, time.monotonic() + SAMPLE_SECONDS[0])

    def look(self, accounts: Collection[Account]) -> bool:
        """The cheap look; whether it calls for a scan, with ``judge`` after it. ``accounts``: of
        trees that run user code."""
        began = time.monotonic()
        needed = any(account.limit_bytes or self.policy.reserve_bytes for account in accounts)
        reading = self._read(began) if needed else None
        if reading is None:
            self.next_look = math.inf
            return False
        plan = self.policy.plan_next_sample(began, reading, accounts)
        now = time.monotonic()
        self.next_look = now + max(plan.pause_seconds, (now - began) * COST_FACTOR)
        return plan.needs_scan

    def judge(
        self, accounts: Collection[Account], scan_seconds: float
    ) -> tuple[list[Account], MemoryShort | None]:
        """After a scan that took so long: whom to end, and whether to say that nobody is to
        blame."""
        now = time.monotonic()
        reading = self._read(now) if self.next_look < math.inf else None
        if reading is None:
            return [], None
        end, is_unexplained = self.policy.decide(now, reading, accounts, scan_seconds)
        return end, MemoryShort(
            self.policy.left_bytes(reading), reading.shared_bytes
        ) if is_unexplained else None

    def reading(self) -> Reading | None:
        """What is so now; ``watch.left_bytes`` tells what it leaves. None: it cannot be read."""
        return self._read(time.monotonic())

    def _read(self, now: float) -> Reading | None:
        try:
            if self._meter is None:
                self._meter = open_meter(self._cgroup)
            reading = self._meter.read()
            if self.policy.left_bytes(reading) < self.policy.reserve_bytes:
                reading = self._meter.refine(reading)
        except (OSError, ValueError):
            return None  # said once, by ``configure``
        self.policy.record(now, reading)
        self._latest, self._latest_at = reading, now
        return reading
