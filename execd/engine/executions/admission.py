"""Admission of commands: run now, wait, or refuse. Pure: the caller reports events and times.

There are two bounds. At most ``max_running`` commands run at once, and at most ``max_starting`` of
them are in their first moments: loading a program takes much CPU time, and a crowd of loading
programs keeps the daemon from its own CPU. The first moments of a command are over when the command
ends (``leave``), when the command is idle (``has_started``), or after ``starting_seconds``.

The best second bound is another while commands are short (``ShortRun``): natively a higher bound,
because otherwise each start waits until the caller has noted an end; in gVisor a lower bound,
because there programs that start side by side hold each other up. A short command ends in its first
moments and takes little time; the caller decides how little.

One queue, first in first out, waits for both bounds. The caller decides how long a command waits.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum
from typing import NamedTuple

# Where a command in ten is heavy, the latest 16 are all short with a probability of 0.19.
SHORT_RUN = 16
LASTING_RUN = 64
MAX_PAUSE = 1024


class Bound(NamedTuple):
    """How many commands may be in their first moments at once, and how long these last at most."""

    max_starting: int
    starting_seconds: float


class ShortRun:
    """Whether commands are short at present: since SHORT_RUN short commands in a row, until too
    many are heavy."""

    def __init__(
        self, heavy_weight: int = SHORT_RUN + 1, pause: int = 0, *, in_turn: bool = False
    ) -> None:
        """``heavy_weight``: how many short commands make up for a heavy one, once commands are
        short; more than SHORT_RUN: none do. ``pause``: how many more short commands it takes the
        next time, and twice as many after each time that did not last.

        ``in_turn``: short commands start in turn, and count by their duration. So a command that
        was idle in its first moments counts too, and a command that started before commands were
        short, side by side with others, tells nothing."""
        self.in_turn = in_turn
        self._heavy_weight = heavy_weight
        self._least_pause = self._pause = pause
        self._count = 0
        self._n_since = 0
        """Short commands since ``is_on``."""
        self.is_on = False

    def note(self, *, is_short: bool) -> None:
        """A command has left its first moments."""
        if is_short:
            self._count = min(self._count + 1, SHORT_RUN)
            self.is_on |= self._count == SHORT_RUN
            self._n_since = self._n_since + 1 if self.is_on else 0
        elif not self.is_on:
            self._count = min(self._count, 0)
        else:
            self._count -= self._heavy_weight
            if self._count < 0:
                self.is_on = False
                if self._n_since > LASTING_RUN:
                    self._pause = self._least_pause
                self._count = -self._pause
                self._pause = min(2 * self._pause, MAX_PAUSE)


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
        usual: Bound,
        short: Bound,
        short_run: ShortRun,
    ) -> None:
        self.max_running = max_running
        self.max_queued = max_queued
        self.usual = usual
        self.short = short
        self._short_run = short_run
        self._running: set[str] = set()
        self._starting: OrderedDict[str, float] = OrderedDict()
        """Running commands in their first moments, with the time of their start; oldest first."""
        self._side_by_side: frozenset[str] = frozenset()
        """Commands that ran when commands became short."""
        self._idle: set[str] = set()
        """Running commands that were idle in their first moments."""
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
        assert len(self._starting) >= self._bound.max_starting, (
            "no command waits beside a free place and a free start"
        )
        return next(iter(self._starting.values())) + self._bound.starting_seconds

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

    def leave(self, key: str, now: float, *, took_little: bool = False) -> list[str]:
        """Give up a place, running or waiting. Return the keys of the commands to run now.

        ``took_little``: the command's CPU time is that of a short command.
        """
        self._forget_old_starts(now)
        if key in self._queue:
            del self._queue[key]
        else:
            self._running.remove(key)
            was_idle, was_young = key in self._idle, self._starting.pop(key, None) is not None
            self._idle.discard(key)
            if was_young or (was_idle and self._short_run.in_turn):
                self._note(key, is_short=took_little)
        return self.let_in(now) if self._queue else []

    def has_started(self, key: str, now: float) -> list[str]:
        """End the first moments of a command, if they are not over. Return the keys of the commands
        to run now."""
        self._forget_old_starts(now)
        if self._starting.pop(key, None) is not None:
            self._idle.add(key)
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
    def are_short(self) -> bool:
        """Whether commands are short at present."""
        return self._short_run.is_on

    @property
    def _bound(self) -> Bound:
        return self.short if self._short_run.is_on else self.usual

    @property
    def _has_room(self) -> bool:
        return (
            len(self._running) < self.max_running and len(self._starting) < self._bound.max_starting
        )

    def _run(self, key: str, now: float) -> None:
        assert key not in self._running
        self._running.add(key)
        self._starting[key] = now

    def _forget_old_starts(self, now: float) -> None:
        while self._starting:
            if next(iter(self._starting.values())) + self._bound.starting_seconds > now:
                return
            key, _ = self._starting.popitem(last=False)
            self._note(key, is_short=False)

    def _note(self, key: str, *, is_short: bool) -> None:
        run, was_on = self._short_run, self._short_run.is_on
        if not (run.in_turn and was_on and key in self._side_by_side):
            run.note(is_short=is_short)
        if run.is_on and not was_on:
            self._side_by_side = frozenset(self._running)
