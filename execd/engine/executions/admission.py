"""Admission of commands: run now, wait, or refuse. Pure: the caller reports events and times.

There are two bounds. At most ``max_running`` commands run at once, and at most ``max_starting`` of
them are in their first moments: loading a program takes much CPU time, and a crowd of loading
programs keeps the daemon from its own CPU. The first moments of a command are over when the command
ends (``leave``), when the command is idle (``has_started``), or after ``starting_seconds``.

One queue, first in first out, waits for both bounds. The caller decides how long a command waits.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum


class Decision(StrEnum):
    RUN = "RUN"
    WAIT = "WAIT"
    REFUSE = "REFUSE"


class Admission:
    """Keys are opaque and unique. Each admitted key must ``leave`` exactly once. ``now`` is the
    time of any monotonic clock."""

    def __init__(
        self,
        max_running: int,
        max_queued: int,
        max_starting: int,
        starting_seconds: float,
    ) -> None:
        self.max_running = max_running
        self.max_queued = max_queued
        self.max_starting = max_starting
        self.starting_seconds = starting_seconds
        self._running: set[str] = set()
        self._starting: OrderedDict[str, float] = OrderedDict()
        """Running commands in their first moments, with the time of their start; oldest first."""
        self._queue: OrderedDict[str, None] = OrderedDict()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def next_start_over(self) -> float | None:
        """When the oldest start is over by age; None if no command waits for that."""
        if not self._queue or len(self._running) >= self.max_running:
            return None
        assert len(self._starting) >= self.max_starting, (
            "no command waits beside a free place and a free start"
        )
        return next(iter(self._starting.values())) + self.starting_seconds

    def arrive(self, key: str, now: float) -> Decision:
        assert key not in self._running
        assert key not in self._queue
        if not self._queue:  # no command overtakes the queue
            self._forget_old_starts(now)
            if self._has_room:
                self._run(key, now)
                return Decision.RUN
        # A command that waits only for a start to be over will get a place among the running, and
        # does not count as queued.
        if len(self._running) + len(self._queue) < self.max_running + self.max_queued:
            self._queue[key] = None
            return Decision.WAIT
        return Decision.REFUSE

    def leave(self, key: str, now: float) -> list[str]:
        """Give up a place, running or waiting. Return the keys of the commands to run now."""
        if key in self._queue:
            del self._queue[key]
        else:
            self._running.remove(key)
            self._starting.pop(key, None)
        return self.let_in(now) if self._queue else []

    def has_started(self, key: str, now: float) -> list[str]:
        """End the first moments of a command, if they are not over. Return the keys of the commands
        to run now."""
        self._forget_old_starts(now)
        self._starting.pop(key, None)
        return self.let_in(now)

    def let_in(self, now: float) -> list[str]:
        """Take note of the time. Return the keys of the commands to run now."""
        self._forget_old_starts(now)
        admitted = []
        while self._queue and self._has_room:
            key, _ = self._queue.popitem(last=False)
            self._run(key, now)
            admitted.append(key)
        return admitted

    @property
    def _has_room(self) -> bool:
        return len(self._running) < self.max_running and len(self._starting) < self.max_starting

    def _run(self, key: str, now: float) -> None:
        assert key not in self._running
        self._running.add(key)
        self._starting[key] = now

    def _forget_old_starts(self, now: float) -> None:
        while self._starting and next(iter(self._starting.values())) + self.starting_seconds <= now:
            self._starting.popitem(last=False)
