"""Which command runs now, which waits, which is refused. Pure: the caller tells what happens and
when.

Two bounds. ``max_running`` commands run at once. ``max_starting`` of them are in their first
moments: loading a program takes much CPU time, and a crowd of loading programs keeps the daemon
itself from its CPU. A command starts until one of three things: it ends (``leave``), it rests
(``has_started``), it has lived for ``starting_seconds``.

One queue, first in first out, waits for both bounds. How long a command may wait is the caller's
clock.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum


class Decision(StrEnum):
    RUN = "RUN"
    WAIT = "WAIT"
    REFUSE = "REFUSE"


class Admission:
    """Keys are opaque and unique. Each admitted key must ``leave`` exactly once. ``now`` is any
    clock that never goes back."""

    def __init__(
        self, max_running: int, max_queued: int, max_starting: int, starting_seconds: float
    ) -> None:
        self.max_running = max_running
        self.max_queued = max_queued
        self.max_starting = max_starting
        self.starting_seconds = starting_seconds
        self._running: set[str] = set()
        self._starting: OrderedDict[str, float] = OrderedDict()
        """Those of the running that start, and since when; the oldest first."""
        self._queue: OrderedDict[str, None] = OrderedDict()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def next_start_over(self) -> float | None:
        """When the oldest start is over by its age, if somebody waits for that."""
        if not self._queue or len(self._running) >= self.max_running:
            return None
        assert len(self._starting) >= self.max_starting, (
            "nobody waits beside a free place and a free start"
        )
        return next(iter(self._starting.values())) + self.starting_seconds

    def arrive(self, key: str, now: float) -> Decision:
        assert key not in self._running
        assert key not in self._queue
        if not self._queue:  # nobody overtakes: while others wait, whatever becomes free is theirs
            self._forget_old_starts(now)
            if self._has_room:
                self._run(key, now)
                return Decision.RUN
        # Whoever waits for a start to be over has a place among the running in prospect, and takes
        # none of the queue's.
        if len(self._running) + len(self._queue) < self.max_running + self.max_queued:
            self._queue[key] = None
            return Decision.WAIT
        return Decision.REFUSE

    def leave(self, key: str, now: float) -> list[str]:
        """Give up a place, running or waiting. Returns the keys that run from now on."""
        if key in self._queue:
            del self._queue[key]
        else:
            self._running.remove(key)
            self._starting.pop(key, None)
        return self.let_in(now)

    def has_started(self, key: str, now: float) -> list[str]:
        """The first moments of a command are over, if they were not before. Returns the keys that
        run from now on."""
        self._starting.pop(key, None)
        return self.let_in(now)

    def let_in(self, now: float) -> list[str]:
        """Time has passed. Returns the keys that run from now on."""
        self._forget_old_starts(now)
        following = []
        while self._queue and self._has_room:
            key, _ = self._queue.popitem(last=False)
            self._run(key, now)
            following.append(key)
        return following

    @property
    def _has_room(self) -> bool:
        return len(self._running) < self.max_running and len(self._starting) < self.max_starting

    def _run(self, key: str, now: float) -> None:
        self._running.add(key)
        self._starting[key] = now

    def _forget_old_starts(self, now: float) -> None:
        while self._starting and next(iter(self._starting.values())) + self.starting_seconds <= now:
            self._starting.popitem(last=False)
