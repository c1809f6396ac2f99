"""The housekeeper: rounds of work that waits for a time to pass, such as forgetting old executions.

A round comes when a round is due. Without anything that expires there is no timer, so an idle
daemon sleeps. Rounds begin at least PAUSE_SECONDS apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import TYPE_CHECKING

from execd.engine.store.journal import MemoryRecovered, MemoryShortage
from execd.proc.memory import MAX_LEAD_RESERVES, unused_bytes
from execd.proc.memory_meter import open_meter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from execd.engine.store.journal import Record
    from execd.proc.pod_memory import PodMemory

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


NEAR_RESERVES = 1 + MAX_LEAD_RESERVES
"""Memory is nearly full with less than so many reserves left: in gVisor the warden ends fast trees
early."""


class MemoryNotes:
    """Notes in the journal while the pod's memory is nearly full, so that the next daemon can name
    the likely cause when the kernel ends the pod.

    The figures are read when something ends for memory, or should and cannot: the warden tells.
    Growth that outruns the warden leaves no note.

    Call ``look`` when something ends for memory, ``step`` in each round of the housekeeper, and
    ``close`` at the end of the daemon."""

    def __init__(
        self,
        memory: PodMemory,
        runtime_bytes: Callable[[], int],
        note: Callable[[Record], None],
        plan_round: Callable[[], None],
    ) -> None:
        """``runtime_bytes``: gVisor's own memory. ``note`` appends to the journal. ``plan_round``
        has the housekeeper begin a round soon."""
        self._memory = memory
        self._runtime_bytes = runtime_bytes
        self._note = note
        self._plan_round = plan_round
        self._has_noted = False

    def look(self) -> None:
        """Note the shortage, if there is one."""
        if (shortage := self._read()) is not None:
            self._note(shortage)
            self._has_noted = True
            self._plan_round()

    def step(self) -> float:
        """Note the end of the shortage. Return when the next round is due, on the loop's clock."""
        if self._has_noted and self._read() is None:
            self.close()
        return -math.inf if self._has_noted else math.inf

    def close(self) -> None:
        """The daemon ends in order, or the shortage is over."""
        if self._has_noted:
            self._note(MemoryRecovered())
            self._has_noted = False

    def _read(self) -> MemoryShortage | None:
        if not self._memory.is_guarded:
            return None
        with (
            contextlib.suppress(OSError, ValueError),
            contextlib.closing(open_meter(self._memory.cgroup)) as meter,
        ):
            reading = meter.read()
            size_bytes = min(self._memory.size_bytes, reading.total_bytes)
            left_bytes = unused_bytes(reading, size_bytes, self._runtime_bytes())
            if left_bytes < NEAR_RESERVES * self._memory.reserve_bytes:
                return MemoryShortage(time.time(), left_bytes, size_bytes)
        return None
