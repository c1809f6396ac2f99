"""Retention of executions: their names (``registry``), their records (``journal``), their logs on
disk.

A forgotten name may be taken again at once. The journal has the Forget record before the next Begin
record of the name: records are written in the order of the calls, and the new execution calls from
a task that is created later. The log files stay until the next round of the housekeeper, because
the reply to the last caller may still be read from them, or until the name is taken, because the
new execution's files have the same names.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

from execd.engine.executions.records import begin_record, end_record, restore
from execd.engine.executions.state import ExecutionPhase
from execd.engine.store.journal import Cut, Forget
from execd.engine.store.state_dir import DISK_SECONDS, NO_SPACE
from execd.model import ExitReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from execd.engine.executions.context import EngineContext
    from execd.engine.executions.execution import Execution
    from execd.engine.executions.registry import Registry
    from execd.engine.output.held_pipes import HeldPipes
    from execd.engine.store.journal import Record
    from execd.engine.store.state_dir import StateDir


class Retention:
    """The engine's keeper of executions, within the engine's loop. Call ``restore`` first, ``tidy``
    in each round of the housekeeper, and ``close`` before the state dir is closed."""

    def __init__(
        self,
        registry: Registry,
        state_dir: StateDir,
        base_dir: str,
        held_pipes: HeldPipes,
        plan_round: Callable[[], None],
    ) -> None:
        """``plan_round`` has the housekeeper begin a round soon."""
        self._registry = registry
        self._state_dir = state_dir
        self._base_dir = base_dir
        self._held_pipes = held_pipes
        self._plan_round = plan_round
        self._expired: dict[str, Execution] = {}
        """Executions without a name, by id; their files are still there."""
        self._noting: set[asyncio.Task[str | None]] = set()
        """Writes to the journal that no task awaits."""
        self._beginning: dict[str, asyncio.Task[None]] = {}
        """By id: the first record of an execution, being written."""

    def restore(self, context: EngineContext) -> None:
        """Add the executions of former daemons, to be forgotten as if this daemon had run them."""
        now = asyncio.get_running_loop().time()
        cut = set()
        for past in self._state_dir.former_executions.values():
            if past.end is None:
                past.end = Cut(past.begin.id, time.time(), self._state_dir.former_shortage)
                self.note(past.end)
                cut.add(past.begin.id)
        executions = [
            restore(past, context, self) for past in self._state_dir.former_executions.values()
        ]
        for execution in sorted(executions, key=lambda execution: execution.ended_monotonic):
            self._registry.add(execution)
            self._retire(self._registry.finished(execution, now))
            if execution.id in cut:
                execution.count_end()
                execution.log_end()
        if executions:  # they expire, though this daemon may never run an execution of its own
            self._plan_round()

    async def close(self, within_seconds: float = DISK_SECONDS) -> None:
        """Wait until the executions have ended and the journal is written, for so many seconds at
        the most. No program runs any more, and no session. An execution that still waits for its
        turn is ended."""
        for execution in self._registry.live:
            if not execution.may_have_run:
                execution.end(ExitReason.SHUTDOWN, 0.0)
        # An execution closes its descriptors, and journals its end, after its program has ended.
        ends = [asyncio.create_task(execution.ended()) for execution in self._registry.live]
        if work := {*ends, *self._noting}:
            await asyncio.wait(work, timeout=min(DISK_SECONDS, within_seconds))
        for end in ends:
            end.cancel()

    def add(self, execution: Execution, request_key: bytes | None = None) -> None:
        """Add a new execution to the registry. While executions live, rounds see to the disk."""
        self._registry.add(execution, request_key)
        self._plan_round()

    def next_round(self) -> float:
        """Return when the next round is due, on the loop's clock. Infinity: nothing expires. Minus
        infinity: work waits for the next round."""
        has_work = (
            bool(self._expired)
            or self._registry.has_live
            or self._state_dir.used_bytes > self._state_dir.max_bytes // 2
            or self._state_dir.has_failed
        )
        return -math.inf if has_work else self._registry.next_expiry()

    # Called by executions (``Keeper``).

    def begin(self, execution: Execution) -> None:
        if execution.is_kept and not execution.is_journaled:
            execution.is_journaled = True
            task = asyncio.create_task(self._begin(execution), name=f"journaling-{execution.id}")
            self._beginning[execution.id] = task

    async def journaled(self, execution: Execution) -> None:
        if (task := self._beginning.get(execution.id)) is not None:
            # Unlike ``await``, asyncio.wait does not cancel the task with the waiting one.
            await asyncio.wait((task,))

    async def _begin(self, execution: Execution) -> None:
        execution.not_journaled = await self._state_dir.write_journal(
            begin_record(execution, self._base_dir)
        )
        del self._beginning[execution.id]

    async def finish(self, execution: Execution) -> None:
        """Journal the end, while the name is still taken."""
        if execution.error is not None:
            await self.journaled(execution)
            if execution.is_journaled and not execution.may_have_run:  # a retry may
                execution.is_journaled = False
                await self._state_dir.write_journal(Forget(execution.id))
        elif execution.is_kept and execution.result is not None:
            self.begin(execution)
            await self.journaled(execution)
            if not self._state_dir.is_hung:
                await execution.output.save()
            failure = await self._state_dir.write_journal(end_record(execution, execution.result))
            execution.not_journaled = execution.not_journaled or failure

    # Forgetting.

    def ended(self, execution: Execution) -> None:
        """Take note of an end: from now on the execution may be forgotten, or older executions for
        its sake. A round is planned already, as for each live execution, and that round plans the
        next."""
        if gone := self._registry.finished(execution, execution.ended_monotonic):
            self._retire(gone)

    def vacate(self, execution_id: str) -> None:
        """Remove the files of a forgotten execution, because a new execution takes its name."""
        if execution_id in self._expired:
            self._expired.pop(execution_id).output.remove()

    async def forget(self, execution: Execution) -> None:
        """Forget an execution that has ended, at once."""
        if self._registry.get(execution.id) is execution:
            self._registry.remove(execution)
            self._held_pipes.remove(execution.id, execution.output)
            execution.output.remove()
            if execution.is_journaled:
                await self._state_dir.write_journal(Forget(execution.id))

    def end_episode(self, *, keeps_records: bool) -> None:
        """Forget all executions that have ended, or their keys alone. No reply is under way. The
        journal's record is ``ResetEnded``."""
        for execution in self._registry:
            if execution.phase is not ExecutionPhase.EXITED:
                continue
            if keeps_records:
                self._registry.forget_key(execution)
                continue
            self._registry.remove(execution)
            self._held_pipes.remove(execution.id, execution.output)
            execution.output.remove()
        while self._expired:
            self._expired.popitem()[1].output.remove()

    def _retire(self, gone: Iterable[Execution]) -> None:
        """Forget executions that the registry has removed; see the module's text for the order."""
        for execution in gone:
            self._plan_round()
            self._held_pipes.remove(execution.id, execution.output)
            self._expired[execution.id] = execution
            if execution.is_journaled:
                self.note(Forget(execution.id))

    def note(self, record: Record) -> None:
        """Journal a record that no caller waits for, after all earlier records."""
        task = asyncio.create_task(self._state_dir.write_journal(record), name="noting")
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    async def tidy(self) -> None:
        """One round of the housekeeper."""
        while self._expired:
            self._expired.popitem()[1].output.remove()
        for execution_id in self._held_pipes.take_grown():
            if (execution := self._registry.get(execution_id)) is not None:
                self._registry.measure(execution)
        self._retire(self._registry.expired(asyncio.get_running_loop().time()))
        # Logs of finished executions make room when half of the space is used, before a log of a
        # live execution is cut. The records of the finished executions stay.
        while (
            self._state_dir.used_bytes > self._state_dir.max_bytes // 2
            and self._remove_largest_log()
        ):
            pass
        if await self._state_dir.repair() == NO_SPACE:
            self._remove_largest_log()  # the few bytes of the journal matter more

    def _remove_largest_log(self) -> bool:
        largest = self._registry.largest_on_disk()
        if largest is not None:
            largest.output.remove()
        return largest is not None
