"""The housekeeper: rounds of work that waits for a time to pass, such as forgetting old executions.

A round comes when a round is due. Without anything that expires there is no timer, so an idle
daemon sleeps. Rounds begin at least PAUSE_SECONDS apart.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


PAUSE_SECONDS = 2.0


class Housekeeper:
    """Call ``start`` once and ``close`` last. ``plan`` may be called at any time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = math.inf
        self._is_due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Callable[[], Awaitable[float]]) -> None:
        """Begin to keep house. ``work`` does one round, and returns when the next round is due, on
        the loop's clock. Infinity: not before ``plan``. A time in the past: after the pause."""
        assert self._task is None, "started twice"
        self._task = asyncio.create_task(self._keep(work), name="housekeeper")

    async def close(self) -> None:
        """End a round under way, and begin no more."""
        self._set_timer(math.inf)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def plan(self, at: float) -> None:
        """Begin a round at ``at`` on the loop's clock, or earlier."""
        if at < self._due:
            self._set_timer(at)

    def plan_soon(self) -> None:
        """Begin a round within PAUSE_SECONDS."""
        self.plan(self._loop.time() + PAUSE_SECONDS)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = at
        self._timer = None if at == math.inf else self._loop.call_at(at, self._is_due.set)

    async def _keep(self, work: Callable[[], Awaitable[float]]) -> None:
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            # Before the round: what happens during the round plans another round.
            self._set_timer(math.inf)
            due = await work()
            self.plan(max(due, self._loop.time() + PAUSE_SECONDS))
