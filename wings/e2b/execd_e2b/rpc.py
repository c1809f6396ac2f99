"""Handlers of Connect calls: read the message, call the service, send the reply."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from execd.api.wire_api import ENGINE, Route, json_reply, parse_json, read_body, send_stream
from execd.engine.engine_api import ExecdError, NotFound, NotSupported, ResourceExhausted
from execd_e2b.connect import STREAM_TYPE, UNARY_TYPE, end_frame, only_message, parse_timeout
from execd_e2b.sandbox import SANDBOX

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    import msgspec
    from aiohttp import web
    from aiohttp.typedefs import Handler

    from execd_e2b.sandbox import Sandbox

T = TypeVar("T")


def unary(
    path: str,
    decoder: msgspec.json.Decoder[T],
    call: Callable[[web.Request, Sandbox, T], Awaitable[dict[str, Any]]],
    summary: str,
) -> Route:
    """The row of a call with one message each way."""

    @wraps(call)
    async def handler(request: web.Request) -> web.StreamResponse:
        _check_type(request, UNARY_TYPE)
        parse_timeout(request.headers.get("Connect-Timeout-Ms"))
        message = parse_json(await read_body(request) or b"{}", decoder)
        return json_reply(await call(request, request.app[SANDBOX], message))

    return _route(path, handler, summary, decoder, UNARY_TYPE)


def stream(
    path: str,
    decoder: msgspec.json.Decoder[T],
    call: Callable[[web.Request, Sandbox, T], Awaitable[web.StreamResponse]],
    summary: str,
) -> Route:
    """The row of a call that takes one message and answers with many."""

    @wraps(call)
    async def handler(request: web.Request) -> web.StreamResponse:
        _check_type(request, STREAM_TYPE)
        body = await read_body(request)
        message = only_message(body, request.app[ENGINE].config.max_body_bytes)
        return await call(request, request.app[SANDBOX], parse_json(message or b"{}", decoder))

    return _route(path, handler, summary, decoder, STREAM_TYPE)


def raw_stream(path: str, call: Handler, summary: str) -> Route:
    """The row of a call that takes many messages, and reads them itself."""

    @wraps(call)
    async def handler(request: web.Request) -> web.StreamResponse:
        _check_type(request, STREAM_TYPE)
        return await call(request)

    return _route(path, handler, summary, None, STREAM_TYPE)


def _route(
    path: str,
    handler: Handler,
    summary: str,
    decoder: msgspec.json.Decoder[Any] | None,
    content_type: str,
) -> Route:
    return Route(
        method="POST",
        path=path,
        handler=handler,
        name=path[1:].replace(".", "_").replace("/", "_"),
        summary=summary,
        # msgspec types the kind of a decoder as any form of a type; here all are classes.
        body=(content_type,) if decoder is None else (cast("type", decoder.type),),
        replies={200: (content_type,)},
        errors=(NotFound, ResourceExhausted),
    )


def _check_type(request: web.Request, wanted: str) -> None:
    """Raises NotSupported."""
    given = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if given != wanted:
        raise NotSupported(
            f"Content-Type: this call takes {wanted}; set the SDK to JSON, not to protobuf",
            field="Content-Type",
        )


async def send_frames(
    request: web.Request,
    frames: AsyncGenerator[bytes, None],
    on_stall: Callable[[], None] = lambda: None,
) -> web.StreamResponse:
    """Send the frames, and the last frame of the stream: with the error, if one stops the
    frames."""
    return await send_stream(
        request,
        _with_end(frames),
        bytes,
        content_type=STREAM_TYPE,
        on_stall=on_stall,
    )


async def _with_end(frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    error = None
    try:
        async for frame in frames:
            yield frame
    except ExecdError as raised:
        error = raised
    finally:
        await frames.aclose()
    yield end_frame(error)
