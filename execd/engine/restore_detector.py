"""Finds out whether the sandbox was restored from a checkpoint. Pure: clock readings in, a finding
or nothing out.

A gVisor of 2026 tells (``proc.checkpoint_file``), and then nothing else counts. No other platform
tells the processes. There are two signs:

    A jump of the clock. A restored virtual machine goes on with its old monotonic clock, and with
    the right time of day: the time of day has moved further than the monotonic clock. A process
    that is stopped, or gets no CPU, sees both clocks move alike.

    A new network. A restored gVisor moves the monotonic clock by the time that has passed, as if
    the processes had not been scheduled (measured with runsc 20240729, and stated in the source of
    its timekeeper). So the clocks tell nothing. But the network begins anew: its counters are
    smaller than what the daemon itself has seen (``network_witness``).

After a restore by the first sign the monotonic clock has not counted the time in between; after a
restore by the second sign, and in every gVisor, it has, and the deadlines have to be put off.

Both signs can go with the last gVisor that has no file, except for virtual machines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

JUMP_SECONDS = 2.0
"""More than the correction of a clock that runs: a leap second, or a step of the time service."""
GAP_SECONDS = 2.0
"""Without a look for so long, while looks come each second, the process was held up."""

Cause = Literal["clock", "file", "network", "report"]


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

    def __init__(self, now: Readings, sign: Literal["file", "network"] = "network") -> None:
        """``sign``: what the second argument of ``look`` asks. A file that tells leaves nothing to
        the clocks."""
        self._sign: Cause = sign
        self._last = now
        self._looked_at = now.monotonic
        """When both signs were last looked for."""

    def look(
        self, now: Readings, asks_sign: Callable[[bool], bool], *, was_stopped: bool = False
    ) -> Restore | None:
        """Return the restore since the last look, or None.

        ``asks_sign`` is called only after a gap, or for ``was_stopped``: the process is known to
        have been stopped; with whether there was a gap. A look without a gap costs a few
        comparisons.
        """
        gap_seconds = now.monotonic - self._looked_at
        assert gap_seconds >= 0.0, "the monotonic clock"
        has_gap = gap_seconds > GAP_SECONDS
        self._looked_at = now.monotonic
        restore = self.look_at_clocks(now)
        may_be_new = was_stopped or has_gap or restore is not None
        # After a jump too: a restore with both signs counts once.
        if may_be_new and asks_sign(has_gap) and restore is None:
            return Restore(self._sign, gap_seconds)
        return restore

    def look_at_clocks(self, now: Readings) -> Restore | None:
        """Look for the first sign alone. The gap until the next ``look`` stays."""
        jump_seconds = (now.wall - self._last.wall) - (now.monotonic - self._last.monotonic)
        self._last = now
        is_restore = self._sign != "file" and jump_seconds > JUMP_SECONDS
        return Restore("clock", 0.0) if is_restore else None

    def end_gap(self, now: Readings) -> None:
        """Nobody has looked for a while, because nothing ran: no gap."""
        self._looked_at = now.monotonic
