"""Memory: when to look, and which tree must end so that the pod does not. ``Watch`` is pure; ``Guard`` reads and keeps the time.

There is no cgroup to ask, and a sandbox that runs out of memory dies whole. Four figures are at hand, and each lies in its way:

  what is used     MemTotal - MemAvailable of /proc/meminfo. The kernel's own, but nobody's in particular; outside gVisor it is the
                   machine's. What was given back shows late: in gVisor after 75 to 165 ms; in Linux pages linger on the lists of
                   the CPUs, hundreds of MB for seconds, so these are counted as free (/proc/zoneinfo; gVisor has none).
  anonymous        Active(anon) + Inactive(anon) + Unevictable: what processes, tmpfs and memfd hold. Shows at once, both ways.
  shared           Shmem: the part of it in tmpfs and memfd (in Linux also in shared mappings), whoever filled them.
  a tree's RSS     The sum over its processes. Needs a scan. Pages shared after a fork count in full in each process, and so do
                   libraries; memory in a memfd or tmpfs file counts in none. An upper bound, of the part that is mapped.

A tree is over its limit only if its RSS and the growth of anonymous memory since its start both are: forks of a large process raise
only the one, a neighbour only the other. Growth counts from the lowest figure since the start, or a neighbour's end would hide it.

The reserve is judged by what is used; when too little is left the largest tree by RSS is ended, provided that it holds more than
shared memory has grown since it began. Otherwise some tmpfs or memfd is the largest: then no process is blamed, it is only said.

No cascade: after a verdict the threshold is half of what is left, until the reserve is whole again or SETTLE_SECONDS are over. A
dead tree's memory on its way back fits into that; a second tree that still grows does not, and is ended at once. The same holds for
memory that nobody had to be ended for, that of a file that was removed: what anonymous memory fell by lately, as far as used memory
exceeds it by more than before.

The reserve is not judged before a reading has shown it whole: a pod that begins without it, or a /proc/meminfo that tells of another
machine, is no running program's fault.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from typing import TYPE_CHECKING, NamedTuple

from execd.proc.messages import MemoryShort

if TYPE_CHECKING:
    from collections.abc import Collection

MEMINFO_BYTES = 8192
# Of a machine with a hundred CPUs. What is cut off is only not counted as free.
ZONEINFO_BYTES = 256 * 1024
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Faster than memory can be filled: 1.3 GB/s a thread in gVisor, some 3 natively. Looks come closer as room shrinks.
FILL_BYTES_PER_SECOND = 8 << 30
LOOK_SECONDS = (0.01, 0.25)
# Between two looks, and between two scans they call for, lie so many times what the last one took.
COST_FACTOR = 20.0
# Growth since the last scan that is worth one, so that a peak between two of the regular ones is not missed.
NOTABLE_BYTES = 64 << 20
# Where there is no room left, so little growth is worth one, and only a hog can grow at a rate that makes this pace cost much.
URGENT_BYTES, URGENT_FACTOR = 16 << 20, 2.0
_UNKNOWN = 1 << 63
# Thrice what gVisor was seen to need to take back a gigabyte.
SETTLE_SECONDS = 0.5

_NAMES = rb"MemTotal", rb"MemAvailable", rb"Active\(anon\)", rb"Inactive\(anon\)", rb"Unevictable", rb"Shmem"
_FIELDS = re.compile(rb".*?".join(rb"^%s: +(\d+) kB$" % name for name in _NAMES), re.DOTALL | re.MULTILINE)
_LINGERING = re.compile(rb"^ +count: +(\d+)$", re.MULTILINE)


class Reading(NamedTuple):
    """What /proc/meminfo says, proc_meminfo(5)."""

    total_bytes: int
    used_bytes: int
    anonymous_bytes: int
    shared_bytes: int


def parse_meminfo(text: bytes) -> Reading:
    """Raises ValueError."""
    found = _FIELDS.search(text)
    if found is None:
        raise ValueError("not a meminfo as Linux 3.14 and gVisor write it")
    total, available, active, inactive, unevictable, shared = (int(number) * 1024 for number in found.groups())
    return Reading(total, total - available, active + inactive + unevictable, shared)


def parse_zoneinfo(text: bytes) -> int:
    """Bytes that are free and on the lists of the CPUs."""
    return sum(map(int, _LINGERING.findall(text))) * PAGE_BYTES


class Account:
    """What is known of one tree's memory."""

    def __init__(self, tag: int, limit_bytes: int, before: Reading | None) -> None:
        self.tag = tag
        self.limit_bytes = limit_bytes
        """0: none."""
        self.anonymous_before = before.anonymous_bytes if before else 0
        self.shared_before = before.shared_bytes if before else 0
        self.tree_bytes = 0
        """Its RSS at the last scan."""
        self.peak_tree_bytes = 0
        self.ending = False
        """It has got KILL."""

    def scanned(self, tree_bytes: int, *, ending: bool) -> None:
        self.tree_bytes = tree_bytes
        self.peak_tree_bytes = max(self.peak_tree_bytes, tree_bytes)
        self.ending = ending


class Look(NamedTuple):
    scan: bool
    """The trees' memory must be known now."""
    pause_seconds: float
    """The next look."""


class Verdict(NamedTuple):
    end: list[Account]
    unexplained: bool
    """The reserve is touched and no tree is to blame; said once."""


class _Lately(NamedTuple):
    """Extremes of the readings of a while."""

    peak_anonymous_bytes: int = 0
    lowest_rest_bytes: int = _UNKNOWN
    """Used and not anonymous: in gVisor next to nothing, but for what has been given back and does not show yet."""


class Watch:
    """Told the readings and the accounts, says what follows. ``configure`` comes before the first tree, if at all."""

    def __init__(self) -> None:
        self.reserve_bytes = 0
        self._pod_bytes = 0
        self._whole_once = False
        self._threshold = 0
        self._settled_at = 0.0
        self._said = False
        self._scanned_at = _UNKNOWN
        self._scan_after = self._urgent_scan_after = 0.0
        self._lately = self._before = _Lately()
        self._lately_until = 0.0

    def configure(self, reserve_bytes: int, pod_bytes: int) -> None:
        """``reserve_bytes`` 0 turns it off; ``pod_bytes`` 0 means all there is."""
        self.reserve_bytes = self._threshold = reserve_bytes
        self._pod_bytes = pod_bytes

    def left_bytes(self, reading: Reading) -> int:
        """Negative where the pod's size is set below what is in use."""
        return min(self._pod_bytes or reading.total_bytes, reading.total_bytes) - reading.used_bytes

    def look(self, now: float, reading: Reading, accounts: Collection[Account]) -> Look:
        left = self.notice(now, reading)
        self._scanned_at = min(self._scanned_at, reading.anonymous_bytes)
        room = left - self._threshold if self.reserve_bytes and self._whole_once else reading.total_bytes
        for account in accounts:
            account.anonymous_before = min(account.anonymous_before, reading.anonymous_bytes)
            account.shared_before = min(account.shared_before, reading.shared_bytes)
            if account.limit_bytes and not account.ending:
                room = min(room, account.anonymous_before + account.limit_bytes - reading.anonymous_bytes)
        grown = reading.anonymous_bytes - self._scanned_at
        pause = min(max(room / FILL_BYTES_PER_SECOND, LOOK_SECONDS[0]), LOOK_SECONDS[1])
        due = (room <= 0 or grown > NOTABLE_BYTES) and now >= self._scan_after
        urgent = room <= 0 and grown > URGENT_BYTES and now >= self._urgent_scan_after
        return Look(due or urgent, pause)

    def judge(self, now: float, reading: Reading, accounts: Collection[Account], scan_seconds: float) -> Verdict:
        """After a scan that took so long has brought the accounts up to date."""
        self._scanned_at = reading.anonymous_bytes
        self._scan_after, self._urgent_scan_after = now + scan_seconds * COST_FACTOR, now + scan_seconds * URGENT_FACTOR
        left = self.notice(now, reading)
        end = [account for account in accounts if not account.ending and self._over_limit(account, reading)]
        if not self.reserve_bytes or not self._whole_once or left >= self._threshold:
            return Verdict(end, False)
        coming_back = max(
            sum(account.tree_bytes for account in accounts if account.ending or account in end), self._given_back_bytes(reading)
        )
        # Half of what was left is gone although a tree is on its way out: another one grows.
        settling = self._threshold < self.reserve_bytes
        if settling or coming_back < self.reserve_bytes - left:
            candidates = [
                account
                for account in accounts
                if not account.ending and account not in end and account.tree_bytes > reading.shared_bytes - account.shared_before
            ]
            if not candidates:
                unexplained = not self._said and not end
                self._said = self._said or unexplained
                return Verdict(end, unexplained)
            end.append(max(candidates, key=lambda account: account.tree_bytes))
        # Half of what is left, or as much below nothing: it must be lower.
        self._threshold, self._settled_at = left - max(abs(left) // 2, 1), now + SETTLE_SECONDS
        return Verdict(end, False)

    def notice(self, now: float, reading: Reading) -> int:
        """Take note of a reading; what is left."""
        if now >= self._lately_until:
            self._before = self._lately if now < self._lately_until + SETTLE_SECONDS else _Lately()
            self._lately, self._lately_until = _Lately(), now + SETTLE_SECONDS
        peak, lowest = self._lately
        rest = reading.used_bytes - reading.anonymous_bytes
        self._lately = _Lately(max(peak, reading.anonymous_bytes), min(lowest, rest))
        left = self.left_bytes(reading)
        if left >= self.reserve_bytes:
            self._whole_once, self._said = True, False
            self._threshold = self.reserve_bytes
        elif now >= self._settled_at:
            self._threshold = self.reserve_bytes
        return left

    def _given_back_bytes(self, reading: Reading) -> int:
        """What is in use only because it was given back no longer than SETTLE_SECONDS ago, or twice that."""
        fallen = max(self._lately.peak_anonymous_bytes, self._before.peak_anonymous_bytes) - reading.anonymous_bytes
        rest = reading.used_bytes - reading.anonymous_bytes
        return min(fallen, rest - min(self._lately.lowest_rest_bytes, self._before.lowest_rest_bytes))

    def _over_limit(self, account: Account, reading: Reading) -> bool:
        limit = account.limit_bytes
        return 0 < limit < min(account.tree_bytes, reading.anonymous_bytes - account.anonymous_before)


class Guard:
    """The watch at work: reads /proc/meminfo while trees run that need it, within COST_FACTOR."""

    def __init__(self) -> None:
        self.watch = Watch()
        self.next_look = math.inf
        """Monotonic time; never, while nobody needs it."""
        self._meminfo = -1
        self._zoneinfo = -1

    def configure(self, reserve_bytes: int, pod_bytes: int) -> str | None:
        """Returns why memory cannot be watched, if it cannot."""
        self.watch.configure(reserve_bytes, pod_bytes)
        reading = self._read()
        if reading is None:
            return "memory is not watched, and no limit of it enforced: /proc/meminfo cannot be read"
        self.watch.notice(time.monotonic(), reading)
        return None

    def begin(self, tag: int, limit_bytes: int) -> Account:
        """Before the tree's first process is there."""
        before = self._read() if limit_bytes or self.watch.reserve_bytes else None
        if before is not None:
            now = time.monotonic()
            self.watch.notice(now, before)
            self.next_look = min(self.next_look, now + LOOK_SECONDS[0])
        return Account(tag, limit_bytes, before)

    def look(self, accounts: Collection[Account]) -> bool:
        """The cheap look; whether it calls for a scan, with ``judge`` after it."""
        began = time.monotonic()
        needed = self.watch.reserve_bytes > 0 or any(account.limit_bytes for account in accounts)
        reading = self._read() if needed else None
        if reading is None:
            self.next_look = math.inf
            return False
        look = self.watch.look(began, reading, accounts)
        now = time.monotonic()
        self.next_look = now + max(look.pause_seconds, (now - began) * COST_FACTOR)
        return look.scan

    def judge(self, accounts: Collection[Account], scan_seconds: float) -> tuple[list[Account], MemoryShort | None]:
        """After a scan that took so long: whom to end, and whether to say that nobody is to blame."""
        reading = self._read() if self.next_look < math.inf else None
        if reading is None:
            return [], None
        end, unexplained = self.watch.judge(time.monotonic(), reading, accounts, scan_seconds)
        return end, MemoryShort(self.watch.left_bytes(reading), reading.shared_bytes) if unexplained else None

    def _read(self) -> Reading | None:
        """Through descriptors that are kept for life: opening costs five times the reading in gVisor."""
        try:
            if self._meminfo < 0:
                self._meminfo = os.open("/proc/meminfo", os.O_RDONLY | os.O_CLOEXEC)
                with contextlib.suppress(OSError):
                    self._zoneinfo = os.open("/proc/zoneinfo", os.O_RDONLY | os.O_CLOEXEC)
            reading = parse_meminfo(os.pread(self._meminfo, MEMINFO_BYTES, 0))
            if self._zoneinfo >= 0 and self.watch.left_bytes(reading) < self.watch.reserve_bytes:
                lingering = parse_zoneinfo(os.pread(self._zoneinfo, ZONEINFO_BYTES, 0))
                reading = reading._replace(used_bytes=reading.used_bytes - lingering)
        except (OSError, ValueError):
            return None  # said once, by ``configure``
        return reading
