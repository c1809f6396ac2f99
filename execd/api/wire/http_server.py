"""aiohttp's server with a limit on connections, a timer for idle connections, and execd's errors.

aiohttp has no hook for the creation of ``RequestHandler``, the object of one connection. So three
classes of aiohttp are subclassed: ``HttpConnection`` is the handler, ``HttpServer`` creates the
handlers, ``HttpRunner`` creates the server, by overriding a private name of aiohttp.

A transport that is closed first sends the buffered bytes. A peer that takes nothing would keep the
descriptor for ever. So a connection with buffered bytes is aborted instead of closed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web
from aiohttp.http import HttpVersion, HttpVersion10, HttpVersion11
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from execd.api.wire import errors, malformed
from execd.api.wire.connections import ConnectionPhase, Connections
from execd.api.wire.keys import FACTS, RequestFacts
from execd.api.wire.origins import request_id
from execd.api.wire.replies import EPISODE_HEADER, INSTANCE_HEADER, SERVER
from execd.api.wire.streams import StallDetector
from execd.api.wire.targets import single_slashes
from execd.errors import Internal, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp.http import RawRequestMessage

    from execd.api.wire.connections import ConnectionLimits
    from execd.engine.episodes import Episodes
    from execd.engine.metrics.counters import Counters
    from execd.engine.restores import Restore, Restores
    from execd.errors import ExecdError

    Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

logger = logging.getLogger(__name__)

# Seconds. A timer that fires more than LATE_SECONDS late means that the event loop was held up.
# Then the loop gets READING_SECONDS to read the bytes that peers have sent meanwhile.
LATE_SECONDS, READING_SECONDS = 1.0, 0.5
COMPLAINT_SECONDS = 60.0
# Turns of the event loop from the bytes of a request, or the end of the request before, until
# aiohttp calls _serve: the loop of the connection wakes, and starts a task.
IDLE_TURNS = 3
SPOKEN = (HttpVersion10, HttpVersion11)


class HttpConnection(web.RequestHandler):
    """One connection. ``owner`` counts the connections and holds their state."""

    __slots__ = ("_owner", "_request", "_stall_detector", "_wire", "is_half_closed")

    def __init__(self, owner: HttpServer, **options: Any) -> None:
        super().__init__(owner, **options)
        self._owner = owner
        # aiohttp drops its own reference before the transport is closed
        self._wire: asyncio.Transport | None = None
        self._stall_detector: StallDetector | None = None
        self._request: web.BaseRequest | None = None
        self.is_half_closed = False
        """The peer has ended the sending half, and sends no further request."""

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
            self._owner.counters.received_bytes += len(data)
            self._owner.note_bytes(self)
        super().data_received(data)

    # asyncio: the result decides whether the transport stays open. aiohttp declares None.
    def eof_received(self) -> bool:  # type: ignore[override]
        """Note that the peer has ended the sending half. Return True: the transport stays open.

        A peer that has left altogether looks the same, so the connection is closed where nobody
        waits for a reply, where the rest of a request is missing, and on routes that run something:
        there a half-close means that the caller has left.
        """
        self.is_half_closed = True
        if self._request is None:
            self._close_when_idle()
        elif not self.may_answer_half_closed(self._request):
            self.close_gently()
        return True

    def may_answer_half_closed(self, request: web.BaseRequest) -> bool:
        """Return whether the peer gets the reply to a request after a half-close. The middleware
        asks again if the router has not seen the request yet."""
        if not request.content.is_eof():
            return False
        if not request[FACTS].id:  # the middleware, after the router, adds the id
            return True
        assert isinstance(request, web.Request)
        resource = request.match_info.route.resource
        return resource is None or not self._owner.runs(request.method, resource.canonical)

    def begin(self, request: web.BaseRequest) -> None:
        assert self._request is None, "one request at a time"
        self._request = request

    def end(self) -> None:
        self._request = None
        if self.is_half_closed:
            self._close_when_idle()

    def _close_when_idle(self, turns: int = IDLE_TURNS) -> None:
        """Close, unless aiohttp takes up a further request, which the peer sent before the end.
        aiohttp needs two turns of the loop from the end of a request to the next request."""
        if self._request is not None:
            return  # end() closes
        if turns == 0:
            self.close_gently()
        else:
            asyncio.get_running_loop().call_soon(self._close_when_idle, turns - 1)

    def close_gently(self) -> None:
        """Close the connection after the bytes that the peer has not taken yet."""
        if self._wire is not None:
            self._wire.close()

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
        """Answer bytes that are not HTTP. The path is unknown, so the reply has the shape of /v1;
        clients of all dialects read the field "message"."""
        if status < 500:
            refusal = _refuse_malformed(malformed.explain(exc), None, self._owner)
        else:
            refusal = _final_refusal(Internal("internal error"), None, self._owner)
            facts = {"request_id": refusal.headers["X-Request-ID"], "http_status": refusal.status}
            logger.error("fault of the server", exc_info=exc, extra=facts)
        if request.writer.output_size > 0:
            raise ConnectionError("the reply has begun already")
        return refusal


class HttpServer(web.Server):
    """Create the connections, and hold them to the limits on number and time."""

    def __init__(
        self,
        handler: Handler,
        *,
        limits: ConnectionLimits,
        counters: Counters,
        restores: Restores,
        episodes: Episodes,
        stall_seconds: float,
        runs: Callable[[str, str], bool],
        options: dict[str, Any],
        request_factory: Callable[..., web.BaseRequest],
        **of_server: Any,
    ) -> None:
        super().__init__(self._serve, request_factory=self._make_request, **of_server)
        self._request_factory = request_factory
        self.table: Connections[HttpConnection] = Connections(limits, options["keepalive_timeout"])
        self.counters = counters
        self.restores = restores
        self.episodes = episodes
        self._end_subscription = restores.subscribe(self._drop_all)
        self.stall_seconds = stall_seconds
        self.runs = runs
        self._handler = handler
        self._limits = limits
        self._options = options
        self._clock = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._silent_until = 0.0

    def __call__(self) -> HttpConnection:
        return HttpConnection(self, loop=self._clock, **self._options)

    def _make_request(self, message: RawRequestMessage, *rest: Any) -> web.BaseRequest:
        """Make the request object, without the parts that aiohttp would act upon too early.

        aiohttp replies in the version of the request, whatever number a request line has, so a
        version that execd does not speak is replaced. aiohttp answers ``Expect`` before any
        middleware runs, on a path without a route even with aiohttp's own handler: so the header is
        taken away, and its members become ``expectations``. ``//list`` is ``/list``, as many base
        URLs end in a slash, so all after this point see one slash.
        """
        is_spoken, has_slashes = message.version in SPOKEN, "//" in message.path
        if is_spoken and not has_slashes and "Expect" not in message.headers:
            request = self._request_factory(message, *rest)
            request[FACTS] = RequestFacts(self.restores, self.episodes)
            return request
        headers = CIMultiDict(message.headers)
        expectations = ",".join(headers.popall("Expect", [])).lower().split(",")
        known = message._replace(
            version=message.version if is_spoken else HttpVersion11,
            headers=CIMultiDictProxy(headers),
        )
        if has_slashes:
            target = single_slashes(message.path)
            known = known._replace(path=target, url=URL(target, encoded=True))
        request = self._request_factory(known, *rest)
        facts = request[FACTS] = RequestFacts(self.restores, self.episodes)
        facts.expectations = frozenset(one.strip() for one in expectations) - {""}
        if not is_spoken:
            facts.foreign_version = message.version
        return request

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, HttpConnection)
        self.restores.look_at_clocks(connection)
        self.table.begin_request(connection)
        connection.begin(request)
        try:
            if (version := request[FACTS].foreign_version) is not None:
                return _refuse_version(version, request, self)
            return await self._handler(request)
        finally:
            self._end_request(connection)
            connection.end()
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

    # aiohttp's signature.
    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        self._end_subscription()
        await super().shutdown(timeout)

    def _drop_all(self, _restore: Restore, spared: object) -> None:
        """The sandbox was restored from a checkpoint: the peers of all connections are gone, and no
        packet will tell."""
        for connection in self.table:
            if connection is not spared:
                self.table.close(connection)
                connection.drop()

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


def _refuse_version(
    version: HttpVersion, request: web.BaseRequest, server: HttpServer
) -> web.StreamResponse:
    error = InvalidArgument(
        f"HTTP/{version.major}.{version.minor}, or no version at all: "
        "the versions of this server are HTTP/1.0 and HTTP/1.1"
    )
    return _refuse_malformed(error, request.headers.get("X-Request-ID"), server)


def _refuse_malformed(
    error: ExecdError, given_id: str | None, server: HttpServer
) -> web.StreamResponse:
    """Render and log the refusal of bytes that are not HTTP. aiohttp's own line has no id, and
    quotes the request."""
    refusal = _final_refusal(error, given_id, server)
    facts = {"request_id": refusal.headers["X-Request-ID"], "http_status": refusal.status}
    logger.info("malformed request", extra={**facts, "rule": str(error)})
    return refusal


def _final_refusal(
    error: ExecdError, given_id: str | None, server: HttpServer
) -> web.StreamResponse:
    """Render and count an error that no middleware sees, after which the connection ends."""
    server.counters.error_replies[error.code] += 1
    response = errors.render_v1(error)
    response.headers["X-Request-ID"] = request_id(given_id)
    response.headers[INSTANCE_HEADER] = server.restores.instance_id
    response.headers[EPISODE_HEADER] = server.episodes.current
    response.headers["Server"] = SERVER
    response.force_close()
    return response


class HttpRunner(web.AppRunner):
    """An AppRunner whose server is an ``HttpServer``.

    Overrides ``AppRunner._make_server``, a private name of aiohttp. Reason: aiohttp has no public
    hook for the server of an application. ``web.ServerRunner`` takes a server, but then the
    application's start-up, router and middleware are reachable only through other private names.
    """

    def __init__(
        self,
        app: web.Application,
        make_server: Callable[..., HttpServer],
        *,
        shutdown_timeout: float,
    ) -> None:
        """``make_server`` has all parameters but those of aiohttp's own server."""
        super().__init__(app, shutdown_timeout=shutdown_timeout)
        self._make_http_server = make_server

    async def start(self, host: str, port: int, backlog: int) -> tuple[str, int]:
        """Listen, and return the address. Raises OSError."""
        await self.setup()
        await web.TCPSite(self, host, port, backlog=backlog).start()
        bound_host, bound_port = self.addresses[-1][:2]
        return bound_host, bound_port

    async def _make_server(self) -> web.Server:
        plain = await super()._make_server()
        return self._make_http_server(
            plain.request_handler,
            request_factory=plain.request_factory,
            handler_cancellation=True,
        )
