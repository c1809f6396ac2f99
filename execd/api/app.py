"""The application: the routes, and the middleware around each request.

The middleware owns a request from the first header to the last byte of the reply. In order: the
request id, the guard, the handler, errors in the words of the dialect, the write of the reply, one
log line. A handler writes the reply itself if the handler streams, or must know whether the reply
arrived. ``RequestFacts.started`` is a reply whose headers went out. From then on an error can only
cut the connection. A peer tells a cut from a complete reply by the missing length or the missing
last chunk.

Bytes that are not HTTP never reach the middleware: ``http_server.HttpConnection.handle_error``
answers them.

aiohttp cancels a handler when the peer hangs up (``handler_cancellation``, set in ``http_server``).
/execute depends on the cancellation.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, TypedDict

from aiohttp import web

from execd.api.probes.probes import METRICS
from execd.api.routes import PORT_8888
from execd.api.wire import errors
from execd.api.wire.auth import Guard
from execd.api.wire.body import (
    READ_AHEAD_BYTES,
    awaits_continue,
    drop_body,
    refuse_transfer_coding,
    refuse_unknown_expectation,
)
from execd.api.wire.http_server import HttpConnection, HttpRunner, HttpServer
from execd.api.wire.keys import (
    BODY_SECONDS,
    ENGINE,
    FACTS,
    GATE,
    TABLE,
    RequestFacts,
)
from execd.api.wire.origins import request_id
from execd.api.wire.replies import (
    EPISODE_HEADER,
    EXPECT_EPISODE_HEADER,
    INSTANCE_HEADER,
    SERVER,
)
from execd.api.wire.route import Access
from execd.api.wire.targets import raw_path_of
from execd.engine.engine import PREPARING
from execd.engine.episodes import RESET_WORDS, EpisodeOver
from execd.errors import ExecdError, Internal, Unavailable

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler, Middleware

    from execd.api.wire.auth import TokenGate
    from execd.api.wire.connections import ConnectionLimits
    from execd.api.wire.port import HttpService, PortContext
    from execd.engine.engine import Engine
    from execd.engine.metrics.counters import Counters

logger = logging.getLogger("execd.api")

# A path of 4,096 bytes (PATH_MAX), each of them percent-encoded, and the rest of the line.
MAX_REQUEST_LINE_BYTES = 16 * 1024
# Each look-up of a member costs a call in Python 3.11.
REQUEST_TIMEOUT = int(HTTPStatus.REQUEST_TIMEOUT)
# Unread bytes of a refused request. Up to this size execd reads the rest and keeps the connection.
MAX_UNREAD_BYTES = 1 << 20


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


def make_http_port(
    engine: Engine, context: PortContext, service: HttpService = PORT_8888
) -> HttpRunner:
    """Make the server of a port. The engine must outlive the server."""
    options = {
        "access_log": None,
        "keepalive_timeout": engine.config.keep_alive_seconds,
        "max_line_size": MAX_REQUEST_LINE_BYTES,
        "read_bufsize": READ_AHEAD_BYTES,
        # A file is stored as sent, as sandboxd and the python-runtime store files. Also,
        # decompression would run on the event loop.
        "auto_decompress": False,
    }
    assert context.shutdown_timeout_seconds > 0
    if service.dialect is not None:
        engine.counters.add_dialect(service.dialect)
    make_server = functools.partial(
        HttpServer,
        limits=context.limits,
        counters=engine.counters,
        restores=engine.restores,
        episodes=engine.episodes,
        stall_seconds=engine.config.stream_stall_seconds + context.limits.stall_grace_seconds,
        runs=service.runs,
        options=options,
    )
    return HttpRunner(
        _build_app(engine, context.limits, service, context.gate),
        make_server,
        shutdown_timeout=context.shutdown_timeout_seconds,
    )


def _build_app(
    engine: Engine, limits: ConnectionLimits, service: HttpService, gate: TokenGate
) -> web.Application:
    table = service.routes
    app = web.Application(
        middlewares=[_middleware(service, gate, engine)],
        client_max_size=engine.config.max_body_bytes,
    )
    app[ENGINE] = engine
    app[GATE] = gate
    app[TABLE] = table
    app[BODY_SECONDS] = limits.body_seconds
    app.router.add_routes(route.definition() for route in table)
    app.on_response_prepare.append(_on_prepare)
    service.prepare(app)
    return app


def _middleware(service: HttpService, gate: TokenGate, engine: Engine) -> Middleware:
    counters = engine.counters
    probes = frozenset(route.path for route in service.routes if route.access is Access.PROBE)
    inits = {route.path for route in service.routes if route.access is Access.INIT}
    resets = {route.path for route in service.routes if route.access is Access.RESET}
    outside = probes | resets
    guard = Guard(
        engine.config,
        {route.path for route in service.routes if not route.needs_token},
        gate=gate,
        early_paths=probes | inits,
        tokens_of=service.presented_tokens,
        opens=service.opens,
    )

    @web.middleware
    async def serve(request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.perf_counter()
        facts, connection = request[FACTS], request.protocol
        assert isinstance(connection, HttpConnection)
        facts.id = request_id(request.headers.get("X-Request-ID"))
        path = raw_path_of(request.raw_path)
        is_probe = path in probes
        try:
            response = await _answer(
                request,
                connection,
                path,
                handler,
                guard,
                service,
                counters,
                is_probe=is_probe,
                is_inside=path not in outside,
            )
            await _send(request, connection, response)
            return response
        except ConnectionError:
            return _hang_up(request)  # the peer has hung up
        finally:
            facts.episodes.leave()
            if facts.lease is not None:
                facts.lease.release()
            sent_bytes = request.writer.output_size
            counters.sent_bytes += sent_bytes
            is_quiet = is_probe or (path == METRICS and _is_served(facts))
            level = logging.DEBUG if is_quiet else logging.INFO
            _log(request, facts, path, time.perf_counter() - began, sent_bytes, level)

    return serve


async def _answer(
    request: web.Request,
    connection: HttpConnection,
    path: str,
    handler: Handler,
    guard: Guard,
    service: HttpService,
    counters: Counters,
    *,
    is_probe: bool,
    is_inside: bool,
) -> web.StreamResponse:
    """``is_inside``: the request belongs to an episode, and ends with the episode."""
    facts = request[FACTS]
    try:
        if not is_probe and not connection.has_place:
            raise Unavailable(
                "all connections of this daemon are in use, and only probes are answered; close "
                "idle connections, or repeat the request later"
            )
        if connection.is_half_closed and not connection.may_answer_half_closed(request):
            raise ConnectionResetError("the caller has left")
        guard.check(request.method, path, request.headers)
        if not is_probe and request.app[ENGINE].is_preparing:
            raise Unavailable(PREPARING)
        if is_inside and request.match_info.http_exception is None:  # 404 and 405 run nothing
            facts.episodes.enter(request.headers.get(EXPECT_EPISODE_HEADER))
        refuse_transfer_coding(request)
        refuse_unknown_expectation(request)
        await drop_body(request)
        return await handler(request)
    except ConnectionError:
        raise
    except asyncio.CancelledError:
        if not facts.episodes.was_ended():
            raise
        if facts.started is not None:
            return _hang_up(request)
        counters.error_replies["UNAVAILABLE"] += 1
        return service.renderers(path).render(Unavailable(RESET_WORDS))
    except web.HTTPException as error:
        counters.error_replies[errors.code_of_http(error.status)] += 1
        allow = error.headers.get("Allow")
        return service.renderers(path).render_http(error.status, {"Allow": allow} if allow else {})
    except ExecdError as error:
        counters.error_replies[error.code] += 1
        if facts.started is not None:
            logger.warning("reply broken off: %s", error.message, extra={"request_id": facts.id})
            return _hang_up(request)
        shown = _internal(request) if isinstance(error, Internal) else error
        reply = service.renderers(path).render(shown)
        if isinstance(error, EpisodeOver):  # in every dialect
            reply.set_status(HTTPStatus.CONFLICT)
        return reply
    except Exception:
        internal = _internal(request)
        counters.error_replies[internal.code] += 1
        if facts.started is not None:
            return _hang_up(request)
        return service.renderers(path).render(internal)


def _is_served(facts: RequestFacts) -> bool:
    """Whether the peer got what the peer asked for. A refused scrape is logged like any other
    refusal."""
    return facts.started is not None and facts.started.status == HTTPStatus.OK


def _internal(request: web.Request) -> Internal:
    """Log the current exception with its traceback. The peer gets an error id to find the log line
    by."""
    error_id = f"{random.getrandbits(64):016x}"
    logger.exception(
        "internal error", extra={"error_id": error_id, "request_id": request[FACTS].id}
    )
    return Internal(f"internal error {error_id}")


async def _send(
    request: web.Request, connection: HttpConnection, response: web.StreamResponse
) -> None:
    """Write ``response``, unless the handler has written the response already."""
    if response.status == REQUEST_TIMEOUT or not connection.has_place:
        response.force_close()
    elif request[FACTS].started is None and not request.content.is_eof():
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
    return request[FACTS].started or web.Response(status=500)


async def _on_prepare(request: web.Request, response: web.StreamResponse) -> None:
    facts, headers = request[FACTS], response.headers
    facts.started = response
    headers["X-Request-ID"] = facts.id
    headers[INSTANCE_HEADER] = facts.restores.instance_id
    headers[EPISODE_HEADER] = facts.episodes.current
    headers["Server"] = SERVER


def _log(
    request: web.Request,
    facts: RequestFacts,
    path: str,
    duration_seconds: float,
    sent_bytes: int,
    level: int,
) -> None:
    end = None if facts.execution is None else facts.execution.close_request()
    if not logger.isEnabledFor(level):
        return
    fields: RequestFields = {
        "method": request.method,
        "path": path,
        "http_status": None if facts.started is None else facts.started.status,
        "request_seconds": round(duration_seconds, 6),
        "request_id": facts.id,
        "sent_bytes": sent_bytes,
    }
    logger.log(level, "request", extra={**fields, **(end or {})})
