"""EngineContext: the parts of the engine that executions and sessions use, made once, before the
first execution.

The module stands here and not beside the engine, because the engine imports executions and
sessions, and both import the context.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from execd.engine.output.log import OutputLog
from execd.errors import ExecdError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Mapping

    from execd.config import Config
    from execd.engine.executions.default_shell import DefaultShell
    from execd.engine.executions.direct_exec import DirectExec
    from execd.engine.executions.environment import ChildEnvironment
    from execd.engine.metrics.counters import Counters
    from execd.engine.output.held_pipes import HeldPipes
    from execd.engine.store.state_dir import Spool, StateDir
    from execd.model import Interpreter, Limits, Stream
    from execd.proc.client import WardenClient
    from execd.proc.spawn import Identity


class EngineContext:
    """See the module's text. ``assembly.Parts`` sets the attributes."""

    config: Config
    loop: asyncio.AbstractEventLoop
    """The engine's loop. ``asyncio.get_running_loop`` asks the kernel for the pid each time."""
    warden: WardenClient
    identity: Identity
    """The user of user code."""
    interpreters: tuple[Interpreter, ...]
    """For sessions, in order of preference; the first is ``python`` of commands."""
    certificates: Mapping[str, str]
    """Variables for programs of execd's own Python (``interpreters.certificates_for_tree``)."""
    store: StateDir
    environment: ChildEnvironment
    direct_exec: DirectExec
    held_pipes: HeldPipes
    default_shell: DefaultShell
    temporary_dir: str
    """TMPDIR of user code: /tmp, or a directory in the base dir."""
    ensure_base_dir: Callable[[], Awaitable[None]]
    """Make the base dir if user code has removed it. Raises ExecdError."""
    ensure_temporary_dir: Callable[[], Awaitable[None]]
    counters: Counters
    on_run: Callable[[], None]
    """Called whenever a program or a cell begins to run."""
    look_for_restore: Callable[[], bool]
    """Look whether the sandbox was just restored from a checkpoint, and act: deadlines move, and
    programs outlive their callers. Return whether it was."""

    async def build_environment(
        self, execution_id: str, requested: Mapping[str, str], *, clears: bool = False
    ) -> tuple[dict[str, str], str]:
        """Return the environment of a program, and the entry (``NAME=value``) that marks the
        program's processes. ``clears``: see ``Command.clears_env``."""
        if not self._has_temporary_dir():
            # In a base dir that is not writable the program gets its own error.
            with contextlib.suppress(ExecdError):
                await self.ensure_temporary_dir()
        return self.environment.build(execution_id, requested, clears=clears)

    def _has_temporary_dir(self) -> bool:
        """User code may have removed the directory in the base dir. One lstat on the loop costs
        less than a trip to a thread."""
        return self.temporary_dir == "/tmp" or os.path.lexists(self.temporary_dir)

    def make_log(self, execution_id: str, limits: Limits) -> OutputLog:
        """Where the output of an execution goes. Ended by ``OutputLog.remove``, or with the state
        dir."""
        return OutputLog(self.config.stream_memory_bytes, self.spool_maker(execution_id, limits))

    def spool_maker(self, execution_id: str, limits: Limits) -> Callable[[Stream], Spool]:
        """Where the output of an execution goes that is too long for the memory."""
        log_bytes = self.config.log_bytes if limits.log_bytes is None else limits.log_bytes
        return lambda stream: self.store.spool(f"{execution_id}.{stream}", log_bytes)
