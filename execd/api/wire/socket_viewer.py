"""A viewer: a WebSocket that shows the output of a program and takes input for the program.

Three tasks serve a viewer: a task sends the frames, a task receives messages, and a task gives
input to the program. Input has a task of its own, so that a signal gets through while the program
reads nothing.

The lock ``_sending`` is held during each send. The code that ends a viewer takes the lock before it
cancels the tasks, so no send is cancelled in the middle: ``streams`` explains the reason.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import aclosing
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.http import WSCloseCode, WSMsgType

from execd.api.wire.body import lease_of
from execd.api.wire.keys import ENGINE
from execd.api.wire.streams import StallDetector, Turn, cancel_and_wait
from execd.engine.in_flight import FREE_BYTES
from execd.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from aiohttp import WSMessage

    Frame = tuple[bytes, WSMsgType]

TOO_SLOW = 4008
"""Close code, from the range for applications (RFC 6455 §7.4.2). Modelled on HTTP's 408; other
servers use the same code."""
MAX_MESSAGE_BYTES = 256 * 1024
"""Size of a message to execd."""
CLOSE_SECONDS = 5.0
"""Seconds for the closing handshake."""

MESSAGES_PER_TURN = 32
MESSAGES_PER_SECOND = 10_000
"""Messages of a viewer, in a second. With more the WebSocket closes with 1008.

A paste is one message; the fastest keyboard makes some hundred messages a second."""


class SocketViewer(ABC):
    """One viewer. After the handshake of the socket, ``serve`` serves the viewer."""

    @staticmethod
    def offer(
        request: web.Request, route: str, protocols: tuple[str, ...] = ()
    ) -> web.WebSocketResponse:
        """Return the socket for a viewer, whose message in part counts as in flight from now on.
        Raises InvalidArgument, ResourceExhausted."""
        socket = web.WebSocketResponse(
            timeout=CLOSE_SECONDS,
            autoping=False,  # aiohttp answers a flood of pings in one turn of the loop
            compress=False,
            max_msg_size=MAX_MESSAGE_BYTES,
            protocols=protocols,
        )
        # RFC 6455 §4.1: the handshake is a GET. HEAD gets the answer of a GET without a handshake.
        if request.method != "GET" or not socket.can_prepare(request):
            raise InvalidArgument(f"{route}: a WebSocket is needed (Upgrade: websocket)")
        lease_of(request).resize(FREE_BYTES + MAX_MESSAGE_BYTES)
        return socket

    def __init__(
        self,
        request: web.Request,
        socket: web.WebSocketResponse,
        on_close: Callable[[int], None] = lambda _code: None,
    ) -> None:
        """``on_close`` gets the close code, before the closing handshake."""
        self._request = request
        self._engine = request.app[ENGINE]
        self._socket = socket
        self._on_close = on_close
        self._sent_bytes = 0
        self._turn = Turn()
        self._sending = asyncio.Lock()
        self._dismissal: asyncio.Future[tuple[int, bytes]]
        self._dismissal = asyncio.get_running_loop().create_future()
        """The close code and its reason, once the viewer has to go."""

    @abstractmethod
    def _frames(self, offset: int) -> AsyncGenerator[Frame | None, None]:
        """Yield the frames for the viewer, from ``offset`` of the output on. None: a heartbeat."""

    @abstractmethod
    async def _obey(self, message: WSMessage) -> None:
        """Obey a message of the viewer, or report the refusal. Pings are answered already."""

    @abstractmethod
    async def _feed_input(self) -> None:
        """Give the program its input, without end."""

    def dismiss(self, code: int, reason: bytes) -> None:
        """Send the viewer away."""
        if not self._dismissal.done():
            self._dismissal.set_result((code, reason))

    async def serve(self, offset: int) -> None:
        """Serve until all is sent, the viewer has left, or the viewer is sent away."""
        transport = self._request.transport
        if transport is None:
            return
        detector = StallDetector(
            transport,
            self._engine.config.stream_stall_seconds,
            lambda: self._sent_bytes,
            lambda: self.dismiss(TOO_SLOW, b"too slow"),
        )
        send = asyncio.ensure_future(self._send_all(offset))
        receive = asyncio.ensure_future(self._receive())
        feed = asyncio.ensure_future(self._feed_input())
        try:
            await asyncio.wait(
                (send, receive, self._dismissal), return_when=asyncio.FIRST_COMPLETED
            )
            if self._dismissal.done():
                # Without ``_sending``: the holder of the lock may wait for the viewer.
                await self._close(*self._dismissal.result())
            elif send.done():
                async with self._sending:
                    await cancel_and_wait(receive, feed)
                send.result()
                await self._close(WSCloseCode.OK, b"")
        finally:
            detector.stop()
            await cancel_and_wait(send, receive, feed)
            # aiohttp counts the handshake only.
            self._engine.counters.sent_bytes += self._sent_bytes

    async def _close(self, code: int, reason: bytes) -> None:
        self._on_close(code)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._socket.close(code=code, message=reason)
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()

    async def _send_all(self, offset: int) -> None:
        async with aclosing(self._frames(offset)) as frames:
            async for frame in frames:
                if frame is None:
                    async with self._sending:
                        self._sent_bytes += frame_size_bytes(0)
                        await self._socket.ping()
                else:
                    await self._send(*frame)

    async def _send(self, data: bytes, kind: WSMsgType) -> None:
        async with self._sending:
            self._sent_bytes += frame_size_bytes(len(data))
            await self._socket.send_frame(data, kind)
        await self._turn.count_sent(len(data))

    async def _receive(self) -> None:
        """Obey messages. Returns when the viewer has left or has sent too many messages.

        aiohttp returns received messages without a turn of the event loop, and 256 KiB hold 40,000
        small messages. So other tasks run after each MESSAGES_PER_TURN messages, and a viewer above
        MESSAGES_PER_SECOND is sent away.
        """
        loop = asyncio.get_running_loop()
        since, n_messages = loop.time(), 0
        async for message in self._socket:
            n_messages += 1
            if n_messages % MESSAGES_PER_TURN == 0:
                await asyncio.sleep(0)
            if n_messages > MESSAGES_PER_SECOND:
                if loop.time() - since < 1.0:
                    reason = f"over {MESSAGES_PER_SECOND} messages a second"
                    self.dismiss(WSCloseCode.POLICY_VIOLATION, reason.encode())
                    return
                since, n_messages = loop.time(), 0
            if message.type is WSMsgType.PING:
                await self._socket.pong(message.data)
            else:
                await self._obey(message)


def frame_size_bytes(size_bytes: int) -> int:
    """Return the size of an unmasked frame with a payload of ``size_bytes``: RFC 6455 §5.2."""
    return size_bytes + (2 if size_bytes < 126 else 4 if size_bytes < 65536 else 10)
