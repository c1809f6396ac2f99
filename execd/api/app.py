"""The application: the routes, and the middleware around each request.

The middleware owns a request from the first header to the last byte of the reply. In order: the
request id, the guard, the handler, errors in the words of the dialect, the write of the reply, one
log line. A handler writes the reply itself if the handler streams, or must know whether the reply
arrived. The key ``STARTED`` marks a reply whose headers went out. After ``STARTED`` an error can
only cut the connection. A peer tells a cut from a complete reply by the missing length or the
missing last chunk.

Bytes that are not HTTP never reach the middleware: ``http_server.HttpConnection.handle_error``
answers them.

aiohttp cancels a handler when the peer hangs up (``handler_cancellation``, set in ``http_server``).
/execute depends on the cancellation.
"""

from __future__ import annotations

import functools
import logging
import random
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, TypedDict

from aiohttp import web

from execd.api.probes import metrics
from execd.api.routes import PORT_8888
from execd.api.wire import errors
from execd.api.wire.auth import Guard, TokenGate
from execd.api.wire.body import (
    READ_AHEAD_BYTES,
    awaits_continue,
    refuse_transfer_coding,
    refuse_unknown_expectation,
    refuse_unread_body,
)
from execd.api.wire.http_server import SERVER, HttpConnection, HttpRunner
from execd.api.wire.keys import (
    BODY_SECONDS,
    ENGINE,
    EXECUTION,
    GATE,
    LEASE,
    REQUEST_ID,
    STARTED,
    TABLE,
)
from execd.api.wire.request_id import request_id
from execd.api.wire.route import Access
from execd.api.wire.targets import raw_path_of
from execd.errors import ExecdError, Internal, Unavailable

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler, Middleware

    from execd.api.wire.connections import ConnectionLimits
    from execd.api.wire.dialect import Dialect, ErrorRenderers
    from execd.config import Config
    from execd.engine.engine import Engine
    from execd.engine.metrics.counters import Counters

logger = logging.getLogger("execd.api")

# A path of 4,096 bytes (PATH_MAX), each of them percent-encoded, and the rest of the line.
MAX_REQUEST_LINE_BYTES = 16 * 1024
# Unread bytes of a refused request. Up to this size execd reads the rest and keeps the connection.
MAX_UNREAD_BYTES = 1 << 20


_RECORD_FIELDS = {
    level: vars(logger.makeRecord(logger.name, level, "", 0, "request", (), None))
    for level in (logging.DEBUG, logging.INFO)
}
"""By level: what all records of a request's line have in common."""


class RequestFields(TypedDict):
    """The fields of a request's log line. The docstring of a field is its row in
    docs/reference/logs.md."""

    method: str
    """As in the request."""
    path: str
    """As in the request, without the query."""
    http_status: int | None
    """Of the reply; null: the peer hung up before an answer."""
    request_seconds: float
    """From the headers of the request to the last byte of the reply."""
    request_id: str
    """`X-Request-ID` of the request, or the id that execd made."""
    sent_bytes: int
    """Sent on the connection for the reply."""


def make_runner(
    engine: Engine,
    limits: ConnectionLimits,
    *,
    shutdown_timeout: float,
    dialect: Dialect = PORT_8888,
    gate: TokenGate | None = None,
) -> HttpRunner:
    """Make the HTTP runner of a listener for ``engine``. The engine must outlive the runner.

    ``shutdown_timeout``: seconds that replies under way may take at the end. ``gate``: shared by
    all listeners of the daemon; None: the listener is alone.
    """
    options = {
        "access_log": None,
        "keepalive_timeout": engine.config.keep_alive_seconds,
        "max_line_size": MAX_REQUEST_LINE_BYTES,
        "read_bufsize": READ_AHEAD_BYTES,
        # A file is stored as sent, as sandboxd and the python-runtime store files. Also,
        # decompression would run on the event loop.
        "auto_decompress": False,
    }
    assert shutdown_timeout > 0
    return HttpRunner(
        _build_app(engine, limits, dialect, gate or TokenGate(engine.config.token_sha256)),
        limits=limits,
        counters=engine.counters,
        restores=engine.restores,
        stall_seconds=engine.config.stream_stall_seconds + limits.stall_grace_seconds,
        runs=dialect.runs,
        options=options,
        shutdown_timeout=shutdown_timeout,
    )


def _build_app(
    engine: Engine, limits: ConnectionLimits, dialect: Dialect, gate: TokenGate
) -> web.Application:
    table = dialect.routes
    app = web.Application(
        middlewares=[_middleware(dialect, gate, engine.config, engine.counters)],
        client_max_size=engine.config.max_body_bytes,
    )
    app[ENGINE] = engine
    app[GATE] = gate
    app[TABLE] = table
    app[BODY_SECONDS] = limits.body_seconds
    app.router.add_routes(route.definition() for route in table)
    app.on_response_prepare.append(_on_prepare)
    dialect.prepare(app)
    return app


def _middleware(
    dialect: Dialect, gate: TokenGate, config: Config, counters: Counters
) -> Middleware:
    probes = frozenset(route.path for route in dialect.routes if route.access is Access.PROBE)
    inits = {route.path for route in dialect.routes if route.access is Access.INIT}
    guard = Guard(
        config,
        {route.path for route in dialect.routes if route.access is not Access.TOKEN},
        gate=gate,
        early_paths=probes | inits,
        tokens_of=dialect.presented_tokens,
        opens=functools.partial(dialect.opens, config),
    )

    @web.middleware
    async def serve(request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.perf_counter()
        request[REQUEST_ID] = request_id(request.headers.get("X-Request-ID"))
        path = raw_path_of(request.raw_path)
        is_probe = path in probes
        try:
            renderers = dialect.renderers(path)
            response = await _answer(
                request, path, handler, guard, renderers, counters, is_probe=is_probe
            )
            await _send(request, response)
            return response
        except ConnectionError:
            return _hang_up(request)  # the peer has hung up
        finally:
            if LEASE in request:
                request[LEASE].release()
            counters.sent_bytes += request.writer.output_size
            is_quiet = is_probe or (path == metrics.PATH and _is_served(request))
            level = logging.DEBUG if is_quiet else logging.INFO
            _log(request, path, time.perf_counter() - began, level)

    return serve


async def _answer(
    request: web.Request,
    path: str,
    handler: Handler,
    guard: Guard,
    renderers: ErrorRenderers,
    counters: Counters,
    *,
    is_probe: bool,
) -> web.StreamResponse:
    connection = request.protocol
    assert isinstance(connection, HttpConnection)
    try:
        if not is_probe and not connection.has_place:
            raise Unavailable(
                "all connections of this daemon are in use, and only probes are answered; close "
                "idle connections, or repeat the request later"
            )
        if connection.is_half_closed and not connection.may_answer_half_closed(request):
            raise ConnectionResetError("the caller has left")
        guard.check(request.method, path, request.headers)
        refuse_transfer_coding(request)
        refuse_unread_body(request)
        refuse_unknown_expectation(request)
        return await handler(request)
    except ConnectionError:
        raise
    except web.HTTPException as error:
        counters.error_replies[errors.code_of_http(error.status)] += 1
        allow = error.headers.get("Allow")
        return renderers.render_http(error.status, {"Allow": allow} if allow else {})
    except ExecdError as error:
        counters.error_replies[error.code] += 1
        if STARTED in request:
            logger.warning(
                "reply broken off: %s", error.message, extra={"request_id": request[REQUEST_ID]}
            )
            return _hang_up(request)
        return renderers.render(_internal(request) if isinstance(error, Internal) else error)
    except Exception:
        internal = _internal(request)
        counters.error_replies[internal.code] += 1
        return _hang_up(request) if STARTED in request else renderers.render(internal)


def _is_served(request: web.Request) -> bool:
    """Whether the peer got what the peer asked for. A refused scrape is logged like any other
    refusal."""
    response = request.get(STARTED)
    return response is not None and response.status == HTTPStatus.OK


def _has_place(request: web.Request) -> bool:
    connection = request.protocol
    assert isinstance(connection, HttpConnection)
    return connection.has_place


def _internal(request: web.Request) -> Internal:
    """Log the current exception with its traceback. The peer gets an error id to find the log line
    by."""
    error_id = f"{random.getrandbits(64):016x}"
    logger.exception(
        "internal error", extra={"error_id": error_id, "request_id": request[REQUEST_ID]}
    )
    return Internal(f"internal error {error_id}")


async def _send(request: web.Request, response: web.StreamResponse) -> None:
    """Write ``response``, unless the handler has written the response already."""
    if response.status == HTTPStatus.REQUEST_TIMEOUT or not _has_place(request):
        response.force_close()
    elif STARTED not in request and not request.content.is_eof():
        # The request was refused early. aiohttp reads on for a while, so that a reset does not
        # destroy the reply. A client that waits for "100 Continue", or has gigabytes to send, must
        # learn from the reply that the connection ends.
        unread_bytes = request.content_length
        if awaits_continue(request) or unread_bytes is None or unread_bytes > MAX_UNREAD_BYTES:
            response.force_close()
    await response.prepare(request)
    await response.write_eof()


def _hang_up(request: web.Request) -> web.StreamResponse:
    """Cut the connection. aiohttp requires a response all the same, fails to write the response,
    and handles that failure as a disconnect."""
    if request.transport is not None:
        request.transport.abort()
    return request.get(STARTED) or web.Response(status=500)


async def _on_prepare(request: web.Request, response: web.StreamResponse) -> None:
    request[STARTED] = response
    response.headers["X-Request-ID"] = request[REQUEST_ID]
    response.headers["Server"] = SERVER


def _log(request: web.Request, path: str, duration_seconds: float, level: int) -> None:
    end = request[EXECUTION].close_request() if EXECUTION in request else None
    if not logger.isEnabledFor(level):
        return
    response = request.get(STARTED)
    fields: RequestFields = {
        "method": request.method,
        "path": path,
        "http_status": None if response is None else response.status,
        "request_seconds": round(duration_seconds, 6),
        "request_id": request[REQUEST_ID],
        "sent_bytes": request.writer.output_size,
    }
    # Not ``logger.log``, which walks the stack for the caller's file and line, and not
    # ``makeRecord``, which derives names of files and threads that no line shows.
    record = logging.LogRecord.__new__(logging.LogRecord)
    vars(record).update(_RECORD_FIELDS[level], created=time.time())
    vars(record).update(fields)
    if end is not None:
        vars(record).update(end)
    logger.handle(record)
