"""The pipes of ended commands that other processes still hold.

A server that a command leaves behind goes on printing. Without a reader the server's next line
would fail with EPIPE, or SIGPIPE would kill the server. So a pipe is read as long as any process
holds the pipe. The bytes go into the log of the execution, within the bounds of the log. When the
execution is forgotten, the bytes are read and dropped.

Ends. A pump ends with the last writer, with ``close``, or when the pump gives way to another pump:
at most ``max_pipes`` are open, and beyond that the pipe closes that has been silent for the
longest.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import resource
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from execd.engine.output.log import OutputLog
    from execd.engine.output.pump import Pump
    from execd.engine.store.state_dir import Spool
    from execd.model import Stream

logger = logging.getLogger(__name__)

MAX_HELD_PIPES = 512
"""Pipes that background processes of ended commands hold (an eighth of RLIMIT_NOFILE at most). The
pipe that has been silent for the longest is closed: its next writer gets EPIPE or SIGPIPE."""


class HeldPipe(NamedTuple):
    execution_id: str
    stream: Stream
    output: OutputLog | None
    """None: the execution is forgotten."""


class HeldPipes:
    """See the module's text. End with ``close``."""

    def __init__(self, open_files: int, on_growth: Callable[[], None]) -> None:
        """``open_files``: RLIMIT_NOFILE of the daemon. ``on_growth`` is called when a log grows."""
        self._max_pipes = MAX_HELD_PIPES
        if open_files != resource.RLIM_INFINITY:
            self._max_pipes = max(1, min(MAX_HELD_PIPES, open_files // 8))
        self._on_growth = on_growth
        self._pipes: dict[Pump, HeldPipe] = {}
        """The longest silent pipe first."""
        self._grown: set[str] = set()
        """Ids of executions."""
        self._is_closed = False

    @property
    def count(self) -> int:
        return len(self._pipes)

    def take(
        self,
        execution_id: str,
        output: OutputLog,
        pumps: Mapping[Stream, Pump],
        make_spool: Callable[[Stream], Spool],
    ) -> None:
        """Read the pipes, whose pumps are paused, from now on."""
        for stream, pump in pumps.items():
            if self._is_closed:
                pump.close()
                continue
            if len(self._pipes) >= self._max_pipes:
                self._close_most_silent()
            self._pipes[pump] = HeldPipe(execution_id, stream, output)
            output.streams[stream].hold(functools.partial(make_spool, stream))
            pump.ended.add_done_callback(functools.partial(self._on_end, pump))
            pump.resume(functools.partial(self._append, pump))

    def _append(self, pump: Pump, data: bytes) -> Awaitable[None] | None:
        execution_id, stream, output = self._pipes[pump] = self._pipes.pop(pump)
        if output is None:
            return None
        self._grown.add(execution_id)
        self._on_growth()
        return output.streams[stream].append(data)

    def _close_most_silent(self) -> None:
        pump, pipe = next(iter(self._pipes.items()))
        logger.warning(
            "a pipe of a background process is closed",
            extra={
                "execution_id": pipe.execution_id,
                "stream": pipe.stream,
                "max_pipes": self._max_pipes,
            },
        )
        pump.close()
        self._on_end(pump)

    def _on_end(self, pump: Pump, _: object = None) -> None:
        pipe = self._pipes.pop(pump, None)
        if pipe is not None and pipe.output is not None:
            pipe.output.streams[pipe.stream].let_go()

    def remove(self, execution_id: str, output: OutputLog) -> None:
        """The execution is forgotten: keep nothing more of its output."""
        self._grown.discard(execution_id)
        for pump, pipe in self._pipes.items():
            if pipe.output is output:
                self._pipes[pump] = pipe._replace(output=None)

    def take_grown(self) -> set[str]:
        """Return the ids of executions whose logs have grown since the last call."""
        grown, self._grown = self._grown, set()
        return grown

    async def close(self, within_seconds: float) -> None:
        """Close the pipes, and wait for writes to the disk that are under way. No pipe comes
        afterwards."""
        self._is_closed = True
        await self.close_all(within_seconds)

    async def close_all(self, within_seconds: float) -> None:
        """Close the present pipes. As ``close``, but others may come."""
        pumps = list(self._pipes)
        for pump in pumps:
            pump.close()
            self._on_end(pump)
        writes = [asyncio.create_task(pump.wait_for_write()) for pump in pumps if pump.is_writing]
        if writes:
            await asyncio.wait(writes, timeout=within_seconds)
            for write in writes:
                write.cancel()
