"""Who may run now, who waits, who is sent away. Pure: told what happens, it says who is next.

A bounded number run at once; a bounded queue, first in first out, waits for a place. How long one may wait is the caller's clock.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum


class Verdict(StrEnum):
    RUN = "RUN"
    WAIT = "WAIT"
    REFUSE = "REFUSE"


class Admission:
    """Keys are opaque and unique. Each admitted key must ``leave`` exactly once."""

    def __init__(self, max_running: int, max_queued: int) -> None:
        self.max_running = max_running
        self.max_queued = max_queued
        self._running: set[str] = set()
        self._queue: OrderedDict[str, None] = OrderedDict()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def queued(self) -> int:
        return len(self._queue)

    def arrive(self, key: str) -> Verdict:
        assert key not in self._running
        assert key not in self._queue
        # Nobody overtakes: while others wait, a free place is theirs.
        if len(self._running) < self.max_running and not self._queue:
            self._running.add(key)
            return Verdict.RUN
        if len(self._queue) < self.max_queued:
            self._queue[key] = None
            return Verdict.WAIT
        return Verdict.REFUSE

    def leave(self, key: str) -> str | None:
        """Give up a place, running or waiting. Returns the key that may run now in its stead, if any."""
        if key in self._queue:
            del self._queue[key]
        else:
            self._running.remove(key)
        if self._queue and len(self._running) < self.max_running:
            following, _ = self._queue.popitem(last=False)
            self._running.add(following)
            return following
        return None
