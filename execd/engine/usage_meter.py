"""The CPU usage between two looks. Pure."""

from __future__ import annotations

LEAST_SECONDS = 0.1
"""Ten ticks of the clock that /proc counts CPU time with."""


class UsageMeter:
    """Remembers the figures of the last look."""

    def __init__(self) -> None:
        self._at_seconds = 0.0
        self._cpu_seconds = 0.0
        self._percent = 0.0

    def percent(self, at_seconds: float, cpu_seconds: float, cpu_count: float) -> float:
        """Return the share of all CPUs in use since the last look, from 0 to 100.

        ``at_seconds``: the time of this look, on a clock that began at 0 with the daemon.
        ``cpu_seconds``: CPU time used up to now. Looks within LEAST_SECONDS get the same answer:
        CPU time is counted in ticks.
        """
        assert cpu_count > 0
        elapsed_seconds = at_seconds - self._at_seconds
        if elapsed_seconds < LEAST_SECONDS:
            return self._percent
        used_seconds = max(0.0, cpu_seconds - self._cpu_seconds)
        self._at_seconds, self._cpu_seconds = at_seconds, cpu_seconds
        self._percent = min(100.0, 100.0 * used_seconds / (elapsed_seconds * cpu_count))
        return self._percent
