"""The schedule of the warden's counts and scans. Pure: callers pass the time, and the cost of each
scan.

A count asks the kernel for the number of tasks (``task_meter``). A scan reads each process of
``/proc`` (``process_tree``). The pause after a scan is a multiple of the scan's CPU time, within
bounds, so scans take a bounded share of one CPU however many processes there are.
"""

from __future__ import annotations

import math

# Scans while trees are being ended or signaled. Bounds in seconds.
KILL_SCAN_FACTOR, KILL_SCAN_SECONDS = 1.0, (0.005, 0.1)
# Scans that keep the figures of jobs up to date come every 1 to 5 s. They come sooner for a young
# job: most jobs end young, and would have no figures at all.
WATCH_SCAN_FACTOR, WATCH_SCAN_SECONDS = 50.0, (1.0, 5.0)
FIRST_WATCH_SECONDS, WATCH_AGE_SHARE = 0.05, 0.25
# While no user code lives, a scan a minute looks for a process that the scan before has missed.
QUIET_SCAN_SECONDS = 60.0


class Schedule:
    """When the next count and the next scan are due. Times are monotonic seconds."""

    def __init__(self, count_seconds: float) -> None:
        """``count_seconds``: between two counts."""
        self._count_seconds = count_seconds
        self.next_count = 0.0
        self._next_kill_scan = 0.0
        self._next_watch_scan = self._earliest_watch_scan = 0.0
        self._scanned_count = 0

    def next_due(self, *, kills: bool, counts: bool) -> float:
        """When the next count or scan is due; infinite if there is none.

        ``kills``: there are trees that are being ended or signaled. ``counts``: some tree has a
        limit of processes.
        """
        return min(self.next_count if counts else math.inf, self.next_scan_due(kills=kills))

    def next_scan_due(self, *, kills: bool) -> float:
        """When the next scan is due; ``kills`` as for ``next_due``."""
        return min(self._next_kill_scan, self._next_watch_scan) if kills else self._next_watch_scan

    def is_worth_a_scan(self, n_tasks: int, limit: int, now: float) -> bool:
        """Whether a tree may have passed its limit: tasks have grown much since the last scan, or
        the last scan is long ago."""
        grown = n_tasks - self._scanned_count
        return grown >= max(limit, self._scanned_count // 4) or now >= self._earliest_watch_scan

    def record_job(self, now: float, *, is_only: bool) -> None:
        """Schedule a count and a scan for a job that has begun. ``is_only``: no further job is
        there."""
        if is_only:
            self.next_count = now + self._count_seconds
            self._next_watch_scan = math.inf
        self.record_change(now)

    def record_change(self, now: float) -> None:
        """Schedule a scan after a request that may begin user code."""
        self._next_watch_scan = min(
            self._next_watch_scan, max(self._earliest_watch_scan, now + FIRST_WATCH_SECONDS)
        )

    def record_quiet(self, now: float) -> None:
        """Schedule the next scan after a scan that has found no user code."""
        self._next_watch_scan = now + QUIET_SCAN_SECONDS

    def record_kill(self, now: float) -> None:
        """Schedule a scan for a kill that has begun."""
        self._next_kill_scan = now + KILL_SCAN_SECONDS[0]

    def record_count(self, now: float) -> None:
        """Schedule the next count."""
        self.next_count = now + self._count_seconds

    def record_scan(
        self, now: float, busy_seconds: float, count: int, youngest_seconds: float
    ) -> None:
        """Schedule the next scan, after a scan that took ``busy_seconds`` of CPU time and found
        ``count`` tasks. ``youngest_seconds``: the age of the youngest job."""
        self._scanned_count = count
        self._next_kill_scan = now + _pause(busy_seconds, KILL_SCAN_FACTOR, KILL_SCAN_SECONDS)
        self._earliest_watch_scan = now + busy_seconds * WATCH_SCAN_FACTOR
        low = min(
            max(youngest_seconds * WATCH_AGE_SHARE, FIRST_WATCH_SECONDS), WATCH_SCAN_SECONDS[0]
        )
        self._next_watch_scan = now + _pause(
            busy_seconds, WATCH_SCAN_FACTOR, (low, WATCH_SCAN_SECONDS[1])
        )


def _pause(busy_seconds: float, factor: float, bounds: tuple[float, float]) -> float:
    assert bounds[0] <= bounds[1]
    return min(max(busy_seconds * factor, bounds[0]), bounds[1])
