"""aiohttp's server with a limit on connections, a clock for idle ones, and errors in execd's words.

aiohttp has no hook for the creation of its per-connection ``RequestHandler``. So three of its
classes are subclassed: the handler itself, the server that creates it, and the runner that creates
the server.

Why nothing is closed in the usual way alone: a transport that is closed first sends what it still
holds, and a peer that takes nothing would keep the descriptor for ever. Such a connection is
aborted.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web

from execd import __version__
from execd.api.wire import errors
from execd.api.wire.connections import ConnectionPhase, Connections
from execd.api.wire.streams import Pace
from execd.errors import Internal, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from execd.api.wire.connections import ConnectionLimits

    Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

logger = logging.getLogger(__name__)

SERVER = f"execd/{__version__}"
# A loop that is so late has not read what its peers sent in time, and gets so long to do so.
LATE_SECONDS, READING_SECONDS = 1.0, 0.5
COMPLAINT_SECONDS = 60.0


class HttpConnection(web.RequestHandler):
    """One connection. ``owner`` counts it."""

    __slots__ = ("_owner", "_pace", "_wire")

    def __init__(self, owner: HttpServer, **options: Any) -> None:
        super().__init__(owner, **options)
        self._owner = owner
        self._wire: asyncio.Transport | None = None  # aiohttp forgets its own before it is closed
        self._pace: Pace | None = None

    @property
    def has_place(self) -> bool:
        """Whether its request may be served. Otherwise it gets one answer: to a probe, or 503.

        Also False for a connection that was closed between its last byte and the start of the
        handler: nobody would get the answer.
        """
        return self._owner.table.phase(self) is ConnectionPhase.BUSY

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast("asyncio.Transport", transport)  # uvloop's is one, but not by inheritance
        super().connection_made(transport)
        self._owner.opened(self, transport.get_extra_info("socket").fileno())

    def data_received(self, data: bytes) -> None:
        if data:  # aiohttp calls it without data when reading goes on after a pause
            self._owner.received(self)
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._owner.lost(self)
        self._stop_pace()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The peer takes less than is sent. Handlers that stream watch that too, with a shorter
        patience."""
        super().pause_writing()
        if self._wire is not None:
            self._pace = Pace(self._wire, self._owner.stall_seconds, lambda: 0, self._wire.abort)

    def resume_writing(self) -> None:
        self._stop_pace()
        super().resume_writing()

    def _stop_pace(self) -> None:
        if self._pace is not None:
            self._pace.stop()
            self._pace = None

    def drop(self) -> None:
        """Close the connection, whatever its peer does not take."""
        if self._wire is None:
            return
        if self._wire.get_write_buffer_size():
            self._wire.abort()
        else:
            self._wire.close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """As all errors look. The path is not known, so it is no dialect's; all who read errors
        read "message"."""
        super().handle_error(request, status, exc, message)  # logs, and refuses what comes too late
        malformed = InvalidArgument(
            "the request is not well-formed HTTP, or its line or its headers are too long"
        )
        response = errors.render_v1(malformed if status < 500 else Internal("internal error"))
        response.headers["Server"] = SERVER
        response.force_close()
        return response


class HttpServer(web.Server):
    """Creates the connections, and keeps their number and their times within the limits."""

    def __init__(
        self,
        handler: Handler,
        *,
        limits: ConnectionLimits,
        stall_seconds: float,
        options: dict[str, Any],
        **of_server: Any,
    ) -> None:
        super().__init__(self._serve, **of_server)
        self.table: Connections[HttpConnection] = Connections(limits, options["keepalive_timeout"])
        self.stall_seconds = stall_seconds
        self._handler = handler
        self._limits = limits
        self._options = options
        self._clock = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf
        self._silent_until = 0.0

    def __call__(self) -> HttpConnection:
        return HttpConnection(self, loop=self._clock, **self._options)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, HttpConnection)
        self.table.begin(connection)
        try:
            return await self._handler(request)
        finally:
            self._ended(connection)
            if not request.content.is_eof():
                # aiohttp reads on for a while, so that the reply is not lost in a reset.
                request.content.on_eof(lambda: self._ended(connection))

    def _ended(self, connection: HttpConnection) -> None:
        now = self._clock.time()
        self.table.end(connection, now)
        self._wake_by(now + self._options["keepalive_timeout"] + self._limits.request_seconds)

    def opened(self, connection: HttpConnection, descriptor: int) -> None:
        now = self._clock.time()
        scarce = self._limits.are_scarce(descriptor)
        in_the_way = self.table.open(connection, now, are_descriptors_scarce=scarce)
        if in_the_way is not None:
            in_the_way.drop()
        is_full = in_the_way is not None or self.table.phase(connection) is ConnectionPhase.PROBING
        if is_full and now >= self._silent_until:
            self._silent_until = now + COMPLAINT_SECONDS
            logger.warning(
                "too many connections",
                extra={
                    "open": len(self.table),
                    "limit": self._limits.max_open,
                    "descriptor": descriptor,
                },
            )
        self._wake_by(now + self._limits.request_seconds)

    def received(self, connection: HttpConnection) -> None:
        now = self._clock.time()
        if self.table.receive(connection, now):
            self._wake_by(now + self._limits.request_seconds)

    def lost(self, connection: HttpConnection) -> None:
        self.table.close(connection)
        if not self.table:
            self._stop_timer()

    def _wake_by(self, at: float) -> None:
        """Look for expired connections at this time, or earlier. One timer for all: it is almost
        always set already."""
        if at < self._wakes_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._clock.call_at(at, self._expire)
            self._wakes_at = at

    def _expire(self) -> None:
        now = self._clock.time()
        if now > self._wakes_at + LATE_SECONDS:
            # The loop itself was held up: what peers have sent meanwhile is read before anybody is
            # judged.
            self._stop_timer()
            self._wake_by(now + READING_SECONDS)
            return
        for connection in self.table.expired(now):
            connection.drop()
        self._stop_timer()
        if (at := self.table.next_expiry()) is not None:
            self._wake_by(at)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._wakes_at = None, math.inf


class HttpRunner(web.AppRunner):
    """An AppRunner whose server is ours."""

    def __init__(
        self,
        app: web.Application,
        *,
        limits: ConnectionLimits,
        stall_seconds: float,
        options: dict[str, Any],
        shutdown_timeout: float,
    ) -> None:
        super().__init__(app, shutdown_timeout=shutdown_timeout)
        self._limits = limits
        self._stall_seconds = stall_seconds
        self._options = options

    async def _make_server(self) -> web.Server:
        plain = await super()._make_server()
        return HttpServer(
            plain.request_handler,
            limits=self._limits,
            stall_seconds=self._stall_seconds,
            options=self._options,
            request_factory=plain.request_factory,
            handler_cancellation=True,
        )
