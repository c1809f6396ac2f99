"""What is kept of executions, and what is forgotten: their names (``registry``), their records
(``journal``), their logs on disk.

A name that is forgotten may be taken again at once. The journal hears of it before: it is written
in the order of asking, and whoever takes a name asks in a task that is made later. The files stay
until the next round of the housekeeper, for the reply to the last caller may still be on its way;
or until the name is taken, for those to come have the same names.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from execd.engine.executions.records import begin_record, end_record, restore
from execd.engine.store.journal import Cut, Forget
from execd.engine.store.state_dir import DISK_SECONDS, NO_SPACE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from execd.engine.executions.context import EngineContext
    from execd.engine.executions.execution import Execution
    from execd.engine.executions.registry import Registry
    from execd.engine.store.journal import Record
    from execd.engine.store.state_dir import StateDir


class Retention:
    """The engine's, within its loop. ``restore`` before anything else; ``tidy`` now and then;
    ``close`` before the state dir's."""

    def __init__(self, registry: Registry, state_dir: StateDir, base_dir: str) -> None:
        self._registry = registry
        self._state_dir = state_dir
        self._base_dir = base_dir
        self._expired: dict[str, Execution] = {}
        """Forgotten by their names, their files still there."""
        self._noting: set[asyncio.Task[str | None]] = set()
        """What is on its way into the journal, and nobody waits for."""

    def restore(self, context: EngineContext) -> None:
        """Know again what former daemons ran, for as long as if there had been but one."""
        now = asyncio.get_running_loop().time()
        for past in self._state_dir.past.values():
            if past.end is None:
                past.end = Cut(past.begin.id, time.time())
                self._note(past.end)
        executions = [restore(past, context, self) for past in self._state_dir.past.values()]
        for execution in sorted(executions, key=lambda execution: execution.ended_monotonic):
            self._registry.add(execution)
            self._retire(self._registry.finished(execution, now))

    async def close(self, within_seconds: float = DISK_SECONDS) -> None:
        """Let the journal take what it has been given."""
        if self._noting:
            await asyncio.wait(self._noting, timeout=min(DISK_SECONDS, within_seconds))

    # What executions tell of themselves.

    async def begin(self, execution: Execution) -> None:
        execution.not_journaled = await self._state_dir.write_journal(
            begin_record(execution, self._base_dir)
        )

    async def finish(self, execution: Execution) -> None:
        """Journal its end, while its name is still taken."""
        if execution.error is not None:
            await execution.journaled()
            if execution.is_journaled and not execution.may_have_run:  # a retry may
                execution.is_journaled = False
                await self._state_dir.write_journal(Forget(execution.id))
        elif execution.is_kept and execution.result is not None:
            await execution.journal()
            if not self._state_dir.is_hung:
                await execution.output.save()
            failure = await self._state_dir.write_journal(end_record(execution, execution.result))
            execution.not_journaled = execution.not_journaled or failure

    # Forgetting.

    def ended(self, execution: Execution) -> None:
        """From now on it may be forgotten, or others for its sake."""
        self._retire(self._registry.finished(execution, asyncio.get_running_loop().time()))

    def vacate(self, execution_id: str) -> None:
        """An execution of this name is about to come: remove the files of one that was
        forgotten."""
        if execution_id in self._expired:
            self._expired.pop(execution_id).output.remove()

    async def forget(self, execution: Execution) -> None:
        """One that has ended, at once."""
        if self._registry.get(execution.id) is execution:
            self._registry.remove(execution)
            execution.output.remove()
            if execution.is_journaled:
                await self._state_dir.write_journal(Forget(execution.id))

    def _retire(self, gone: Iterable[Execution]) -> None:
        """They are out of the registry. See the module's text."""
        for execution in gone:
            self._expired[execution.id] = execution
            if execution.is_journaled:
                self._note(Forget(execution.id))

    def _note(self, record: Record) -> None:
        task = asyncio.create_task(
            self._state_dir.write_journal(record), name=f"noting-{record.id}"
        )
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    async def tidy(self) -> None:
        """One round of the housekeeper."""
        while self._expired:
            self._expired.popitem()[1].output.remove()
        self._retire(self._registry.expired(asyncio.get_running_loop().time()))
        # Half used: finished logs make room before a new one is cut short. Who they are of, and how
        # it ended, stays known.
        while (
            self._state_dir.used_bytes > self._state_dir.max_bytes // 2
            and self._remove_largest_log()
        ):
            pass
        if await self._state_dir.repair() == NO_SPACE:
            self._remove_largest_log()  # the few bytes that the journal lacks matter more

    def _remove_largest_log(self) -> bool:
        largest = self._registry.largest_on_disk()
        if largest is not None:
            largest.output.remove()
        return largest is not None
