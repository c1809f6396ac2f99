"""Finds out whether the sandbox was restored from a checkpoint. Pure: clock readings in, a finding
or nothing out.

A gVisor of 2026 tells (``proc.checkpoint_file``), and then nothing else counts. On another platform
the sign is a jump of the clock: a restored virtual machine goes on with its old monotonic clock,
and with the right time of day, so the time of day has moved further than the monotonic clock. A
process that is stopped, or gets no CPU, sees both clocks move alike.

A gVisor before 2026 shows no sign: it moves the monotonic clock by the time that has passed, as if
the processes had not been scheduled. There the platform has to report the restore. Rejected: to
compare the network's counters with the daemon's own figures, in a thread that wakes after each
stop. That took 180 lines, for releases of gVisor that clusters replace.

After a restore with a jump of the clock the monotonic clock has not counted the time of the freeze.
After a restore in gVisor the monotonic clock has counted that time, and the daemon puts the
deadlines off by the gap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from execd.proc.checkpoint_file import TELL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

JUMP_SECONDS = 2.0
"""More than the correction of a clock that runs: a leap second, or a step of the time service."""
GAP_SECONDS = 2.0
"""Without a look for so long, while looks come each second, the process was held up."""
SAME_SECONDS = 10.0
"""Reports within this time after a restore speak of the same restore, and of a gap before."""

Cause = Literal["clock", "file", "report"]


class Readings(NamedTuple):
    """Seconds of two clocks at one moment."""

    wall: float
    """The time of day."""
    monotonic: float


class Restore(NamedTuple):
    """A restore that was found."""

    cause: Cause
    frozen_seconds: float
    """By how much the monotonic clock has moved while nothing ran; at most a pause between two
    looks too much, and never too little."""
    changes: Mapping[str, Any] = {}
    """The settings to which the restored pod gives other values (``spec_environment``)."""


class RestoreDetector:
    """Remembers the readings of the last looks."""

    def __init__(self, now: Readings, asks_file: Callable[[], bool] | None = None) -> None:
        """``asks_file``: whether the platform has told of a restore since the last True. None: this
        platform does not tell."""
        self._asks_file = asks_file
        self._last = now
        self._looked_at = now.monotonic
        """When a gap was last looked for."""
        self._gap_seconds = 0.0
        """The last gap, which ended at ``_gap_ended_at``."""
        self._gap_ended_at = now.monotonic

    def look(self, now: Readings, *, was_told: bool = False) -> Restore | None:
        """Return the restore since the last look, or None. ``was_told``: the platform has just
        told. A look without a gap costs a few comparisons."""
        gap_seconds = now.monotonic - self._looked_at
        assert gap_seconds >= 0.0, "the monotonic clock"
        has_gap = gap_seconds > GAP_SECONDS
        self._looked_at = now.monotonic
        if has_gap:
            self._gap_seconds, self._gap_ended_at = gap_seconds, now.monotonic
        restore = self.look_at_clocks(now)
        if self._asks_file and (has_gap or was_told) and self._asks_file():
            frozen_seconds = max(gap_seconds, self._recent_gap_seconds(now))
            self._gap_seconds = 0.0
            return Restore("file", frozen_seconds)
        return restore

    def word_seconds(self, now: Readings) -> float:
        """Return how long the platform may still take to tell that the last gap was a restore."""
        if self._asks_file is None or self._gap_seconds == 0.0:
            return 0.0
        return max(0.0, self._gap_ended_at + TELL_SECONDS - now.monotonic)

    def look_at_clocks(self, now: Readings) -> Restore | None:
        """Look for a jump alone. The gap until the next ``look`` stays."""
        jump_seconds = (now.wall - self._last.wall) - (now.monotonic - self._last.monotonic)
        self._last = now
        is_restore = self._asks_file is None and jump_seconds > JUMP_SECONDS
        return Restore("clock", 0.0) if is_restore else None

    def reported(self, now: Readings) -> Restore:
        """Return the restore that the platform has reported, after a ``look``. The gap may have
        ended before the report: the timer of looks is due first."""
        return Restore("report", self._recent_gap_seconds(now))

    def _recent_gap_seconds(self, now: Readings) -> float:
        return self._gap_seconds if now.monotonic - self._gap_ended_at <= SAME_SECONDS else 0.0

    def end_gap(self, now: Readings) -> None:
        """Nobody has looked for a while, because nothing ran: no gap."""
        self._looked_at = now.monotonic
