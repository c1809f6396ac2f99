"""Streams of events: heartbeats, turns of the event loop, and a limit for readers that take
nothing.

The handler of a stream waits for the next event or for room in the connection. A heartbeat bounds
the first wait. ``StallDetector`` bounds the second wait: a peer that vanished without a word (a
node without power, a paused browser tab) never makes room, and the kernel gives up on the peer only
after a quarter of an hour. The program is not involved: the pumps fill the log, whether or not
anybody reads.

No write is cancelled while the connection lives on. In aiohttp all writers of a connection wait for
room on one shared future, and a cancelled writer would cancel the future for the others. So a
stalled connection is aborted, and the abort ends the writes and the handler.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import termios
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from aiohttp import web

from execd.api.wire.keys import ENGINE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping

    from execd.api.wire.encoders import Encoder, WireEvent

CHECKS_PER_STALL = 4
BYTES_PER_TURN = 64 * 1024
# A small event costs about 7 µs, as much time as the copy of so many bytes.
EVENT_COST_BYTES = 1024

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

T = TypeVar("T")


async def send_events(
    request: web.Request,
    encoder: Encoder,
    events: AsyncGenerator[WireEvent | None, None],
    *,
    on_stall: Callable[[], None] = lambda: None,
    headers: Mapping[str, str] = NO_HEADERS,
) -> web.StreamResponse:
    """Send all events and end the stream. ``None`` stands for a heartbeat. ``on_stall`` is called
    before a peer that takes nothing is cut."""
    return await send_stream(
        request,
        events,
        lambda event: encoder.heartbeat if event is None else encoder.encode(event),
        content_type=encoder.content_type,
        charset=encoder.charset,
        on_stall=on_stall,
        headers=headers,
    )


async def send_stream(
    request: web.Request,
    events: AsyncGenerator[T, None],
    encode: Callable[[T], bytes],
    *,
    content_type: str,
    charset: str | None = None,
    on_stall: Callable[[], None] = lambda: None,
    headers: Mapping[str, str] = NO_HEADERS,
) -> web.StreamResponse:
    """Send what ``encode`` makes of each event, and end the stream. ``on_stall`` as in
    ``send_events``."""
    response = web.StreamResponse(
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers}
    )
    response.content_type = content_type
    response.charset = charset
    async with contextlib.aclosing(events):
        await response.prepare(request)
        with abort_when_stalled(request, on_stall):
            turn = Turn()
            async for event in events:
                data = encode(event)
                await response.write(data)
                await turn.count_sent(len(data))
            await response.write_eof()
    return response


async def cancel_and_wait(*tasks: asyncio.Future[T]) -> None:
    """Cancel the tasks and wait for their ends. Their exceptions are dropped: the caller has seen
    them already, or does not need them."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Turn:
    """One sender's turn of the event loop: over after ``BYTES_PER_TURN``, or 64 small events.

    A write waits only when the socket buffers of the peer are full, after about 4 MiB. Without
    turns, 300 peers that ask for 4,000 small events each would hold the event loop for 8 s.
    """

    def __init__(self) -> None:
        self._n_bytes = 0

    async def count_sent(self, size_bytes: int) -> None:
        """Count an event that was sent. At the end of the turn, let other tasks run."""
        assert 0 <= self._n_bytes < BYTES_PER_TURN
        self._n_bytes += EVENT_COST_BYTES + size_bytes
        if self._n_bytes >= BYTES_PER_TURN:
            self._n_bytes = 0
            await asyncio.sleep(0)


class StallDetector:
    """Call ``on_stall`` once, when a peer has taken nothing for ``stall_seconds``. End the detector
    with ``stop``.

    Bytes count as taken when the peer's machine has acknowledged them: the transport's buffer and
    the kernel's buffer, which holds megabytes, are both subtracted. ``written`` returns the number
    of bytes ever written to the connection, or any number that grows as fast.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        stall_seconds: float,
        written: Callable[[], int],
        on_stall: Callable[[], None],
    ) -> None:
        assert stall_seconds > 0
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
        assert self._n_checks_without < CHECKS_PER_STALL, "the last check set no timer"
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
    request: web.Request, on_stall: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Abort the connection when the peer takes nothing for ``stream_stall_seconds``. The abort ends
    the waiting write, and with the write the handler."""
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the peer is gone")

    def cut() -> None:
        on_stall()
        transport.abort()

    stall_seconds = request.app[ENGINE].config.stream_stall_seconds
    detector = StallDetector(transport, stall_seconds, lambda: request.writer.output_size, cut)
    try:
        yield
    finally:
        detector.stop()


def unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Return the bytes that were written and not acknowledged by the peer's machine: tcp(7),
    SIOCOUTQ."""
    waiting = transport.get_write_buffer_size()
    socket = transport.get_extra_info("socket")
    if socket is None or transport.is_closing():
        return waiting
    in_kernel = array.array("i", [0])
    try:
        fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, in_kernel)
    except OSError:
        return waiting  # not a TCP socket
    return waiting + in_kernel[0]
