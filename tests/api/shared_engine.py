"""The engine that the tests of this folder share. No test leaves anything to the next test."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from execd.errors import ExecdError
from execd.model import ExitReason
from tests.guards import LEAK_DEADLINE_SECONDS, children
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from execd.engine.engine import Engine


@dataclass
class SharedEngine:
    engine: Engine
    processes: frozenset[int]
    """The processes of an engine that runs nothing: the warden. The guard of all tests ignores
    processes below the warden, because the warden is older than the test."""

    async def reset(self) -> None:
        """End and forget everything that a test has begun, and make the base dir anew. Fail if
        anything is left: the zygote, for example. Sessions need an engine of their own."""
        for session in list(self.engine.sessions._sessions.values()):
            await self.engine.sessions.end(session)
        await self._end_executions()
        base_dir = Path(self.engine.config.base_dir)
        shutil.rmtree(base_dir)
        base_dir.mkdir()
        with contextlib.suppress(AssertionError):  # the report below names all that is left
            await wait_until_async(lambda: not self.left_behind(), LEAK_DEADLINE_SECONDS)
        left = self.left_behind()
        assert not left, "left in the shared engine:\n  " + "\n  ".join(left)

    async def _end_executions(self) -> None:
        executions = list(self.engine._registry)
        for execution in executions:
            execution.end(ExitReason.CANCELED, 0.0)
        for execution in executions:
            with contextlib.suppress(ExecdError):  # of an execution that never ran
                await execution.wait()
                await execution.end_rest(0.0)
            await self.engine.retention.forget(execution)
        await self.engine.retention.tidy()

    def left_behind(self) -> list[str]:
        """Everything by which a test can tell that another test has used the engine."""
        engine, found = self.engine, []
        found += [f"execution {execution.id}: {execution.state}" for execution in engine._registry]
        found += [f"session {session.id}" for session in engine.sessions._sessions.values()]
        found += [f"child {tag} of the warden" for tag in engine.warden._children]
        found += [
            f"process {pid}: {what}"
            for pid, what in children().items()
            if pid not in self.processes
        ]
        for folder in (engine.config.base_dir, f"{engine.config.state_dir}/logs"):
            found += [f"file {path}" for path in Path(folder).glob("*")]
        if engine.in_flight.held_bytes:
            found.append(f"{engine.in_flight.held_bytes} bytes in flight")
        if not engine.is_ready:
            found.append("the engine takes no commands")
        return found
