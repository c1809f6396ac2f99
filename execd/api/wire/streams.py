"""Sending a stream: events as they come, signs of life between them, and an end for readers that
take nothing.

A stream's handler waits for one of two: the next event, or room in the connection. The first is
ended by heartbeats, the second by ``Pace``: a peer that has gone without a word (a node that lost
power, a paused browser tab) never makes room, and the kernel gives up on it after a quarter of an
hour. The program knows nothing of all this: its log is filled by the pumps alone.

No write is ever cancelled while the connection lives on: aiohttp's waiter for room is shared by all
who write to a connection, and cancelling one would end the others. A connection that has to go is
aborted, and the handler learns it from that.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import termios
from typing import TYPE_CHECKING, TypeVar

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from execd.api.wire.encoders import Encoder, WireEvent

CHECKS_PER_STALL = 4
BYTES_PER_TURN = 64 * 1024

T = TypeVar("T")


async def send_events(
    request: web.Request,
    encoder: Encoder,
    events: AsyncGenerator[WireEvent | None, None],
    *,
    stall_seconds: float,
    on_stall: Callable[[], None],
    headers: dict[str, str],
) -> web.StreamResponse:
    """Send all events, where None is a heartbeat, and end. ``on_stall`` is called before a peer
    that takes nothing is cut off."""
    response = web.StreamResponse(
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers}
    )
    response.content_type = encoder.content_type
    async with contextlib.aclosing(events):
        await response.prepare(request)
        with abort_when_stalled(request, stall_seconds, on_stall):
            turn = Turn()
            async for event in events:
                data = encoder.heartbeat if event is None else encoder.encode(event)
                await response.write(data)
                await turn.count_sent(len(data))
            await response.write_eof()
    return response


async def cancel_and_wait(*tasks: asyncio.Future[T]) -> None:
    """Cancel them, and wait until that has happened. What they failed with has been seen already,
    or is of no interest."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Turn:
    """One sender's turn of the event loop: over after ``BYTES_PER_TURN``.

    A peer's socket buffers take 4 MiB before a write waits. Without turns, 300 peers that never
    read would hold the loop for seconds while their buffers fill.
    """

    def __init__(self) -> None:
        self._n_bytes = 0

    async def count_sent(self, size_bytes: int) -> None:
        """Count what was sent; let other tasks run when the turn is over."""
        self._n_bytes += size_bytes
        if self._n_bytes >= BYTES_PER_TURN:
            self._n_bytes = 0
            await asyncio.sleep(0)


class StallDetector:
    """Looks whether a peer takes what is written to it; calls ``on_stall``, once, when it has taken
    nothing for ``stall_seconds``.

    What counts is bytes that have left this machine's buffers: ours and, since those hold
    megabytes, the kernel's as well. ``written`` says how much was ever written to the connection,
    or any number that grows as that does. End it with ``stop``.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        stall_seconds: float,
        written: Callable[[], int],
        on_stall: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._interval_seconds = stall_seconds / CHECKS_PER_STALL
        self._written = written
        self._on_stall = on_stall
        self._taken = -1
        self._n_checks_without = 0
        self._timer = self._loop.call_later(self._interval_seconds, self._check)

    def stop(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        unacknowledged = unacknowledged_bytes(self._transport)
        taken = self._written() - unacknowledged
        if unacknowledged and taken <= self._taken:
            self._n_checks_without += 1
        else:
            self._taken, self._n_checks_without = taken, 0
        if self._n_checks_without >= CHECKS_PER_STALL:
            self._on_stall()
        else:
            self._timer = self._loop.call_later(self._interval_seconds, self._check)


@contextlib.contextmanager
def abort_when_stalled(
    request: web.Request, stall_seconds: float, on_stall: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Abort the connection when its peer takes nothing for so long. Ends the write that waits, and
    the handler with it."""
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the peer is gone")

    def cut() -> None:
        on_stall()
        transport.abort()

    detector = StallDetector(transport, stall_seconds, lambda: request.writer.output_size, cut)
    try:
        yield
    finally:
        detector.stop()


def unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """What was written and the peer's machine has not acknowledged: tcp(7), SIOCOUTQ."""
    waiting = transport.get_write_buffer_size()
    socket = transport.get_extra_info("socket")
    if socket is None or transport.is_closing():
        return waiting
    in_kernel = array.array("i", [0])
    try:
        fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, in_kernel)
    except OSError:
        return waiting  # not a socket that knows
    return waiting + in_kernel[0]
