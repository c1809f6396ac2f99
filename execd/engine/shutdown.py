"""The clock of a shutdown: how much of the shutdown timeout is left, for every step of the end."""

from __future__ import annotations

import asyncio

# When a step must be over, as a share of the shutdown timeout: running executions, connections, and
# everything else.
EXECUTIONS_SHARE, CONNECTIONS_SHARE, WHOLE_SHARE = 0.7, 0.85, 0.95


class ShutdownClock:
    """The timeout runs from the first question, so an engine that ends without a drain has the
    whole timeout."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._began_at: float | None = None

    def ends_at(self, share: float) -> float:
        """Return the time, on the loop's clock, when this share of the timeout is over."""
        now = asyncio.get_running_loop().time()
        if self._began_at is None:
            self._began_at = now
        return self._began_at + share * self._timeout_seconds

    def seconds_left(self) -> float:
        """Return the seconds left for everything that must end."""
        return max(0.0, self.ends_at(WHOLE_SHARE) - asyncio.get_running_loop().time())
