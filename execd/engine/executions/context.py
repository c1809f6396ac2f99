"""EngineContext: what executions and sessions need of the engine, made once, before the first of
them.

Here and not beside the engine: the engine imports executions and sessions, and both import this.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from execd.engine.output.log import OutputLog
from execd.errors import ExecdError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from execd.config import Config
    from execd.engine.executions.environment import ChildEnvironment
    from execd.engine.store.state_dir import StateDir
    from execd.model import Limits
    from execd.proc.client import WardenClient
    from execd.proc.spawn import Identity


@dataclass(frozen=True)
class EngineContext:
    config: Config
    warden: WardenClient
    identity: Identity
    """Who user code runs as."""
    python: str
    """Path of the interpreter that commands and sessions mean by ``python``."""
    store: StateDir
    environment: ChildEnvironment
    temporary_dir: str
    """TMPDIR of user code: /tmp, or a directory in the base dir."""
    ensure_base_dir: Callable[[], Awaitable[None]]
    """Make the base dir if user code has removed it. Raises ExecdError."""
    ensure_temporary_dir: Callable[[], Awaitable[None]]

    async def build_environment(
        self, execution_id: str, requested: Mapping[str, str]
    ) -> tuple[dict[str, str], str]:
        """The environment of a program, and the entry that marks its processes (``NAME=value``)."""
        if not self._has_temporary_dir():
            # a base dir that cannot be written: the program will find that out
            with contextlib.suppress(ExecdError):
                await self.ensure_temporary_dir()
        return self.environment.build(execution_id, requested)

    def _has_temporary_dir(self) -> bool:
        """User code may have removed the directory in the base dir. One look, which costs less than
        a trip to a thread."""
        return self.temporary_dir == "/tmp" or os.path.lexists(self.temporary_dir)

    def make_log(self, execution_id: str, limits: Limits) -> OutputLog:
        """Where the output of an execution goes. Ended by ``OutputLog.remove``, or with the state
        dir."""
        log_bytes = self.config.log_bytes if limits.log_bytes is None else limits.log_bytes
        return OutputLog(
            self.config.stream_memory_bytes,
            lambda stream: self.store.spool(f"{execution_id}.{stream}", log_bytes),
        )
