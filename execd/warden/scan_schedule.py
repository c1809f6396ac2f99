"""When the warden looks: at how many processes there are, and at each of them (a scan). Pure: told
the time, and what a look took.

Between two looks lie so many times what the last one took, within bounds: so that looking costs a
bounded share of one CPU, however many processes there are.
"""

from __future__ import annotations

import math

# For the sake of trees that are being ended or signaled.
KILL_SCAN_FACTOR, KILL_SCAN_SECONDS = 1.0, (0.005, 0.1)
# One system call; in gVisor it costs ten times as much as in Linux.
COUNT_SECONDS, COUNT_SECONDS_IN_GVISOR = 0.02, 0.05
# The accounts are brought up to date every 1 to 5 s, sooner for a young job: most end young, and
# would have no figures at all.
WATCH_SCAN_FACTOR, WATCH_SCAN_SECONDS = 50.0, (1.0, 5.0)
FIRST_WATCH_SECONDS, WATCH_AGE_SHARE = 0.05, 0.25


class Schedule:
    """Times are monotonic seconds."""

    def __init__(self) -> None:
        self.next_count = 0.0
        self._next_kill_scan = 0.0
        self._next_watch_scan = self._earliest_watch_scan = 0.0
        self._scanned_count = 0

    def next_due(self, *, kills: bool, counts: bool) -> float:
        """The next look of any kind. ``kills``: there are trees that are being ended or signaled.
        ``counts``: some have limits."""
        return min(self.next_count if counts else math.inf, self.next_scan_due(kills=kills))

    def next_scan_due(self, *, kills: bool) -> float:
        return min(self._next_kill_scan, self._next_watch_scan) if kills else self._next_watch_scan

    def is_worth_a_scan(self, n_tasks: int, limit: int, now: float) -> bool:
        """Whether there are so many more tasks than at the last scan that a tree may have passed
        its limit, or the scan is long ago."""
        grown = n_tasks - self._scanned_count
        return grown >= max(limit, self._scanned_count // 4) or now >= self._earliest_watch_scan

    def record_job(self, now: float, *, is_only: bool) -> None:
        if is_only:
            self.next_count = now + COUNT_SECONDS
            self._next_watch_scan = math.inf
        self._next_watch_scan = min(
            self._next_watch_scan, max(self._earliest_watch_scan, now + FIRST_WATCH_SECONDS)
        )

    def record_kill(self, now: float) -> None:
        self._next_kill_scan = now + KILL_SCAN_SECONDS[0]

    def record_count(self, now: float, *, in_gvisor: bool) -> None:
        self.next_count = now + (COUNT_SECONDS_IN_GVISOR if in_gvisor else COUNT_SECONDS)

    def record_scan(
        self, now: float, busy_seconds: float, count: int, youngest_seconds: float
    ) -> None:
        """A scan that took ``busy_seconds`` has found ``count`` processes; the youngest job is so
        old."""
        self._scanned_count = count
        self._next_kill_scan = now + _pause(busy_seconds, KILL_SCAN_FACTOR, KILL_SCAN_SECONDS)
        self._earliest_watch_scan = now + busy_seconds * WATCH_SCAN_FACTOR
        low = min(
            max(youngest_seconds * WATCH_AGE_SHARE, FIRST_WATCH_SECONDS), WATCH_SCAN_SECONDS[0]
        )
        self._next_watch_scan = now + _pause(
            busy_seconds, WATCH_SCAN_FACTOR, (low, WATCH_SCAN_SECONDS[1])
        )


def _pause(took_seconds: float, factor: float, bounds: tuple[float, float]) -> float:
    return min(max(took_seconds * factor, bounds[0]), bounds[1])
