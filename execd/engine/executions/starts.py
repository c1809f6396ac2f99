"""The turns of commands: the queue (``admission``), the size of the pod, and time.

A command that computes in its first moments holds one of few starts. A command that sleeps must not
hold a start: a hundred ``sleep`` commands start as fast as the kernel can start processes. So the
warden samples young programs and reports the idle programs (``startup_watch``), and a program
that goes on computing gives its start up after ``starting_seconds``.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from execd.engine.executions.admission import Admission, Decision
from execd.engine.executions.cpu_count import available_cpus
from execd.errors import ResourceExhausted

if TYPE_CHECKING:
    from execd.config import Config

STARTS_PER_CPU = 2
# A program that is slow to load does not keep all other commands waiting, however small the pod.
LEAST_STARTS = 2
# How long the first moments of a computing command last with a whole CPU or more. With a part of a
# CPU they last longer in proportion.
STARTING_SECONDS, MAX_STARTING_SECONDS = 0.5, 1.0


class Starts:
    """Gives turns to commands, within one event loop. There is no timer while no command waits."""

    def __init__(self, config: Config) -> None:
        self._cpus = config.pod_cpus or available_cpus()
        self._admission = Admission(
            config.max_running,
            config.max_queued,
            config.max_starting or max(LEAST_STARTS, math.ceil(STARTS_PER_CPU * self._cpus)),
            min(STARTING_SECONDS / min(self._cpus, 1.0), MAX_STARTING_SECONDS),
        )
        self._loop = asyncio.get_running_loop()
        self._now: asyncio.Future[None] = self._loop.create_future()
        """The turn of every command that may run at once."""
        self._now.set_result(None)
        self._turns: dict[str, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def facts(self) -> dict[str, Any]:
        """Return the bounds and the numbers of commands, for /v1/capabilities."""
        admission = self._admission
        return {
            "cpus": self._cpus,
            "max_running": admission.max_running,
            "max_starting": admission.max_starting,
            "starting_seconds": admission.starting_seconds,
            "running": admission.running,
            "queued": admission.queued,
        }

    def arrive(self, key: str) -> asyncio.Future[None]:
        """Return a future, done when the command may run. Raises ResourceExhausted if too many
        commands wait."""
        match self._admission.arrive(key, self._loop.time()):
            case Decision.REFUSE:
                raise ResourceExhausted(
                    f"all places are taken (running: {self._admission.running}, waiting: "
                    f"{self._admission.queued}); repeat the request later, or end executions",
                    retry_after_seconds=1,
                )
            case Decision.RUN:
                return self._now
            case Decision.WAIT:
                turn = self._turns[key] = self._loop.create_future()
                self._set_timer()
                return turn

    def mark_idle(self, key: str) -> None:
        """A command that began a moment ago waits rather than computes."""
        self._let_in(self._admission.has_started(key, self._loop.time()))

    def leave(self, key: str) -> None:
        """A command has ended, or waits no more."""
        self._turns.pop(key, None)
        admitted = self._admission.leave(key, self._loop.time())
        if admitted or self._turns:
            self._let_in(admitted)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _let_in(self, keys: list[str]) -> None:
        for key in keys:
            turn = self._turns.pop(key)
            if not turn.done():  # a cancelled command gives its place back by ``leave``
                turn.set_result(None)
        self._set_timer()

    def _set_timer(self) -> None:
        """Set the timer for the oldest start, unless a timer is set. A timer that fires after that
        start is over sets the next timer."""
        due = self._admission.next_start_over
        if self._timer is None and due is not None:
            self._timer = self._loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._let_in(self._admission.let_in(self._loop.time()))
