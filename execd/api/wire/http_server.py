"""aiohttp's server with a limit on connections, a timer for idle connections, and execd's errors.

aiohttp has no hook for the creation of ``RequestHandler``, the object of one connection. So three
classes of aiohttp are subclassed: ``HttpConnection`` is the handler, ``HttpServer`` creates the
handlers, ``HttpRunner`` creates the server. ``HttpRunner`` overrides the only private name of a
library in execd.

A transport that is closed first sends the buffered bytes. A peer that takes nothing would keep the
descriptor for ever. So a connection with buffered bytes is aborted instead of closed.
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
from execd.api.wire.streams import StallDetector
from execd.errors import Internal, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from execd.api.wire.connections import ConnectionLimits

    Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

logger = logging.getLogger(__name__)

SERVER = f"execd/{__version__}"
# Seconds. A timer that fires more than LATE_SECONDS late means that the event loop was held up.
# Then the loop gets READING_SECONDS to read the bytes that peers have sent meanwhile.
LATE_SECONDS, READING_SECONDS = 1.0, 0.5
COMPLAINT_SECONDS = 60.0


class HttpConnection(web.RequestHandler):
    """One connection. ``owner`` counts the connections and holds their state."""

    __slots__ = ("_owner", "_stall_detector", "_wire")

    def __init__(self, owner: HttpServer, **options: Any) -> None:
        super().__init__(owner, **options)
        self._owner = owner
        # aiohttp drops its own reference before the transport is closed
        self._wire: asyncio.Transport | None = None
        self._stall_detector: StallDetector | None = None

    @property
    def has_place(self) -> bool:
        """Return whether the connection's request may be served. Without a place a request gets one
        answer: the probe's, or 503.

        Also False for a connection that was closed between the last byte of the request and the
        start of the handler: nobody would get the answer.
        """
        return self._owner.table.phase(self) is ConnectionPhase.BUSY

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is one, but does not inherit from asyncio's class
        assert self._wire is None, "one transport in the life of a connection"
        self._wire = cast("asyncio.Transport", transport)
        super().connection_made(transport)
        self._owner.register(self, transport.get_extra_info("socket").fileno())

    def data_received(self, data: bytes) -> None:
        if data:  # aiohttp passes no data when reading resumes after a pause
            self._owner.note_bytes(self)
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._owner.unregister(self)
        self._stop_detector()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start to watch for a stall: the peer takes less than the handler sends. Handlers that
        stream watch too, with a shorter limit."""
        super().pause_writing()
        assert self._stall_detector is None, "asyncio pauses and resumes in turns"
        if self._wire is not None:
            self._stall_detector = StallDetector(
                self._wire, self._owner.stall_seconds, lambda: 0, self._wire.abort
            )

    def resume_writing(self) -> None:
        self._stop_detector()
        super().resume_writing()

    def _stop_detector(self) -> None:
        if self._stall_detector is not None:
            self._stall_detector.stop()
            self._stall_detector = None

    def drop(self) -> None:
        """Close the connection. Bytes that the peer has not taken are lost."""
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
        """Answer bytes that are not HTTP. The path is unknown, so the reply belongs to no dialect;
        clients of all dialects read the field "message"."""
        # logs, and refuses an error after the start of a reply
        super().handle_error(request, status, exc, message)
        malformed = InvalidArgument(
            "the request is not well-formed HTTP, or its line or its headers are too long"
        )
        response = errors.render_v1(malformed if status < 500 else Internal("internal error"))
        response.headers["Server"] = SERVER
        response.force_close()
        return response


class HttpServer(web.Server):
    """Create the connections, and hold them to the limits on number and time."""

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
        self._timer_at = math.inf
        self._silent_until = 0.0

    def __call__(self) -> HttpConnection:
        return HttpConnection(self, loop=self._clock, **self._options)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, HttpConnection)
        self.table.begin_request(connection)
        try:
            return await self._handler(request)
        finally:
            self._end_request(connection)
            if not request.content.is_eof():
                # aiohttp reads the rest of the body for a while, so that a reset does not destroy
                # the reply.
                request.content.on_eof(lambda: self._end_request(connection))

    def _end_request(self, connection: HttpConnection) -> None:
        now = self._clock.time()
        self.table.end_request(connection, now)
        self._set_timer(now + self._options["keepalive_timeout"] + self._limits.request_seconds)

    def register(self, connection: HttpConnection, descriptor: int) -> None:
        now = self._clock.time()
        scarce = self._limits.are_scarce(descriptor)
        displaced = self.table.open(connection, now, are_descriptors_scarce=scarce)
        if displaced is not None:
            displaced.drop()
        assert self.table.phase(connection) is not None
        is_full = displaced is not None or self.table.phase(connection) is ConnectionPhase.PROBING
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
        self._set_timer(now + self._limits.request_seconds)

    def note_bytes(self, connection: HttpConnection) -> None:
        now = self._clock.time()
        if self.table.note_bytes(connection, now):
            self._set_timer(now + self._limits.request_seconds)

    def unregister(self, connection: HttpConnection) -> None:
        self.table.close(connection)
        if not self.table:
            self._stop_timer()

    def _set_timer(self, at: float) -> None:
        """Drop expired connections at this time, or earlier. One timer serves all connections, and
        is almost always set already."""
        assert (self._timer is None) == (self._timer_at == math.inf)
        if at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._clock.call_at(at, self._drop_expired)
            self._timer_at = at

    def _drop_expired(self) -> None:
        assert self._timer is not None, "only the timer calls"
        now = self._clock.time()
        if now > self._timer_at + LATE_SECONDS:
            # The event loop was held up. Read what peers have sent meanwhile before any connection
            # expires.
            self._stop_timer()
            self._set_timer(now + READING_SECONDS)
            return
        for connection in self.table.take_expired(now):
            connection.drop()
        self._stop_timer()
        if (at := self.table.next_expiry()) is not None:
            self._set_timer(at)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, math.inf


class HttpRunner(web.AppRunner):
    """An AppRunner whose server is an ``HttpServer``.

    Overrides ``AppRunner._make_server``, a private name of aiohttp. Reason: aiohttp has no public
    hook for the server of an application. ``web.ServerRunner`` takes a server, but then the
    application's start-up, router and middleware are reachable only through other private names.
    """

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
