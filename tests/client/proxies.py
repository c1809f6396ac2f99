"""Proxies that harm: a TCP proxy that cuts connections, and a reverse proxy with the habits of
routers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp
from aiohttp import web
from yarl import URL

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Iterator
    from pathlib import Path

ABORT = struct.pack("ii", 1, 0)
"""SO_LINGER of a socket that is closed with a reset."""


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, work: Awaitable[Any]) -> Any:
        async def awaited() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(awaited(), self.loop).result(60)

    def close(self) -> None:
        async def cancel_rest() -> None:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        self.run(cancel_rest())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class CuttingProxy:
    """Forwards TCP, and resets a connection after a random number of bytes, until ``budget`` cuts
    are done."""

    def __init__(self, address: tuple[str, int], numbers: random.Random) -> None:
        self._address = address
        self._numbers = numbers
        self.cuts_left = 0
        self.least_bytes, self.most_bytes = 1, 2
        self.n_cuts = 0
        self.n_bytes = 0
        """The bytes that were forwarded."""
        self.stalls = False
        """Keep the connections open that would be reset, and forward no more, while true."""
        self._speaks = asyncio.Event()
        self._speaks.set()
        self.port = 0
        """Chosen by the kernel in ``begin``."""

    async def begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def end(self) -> None:
        self._server.close()

    def cut(self, n_cuts: int, most_bytes: int, least_bytes: int = 1) -> None:
        """Reset the next ``n_cuts`` connections, each after at most ``most_bytes`` bytes."""
        self.cuts_left = n_cuts
        self.least_bytes, self.most_bytes = least_bytes, most_bytes

    def fall_silent(self) -> None:
        """Accept connections and forward nothing, as for a pod that is gone, until ``speak``."""
        self._loop.call_soon_threadsafe(self._speaks.clear)

    def speak(self) -> None:
        self._loop.call_soon_threadsafe(self._speaks.set)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = [1 << 62]
        if self.cuts_left > 0:
            self.cuts_left -= 1
            left = [self._numbers.randrange(self.least_bytes, self.most_bytes)]
        ends = [writer]
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._address)
            ends.append(upstream_writer)
            ways = [
                asyncio.create_task(self._copy(reader, upstream_writer, left)),
                asyncio.create_task(self._copy(upstream_reader, writer, left)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            await self._speaks.wait()
            for way in ways:
                way.cancel()
        finally:
            if left[0] <= 0:
                self.n_cuts += 1
            for closed in ends:
                with contextlib.suppress(OSError):
                    own = closed.get_extra_info("socket")
                    own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
                closed.transport.abort()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[int]
    ) -> None:
        """Ends at the end of the stream, or with the last byte that may pass."""
        with contextlib.suppress(OSError):
            while data := await reader.read(16384):
                await self._speaks.wait()
                passed = data[: left[0]]
                left[0] -= len(data)
                self.n_bytes += len(passed)
                writer.write(passed)
                await writer.drain()
                if left[0] <= 0:
                    while self.stalls:  # noqa: ASYNC110  # another thread sets the flag
                        await asyncio.sleep(0.02)
                    return


@contextlib.contextmanager
def cutting_proxy(address: tuple[str, int], numbers: random.Random) -> Iterator[CuttingProxy]:
    loop = Loop()
    try:
        proxy = CuttingProxy(address, numbers)
        loop.run(proxy.begin())
        yield proxy
        loop.run(proxy.end())
    finally:
        loop.close()


class Router:
    """A reverse proxy below a path prefix. It strips ``Authorization``, keeps back what comes from
    the daemon until ``BUFFER_BYTES`` or the end, and gives up on a connection to the client that
    has been idle for ``idle_seconds``."""

    BUFFER_BYTES = 32 * 1024
    PREFIX = "/pods/one"

    def __init__(self, url: str, idle_seconds: float) -> None:
        self._url = url
        self._idle_seconds = idle_seconds
        self.seen: list[dict[str, str]] = []
        self.n_idle_cuts = 0

    async def begin(self, uds: Path | None = None) -> None:
        application = web.Application(client_max_size=1 << 30)
        application.router.add_route("*", self.PREFIX + "/{path:.*}", self._forward)
        self._session = aiohttp.ClientSession(auto_decompress=False)
        self._runner = web.AppRunner(application, handler_cancellation=True)
        await self._runner.setup()
        if uds is not None:
            await web.UnixSite(self._runner, str(uds)).start()
            return
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def end(self) -> None:
        await self._session.close()
        await self._runner.cleanup()

    def _upstream(self, request: web.Request) -> tuple[URL, dict[str, str]]:
        """The daemon's address for the request, and the headers that the daemon gets."""
        dropped = ("authorization", "host", "transfer-encoding")
        headers = {k: v for k, v in request.headers.items() if k.lower() not in dropped}
        url = self._url + request.raw_path.removeprefix(self.PREFIX)
        return URL(url, encoded=True), headers

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(dict(request.headers))
        url, headers = self._upstream(request)
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._websocket(request, url, headers)
        try:
            return await self._exchange(request, url, headers)
        except (TimeoutError, aiohttp.ClientError):
            self.n_idle_cuts += 1
            assert request.transport is not None
            request.transport.abort()
            raise

    async def _exchange(
        self, request: web.Request, url: URL, headers: dict[str, str]
    ) -> web.StreamResponse:
        body = request.content.iter_any() if request.body_exists else None
        answered: web.StreamResponse | None = None
        async with asyncio.timeout(self._idle_seconds) as idle:
            async with self._session.request(
                request.method, url, headers=headers, data=body, allow_redirects=False
            ) as reply:
                kept = bytearray()
                async for chunk in reply.content.iter_any():
                    kept += chunk
                    if len(kept) >= self.BUFFER_BYTES:
                        answered = await self._send(request, reply, answered, kept)
                        idle.reschedule(asyncio.get_running_loop().time() + self._idle_seconds)
                answered = await self._send(request, reply, answered, kept)
                await answered.write_eof()
        return answered

    async def _send(
        self,
        request: web.Request,
        reply: aiohttp.ClientResponse,
        answered: web.StreamResponse | None,
        kept: bytearray,
    ) -> web.StreamResponse:
        if answered is None:
            answered = web.StreamResponse(status=reply.status, headers=reply.headers)
            answered.headers.pop("Transfer-Encoding", None)
            await answered.prepare(request)
        if kept:
            await answered.write(bytes(kept))
            kept.clear()
        return answered

    async def _websocket(
        self, request: web.Request, url: URL, headers: dict[str, str]
    ) -> web.StreamResponse:
        asked = request.headers.get("Sec-WebSocket-Protocol", "")
        protocols = [name.strip() for name in asked.split(",") if name.strip()]
        viewer = web.WebSocketResponse(protocols=protocols)
        await viewer.prepare(request)
        sent = {k: v for k, v in headers.items() if not k.lower().startswith("sec-websocket")}
        async with self._session.ws_connect(url, headers=sent, protocols=protocols) as daemon:
            ways = [self._messages(viewer, daemon), self._messages(daemon, viewer)]
            tasks = [asyncio.create_task(way) for way in ways]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # While another task receives, aiohttp's close does not wait for the viewer's half of the
        # handshake. websockets drops what it has not delivered if it cannot send its half.
        await viewer.close()
        return viewer

    async def _messages(self, source: Any, sink: Any) -> None:
        async for message in source:
            if message.type is aiohttp.WSMsgType.BINARY:
                await sink.send_bytes(message.data)
            else:
                await sink.send_str(message.data)


@contextlib.contextmanager
def router(url: str, idle_seconds: float, uds: Path | None = None) -> Iterator[Router]:
    with serving(Router(url, idle_seconds), uds) as made:
        yield made


R = TypeVar("R", bound=Router)


@contextlib.contextmanager
def serving(made: R, uds: Path | None = None) -> Iterator[R]:
    """The router serves in a thread of its own, until the block ends."""
    loop = Loop()
    try:
        loop.run(made.begin(uds))
        try:
            yield made
        finally:
            loop.run(made.end())
    finally:
        loop.close()
