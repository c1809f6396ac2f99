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

import logging
import random
import re
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import HttpVersion11, web

from execd.api.probes import probes
from execd.api.python_runtime import handlers
from execd.api.v1 import archives, executions, file_operations, files, sessions, watch
from execd.api.wire import errors
from execd.api.wire.auth import OPEN_PATHS, Guard
from execd.api.wire.body import READ_AHEAD_BYTES, refuse_unread_body
from execd.api.wire.http_server import SERVER, HttpConnection, HttpRunner
from execd.api.wire.keys import BODY_SECONDS, ENGINE, LEASE, REQUEST_ID, STARTED
from execd.api.wire.targets import raw_path_of
from execd.errors import ExecdError, Internal, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.typedefs import Handler, Middleware

    from execd.api.wire.connections import ConnectionLimits
    from execd.engine.engine import Engine

logger = logging.getLogger("execd.api")

MAX_REQUEST_ID_LENGTH = 128
# A path of 4,096 bytes (PATH_MAX), each of them percent-encoded, and the rest of the line.
MAX_REQUEST_LINE_BYTES = 16 * 1024
# Unread bytes of a refused request. Up to this size execd reads the rest and keeps the connection.
MAX_UNREAD_BYTES = 1 << 20


class Dialect(NamedTuple):
    """The error renderers of some routes."""

    render: Callable[[ExecdError], web.Response]
    render_http: Callable[[int, dict[str, str]], web.Response]


V1 = Dialect(errors.render_v1, errors.render_http_v1)
PYTHON_RUNTIME = Dialect(errors.render_python_runtime, errors.render_http_python_runtime)


def make_runner(engine: Engine, limits: ConnectionLimits, *, shutdown_timeout: float) -> HttpRunner:
    """Make the HTTP runner for ``engine``. The engine must outlive the runner.

    ``shutdown_timeout``: seconds that replies under way may take at the end.
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
        _build_app(engine, limits),
        limits=limits,
        stall_seconds=engine.config.stream_stall_seconds + limits.stall_grace_seconds,
        options=options,
        shutdown_timeout=shutdown_timeout,
    )


def routes() -> list[web.RouteDef]:
    """Return all routes of the daemon, in the order of the router."""
    modules = (probes, handlers, executions, sessions, files, file_operations, archives, watch)
    return [route for module in modules for route in module.routes()]


def _build_app(engine: Engine, limits: ConnectionLimits) -> web.Application:
    app = web.Application(
        middlewares=[_middleware(Guard(engine.config))],
        client_max_size=engine.config.max_body_bytes,
    )
    app[ENGINE] = engine
    app[BODY_SECONDS] = limits.body_seconds
    for route in routes():
        route.kwargs["expect_handler"] = _continue_later
        app.router.add_routes([route])
    app.on_response_prepare.append(_on_prepare)
    return app


def _middleware(guard: Guard) -> Middleware:
    @web.middleware
    async def serve(request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.perf_counter()
        request[REQUEST_ID] = request_id(request.headers.get("X-Request-ID"))
        try:
            response = await _answer(request, handler, guard)
            await _send(request, response)
            return response
        except ConnectionError:
            return _hang_up(request)  # the peer has hung up
        finally:
            if LEASE in request:
                request[LEASE].release()
            _log(request, time.perf_counter() - began)

    return serve


async def _answer(request: web.Request, handler: Handler, guard: Guard) -> web.StreamResponse:
    path = raw_path_of(request.raw_path)
    dialect = V1 if path.startswith("/v1/") else PYTHON_RUNTIME
    try:
        if path not in OPEN_PATHS and not _has_place(request):
            raise Unavailable("all connections of this daemon are in use: only probes are answered")
        guard.check(request.method, path, request.headers)
        refuse_unread_body(request)
        await _continue(request)
        return await handler(request)
    except ConnectionError:
        raise
    except web.HTTPException as error:
        allow = error.headers.get("Allow")
        return dialect.render_http(error.status, {"Allow": allow} if allow else {})
    except ExecdError as error:
        if STARTED in request:
            logger.warning(
                "reply broken off: %s", error.message, extra={"request_id": request[REQUEST_ID]}
            )
            return _hang_up(request)
        return dialect.render(_internal(request) if isinstance(error, Internal) else error)
    except Exception:
        internal = _internal(request)
        return _hang_up(request) if STARTED in request else dialect.render(internal)


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
        if EXPECTING in request or unread_bytes is None or unread_bytes > MAX_UNREAD_BYTES:
            response.force_close()
    await response.prepare(request)
    await response.write_eof()


def _hang_up(request: web.Request) -> web.StreamResponse:
    """Cut the connection. aiohttp requires a response all the same, fails to write the response,
    and handles that failure as a disconnect."""
    if request.transport is not None:
        request.transport.abort()
    return request.get(STARTED) or web.Response(status=500)


EXPECTING: web.RequestKey[bool] = web.RequestKey("expecting")
"""The peer waits for "100 Continue" before sending the body."""


async def _continue_later(request: web.Request) -> None:
    """Note that the peer expects "100 Continue", and send nothing yet. aiohttp's own handler would
    answer before any middleware runs: a client without a token would then send gigabytes first."""
    if (
        request.version >= HttpVersion11
        and request.headers.get("Expect", "").lower() == "100-continue"
    ):
        assert STARTED not in request, "routing comes first"
        request[EXPECTING] = True


async def _continue(request: web.Request) -> None:
    if request.pop(EXPECTING, False):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0


async def _on_prepare(request: web.Request, response: web.StreamResponse) -> None:
    request[STARTED] = response
    response.headers["X-Request-ID"] = request[REQUEST_ID]
    response.headers["Server"] = SERVER


def request_id(given: str | None) -> str:
    """Return the printable ASCII of the peer's id, or a new id if nothing printable is left."""
    kept = re.sub(r"[^!-~]", "", given)[:MAX_REQUEST_ID_LENGTH] if given else ""
    return kept or f"{random.getrandbits(64):016x}"


def _log(request: web.Request, duration_seconds: float) -> None:
    path = raw_path_of(request.raw_path)
    level = logging.DEBUG if path in OPEN_PATHS else logging.INFO
    if not logger.isEnabledFor(level):
        return
    response = request.get(STARTED)
    fields = {
        "method": request.method,
        "path": path,
        # None: the peer hung up before an answer.
        "http_status": None if response is None else response.status,
        "duration_seconds": round(duration_seconds, 6),
        "request_id": request[REQUEST_ID],
        "sent_bytes": request.writer.output_size,
    }
    # Not ``logger.log``, which walks the stack for the caller's file and line.
    logger.handle(logger.makeRecord(logger.name, level, "", 0, "request", (), None, extra=fields))
