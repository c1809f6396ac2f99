"""Stops of programs that have made the warden their tracer (PTRACE_TRACEME, ptrace(2)).

A traced program stops at each signal and at each exec until the tracer continues the program. The
warden never asked to trace, so the warden continues the program at once; otherwise the stop would
last for ever. A program that only stops would take all the time of the warden's loop, so the warden
kills a program with too many stops.
"""

from __future__ import annotations

import signal
import time

from execd.proc import spawn
from execd.warden.job import send_signal

# A program that stops more than MOST_STOPS times within COUNT_SECONDS is killed.
MOST_STOPS, COUNT_SECONDS = 100, 1.0


class TracedStops:
    """Continues stopped programs, and counts their stops over COUNT_SECONDS."""

    def __init__(self) -> None:
        self._n_stops: dict[int, int] = {}
        """By pid, since ``_counted_since``."""
        self._counted_since = 0.0

    def resume(self, pid: int, number: int) -> None:
        """Deliver the signal ``number`` of the stop and continue the program, or kill the program.

        Call this method for each stop in wait4(2)'s reports.
        """
        assert pid > 0
        now = time.monotonic()
        if now - self._counted_since > COUNT_SECONDS:
            self._n_stops.clear()
            self._counted_since = now
        self._n_stops[pid] = self._n_stops.get(pid, 0) + 1
        if self._n_stops[pid] > MOST_STOPS:
            send_signal(pid, signal.SIGKILL)
        try:
            spawn.detach_traced(pid, number)
        except OSError:
            pass  # killed in the meantime
