"""The dialect of /v1/executions: run a command, wait, stream, resume. execution_control.py has the
routes that act on a running program.

Ownership: the execution belongs to the engine. A handler that waits with the caller, or streams to
the caller, is a reader while inside its attachment. If the handler leaves the attachment before
delivery, by an error or because aiohttp cancels the handler when the peer hangs up, the engine
counts a lost reader. Long polls and downloads are no readers.

A reply is 200 after the execution's end, and 202 before the end. If the execution could not run (no
place in time, draining), every route that waits for the start answers with that error.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from execd.api.v1 import execution_events, execution_reply, execution_request
from execd.api.v1.execution_events import EVENTS

# msgspec reads the annotations at run time.
from execd.api.v1.execution_types import (
    Encoding,
    ExecutionReply,
    ExecutionsReply,
)
from execd.api.wire import encoders, streams
from execd.api.wire.body import read_body
from execd.api.wire.downloads import CHUNK_BYTES, parse_range
from execd.api.wire.early_headers import EarlyHeaders
from execd.api.wire.fields import NoQuery, parse_query
from execd.api.wire.keys import ENGINE
from execd.api.wire.origins import note_started, origin_of, trace_environment
from execd.api.wire.replies import json_reply
from execd.api.wire.route import BYTES, Route
from execd.engine.executions.submission import Submission
from execd.errors import (
    Conflict,
    Gone,
    IdempotencyMismatch,
    InvalidArgument,
    NotFound,
    RangeNotSatisfiable,
    ResourceExhausted,
)
from execd.model import STREAMS, State

if TYPE_CHECKING:
    from execd.api.wire.encoders import Encoder
    from execd.engine.executions.execution import Execution
    from execd.engine.executions.submission import Submitted
    from execd.model import Stream

# Routers give up on a reply if no header has come for 30 s.
MAX_WAIT_SECONDS = 25.0
DEFAULT_PAGE, MAX_PAGE = 100, 1000
MAX_SEQUENCE = 2**63 - 1

EncodingParameter = Annotated[
    Encoding, Meta(description="The form of output: text, or the bytes as base64.")
]


class ExecutionView(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    encoding: EncodingParameter = "text"


class WaitingView(ExecutionView, frozen=True, kw_only=True, forbid_unknown_fields=True):
    wait_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="Reply at the end of the execution, but after this time at the latest. "
            f"More than {MAX_WAIT_SECONDS:g} counts as {MAX_WAIT_SECONDS:g}.",
        ),
    ] = 0.0


class EventsQuery(ExecutionView, frozen=True, kw_only=True, forbid_unknown_fields=True):
    after: Annotated[int, Meta(ge=0, le=MAX_SEQUENCE)] = 0
    """The number of the last event that the caller has; 0: none. The header `Last-Event-ID` counts
    before this parameter."""


class ExecutionEventsQuery(EventsQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    parts: bool = False
    """Send an event of over 16 KiB as events `part`: for a reader whose connections end sooner than
    such an event has come."""
    part_offset: Annotated[int, Meta(ge=0, le=MAX_SEQUENCE)] = 0
    """With `parts`, the number of bytes that the caller has of the event behind `after`."""


class ExecutionsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: State | None = None
    """Only executions in this state. Absent: in every state."""
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = DEFAULT_PAGE
    """The most executions in the reply."""
    cursor: str | None = None
    """The `next_cursor` of the page before. Absent: the first page."""


def execution_of(request: web.Request) -> Execution:
    return request.app[ENGINE].get(request.match_info["id"])


# --- run


async def create(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    view = parse_query(request.query, ExecutionView)
    parsed = execution_request.parse(await read_body(request))
    encoder = encoders.choose_encoder(request.headers.get("Accept", ""))
    if encoder is not None and parsed.soft_timeout_seconds is not None:
        raise InvalidArgument(
            "soft_timeout_seconds: does not go with a stream, which answers at once",
            field="soft_timeout_seconds",
        )
    key = execution_request.idempotency_key(request.headers.get("Idempotency-Key"))
    origin = origin_of(request, "v1")
    command = execution_request.to_command(
        parsed, trace_environment(request.headers.get("traceparent")), origin
    )
    submitted = engine.submit(
        Submission(
            await engine.with_account(command),
            execution_id=parsed.id,
            key=key,
            payload=execution_request.payload(parsed) if key or parsed.id else b"",
        )
    )
    execution, headers = submitted.execution, submission_headers(submitted)
    note_started(request, execution, origin)
    if encoder is not None:
        after = 0 if submitted.is_new else last_event_id(request.headers.get("Last-Event-ID"), 0)
        return await stream_events(request, execution, encoder, after, view.encoding, headers)
    if parsed.detach:
        return await reply_now(request, execution, view.encoding, headers)
    return await reply_when_ended(
        request, execution, view.encoding, headers, parsed.soft_timeout_seconds
    )


def submission_headers(submitted: Submitted) -> dict[str, str]:
    headers = {"Location": execution_reply.url_of(submitted.execution)}
    return headers if submitted.is_new else {**headers, "Idempotent-Replayed": "true"}


async def reply_when_ended(
    request: web.Request,
    execution: Execution,
    encoding: Encoding,
    headers: dict[str, str],
    soft_timeout_seconds: float | None = None,
) -> web.StreamResponse:
    """Attach as a reader until the execution has ended or the soft timeout is over, and reply."""
    with execution.attach() as attachment:
        heartbeat_seconds = request.app[ENGINE].config.execute_heartbeat_seconds
        early = EarlyHeaders(request, heartbeat_seconds, headers)
        await execution.wait_started()
        if not await early.wait(execution.wait, soft_timeout_seconds):
            execution.detach()
        response = await early.finish(await reply_now(request, execution, encoding, headers))
        attachment.delivered()
    return response


async def _ended_within(execution: Execution, seconds: float) -> bool:
    """Return whether the execution ends in time. Raises the error that kept the execution from
    running."""
    try:
        async with asyncio.timeout(seconds):
            await execution.wait()
    except TimeoutError:
        return False
    return True


async def reply_now(
    request: web.Request,
    execution: Execution,
    encoding: Encoding,
    headers: dict[str, str] | None = None,
) -> web.Response:
    body = await execution_reply.full_reply(execution, request.app[ENGINE].config, encoding)
    return json_reply(body, 200 if body.state is State.EXITED else 202, headers)


# --- read


async def list_executions(request: web.Request) -> web.StreamResponse:
    """List executions, newest first, without their output."""
    engine = request.app[ENGINE]
    query = parse_query(request.query, ExecutionsQuery)
    found, cursor = engine.list(state=query.state, limit=query.limit, cursor=query.cursor)
    items = [execution_reply.list_item(execution, engine.config) for execution in found]
    return json_reply(ExecutionsReply(items=items, next_cursor=cursor))


async def show(request: web.Request) -> web.StreamResponse:
    """Reply at once, or at the end if the end comes within ``wait_seconds``. Either reply is
    200."""
    query = parse_query(request.query, WaitingView)
    execution = execution_of(request)
    if query.wait_seconds > 0:
        await _ended_within(execution, min(query.wait_seconds, MAX_WAIT_SECONDS))
    return json_reply(
        await execution_reply.full_reply(execution, request.app[ENGINE].config, query.encoding)
    )


async def events(request: web.Request) -> web.StreamResponse:
    query = parse_query(request.query, ExecutionEventsQuery)
    # A reconnecting browser repeats its first URL, and sends the number of the last event in the
    # header.
    after = last_event_id(request.headers.get("Last-Event-ID"), query.after)
    encoder = encoders.choose_stream_encoder(request.headers.get("Accept", ""))
    execution = execution_of(request)
    if request.method == "HEAD":
        return web.Response(content_type=encoder.content_type, charset=encoder.charset)
    part_offset = query.part_offset if query.parts else None
    return await stream_events(request, execution, encoder, after, query.encoding, {}, part_offset)


async def stream_events(
    request: web.Request,
    execution: Execution,
    encoder: Encoder,
    after: int,
    encoding: Encoding,
    headers: dict[str, str],
    part_offset: int | None = None,
) -> web.StreamResponse:
    """``part_offset``: see ``in_parts``; None: no event in parts."""
    config = request.app[ENGINE].config
    with execution.attach() as attachment:
        await execution.wait_started()
        if after and execution.has_ended_at(after):
            # A browser's EventSource reconnects after any answer but 204.
            attachment.delivered()
            return web.Response(status=204)
        rendered = execution_events.render_events(execution, after, encoding, config)
        if part_offset is not None:
            rendered = execution_events.in_parts(rendered, after, part_offset)
        response = await streams.send_events(
            request,
            encoder,
            rendered,
            on_stall=attachment.excuse,
            headers=headers,
        )
        attachment.delivered()
    return response


def last_event_id(header: str | None, default: int) -> int:
    """Parse the Last-Event-ID header. Raises InvalidArgument."""
    # Optional whitespace around a field value is SP and HTAB (RFC 9110, 5.5). str.strip() without
    # an argument removes \x1c to \x1f too, and int() refuses these characters.
    number = (header or "").strip(" \t")
    if not number:
        return default
    if not (number.isascii() and number.isdigit() and len(number) <= 20) or (
        int(number) > MAX_SEQUENCE
    ):
        raise InvalidArgument(
            "Last-Event-ID: not a number that an event of ours has", field="Last-Event-ID"
        )
    return int(number)


async def output(request: web.Request, stream: Stream) -> web.StreamResponse:
    """Reply with the bytes of a stream as the program wrote them: the bytes there are now, or a
    range.

    Raises RangeNotSatisfiable before the headers if some of the bytes were not kept. Raises
    Conflict in the middle of the body if a hole has grown into the range meanwhile.
    """
    parse_query(request.query, NoQuery)
    execution = execution_of(request)
    await execution.view.refresh_size(stream)
    total_bytes = execution.view.total_bytes(stream)
    start, stop, http_status = 0, total_bytes, 200
    headers = {"Accept-Ranges": "bytes"}
    # RFC 9110 §14.2: a Range has a meaning with GET only.
    if request.method == "GET":
        part = parse_range(request.headers.get("Range", ""), total_bytes)
        if part is not None:
            (start, stop), http_status = part, 206
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{total_bytes}"
    assert 0 <= start <= stop <= total_bytes
    refuse_hole(execution, stream, start, stop)
    response = web.StreamResponse(status=http_status, headers=headers)
    response.content_type = "application/octet-stream"
    response.content_length = stop - start
    await response.prepare(request)
    if request.method == "GET":
        with streams.abort_when_stalled(request):
            while start < stop:
                end = min(stop, start + CHUNK_BYTES)
                try:
                    await response.write(await execution.view.read(stream, start, end))
                except RangeNotSatisfiable as error:
                    raise Conflict(error.message) from error
                start = end
            await response.write_eof()
    return response


def refuse_hole(execution: Execution, stream: Stream, start: int, stop: int) -> None:
    """Raise RangeNotSatisfiable if [start, stop) contains bytes that were not kept."""
    hole = execution.output.hole(stream)
    if hole is None:
        return
    hole_start, hole_end = hole
    assert 0 <= hole_start < hole_end
    if start < hole_end and hole_start < stop:
        raise RangeNotSatisfiable(
            f"{stream}: the bytes from {hole_start} to {hole_end - 1} were not kept; ask for a "
            "range before or after them",
            size_bytes=execution.view.total_bytes(stream),
            hole={"offset": hole_start, "size_bytes": hole_end - hole_start},
        )


# --- forget


async def delete(request: web.Request) -> web.StreamResponse:
    parse_query(request.query, NoQuery)
    await request.app[ENGINE].forget(execution_of(request))
    return web.Response(status=204)


EXECUTION_ROUTE = "/v1/executions/{id}"
ROUTES = (
    Route(
        method="POST",
        path="/v1/executions",
        handler=create,
        name="run_command",
        summary="Run a command",
        query=ExecutionView,
        headers=("Idempotency-Key", "Last-Event-ID", "traceparent"),
        body=(execution_request.ExecutionRequest,),
        replies={200: (ExecutionReply,), 202: (ExecutionReply,), 204: ()},
        reply_headers=("Location", "Idempotent-Replayed"),
        events=EVENTS,
        errors=(NotFound, Conflict, Gone, IdempotencyMismatch, ResourceExhausted),
    ),
    Route(
        method="GET",
        path="/v1/executions",
        handler=list_executions,
        name="list_executions",
        summary="List commands and cells, newest first",
        query=ExecutionsQuery,
        replies={200: (ExecutionsReply,)},
    ),
    Route(
        method="GET",
        path=EXECUTION_ROUTE,
        handler=show,
        name="get_execution",
        summary="One command or cell, with its output",
        query=WaitingView,
        replies={200: (ExecutionReply,)},
        errors=(NotFound, ResourceExhausted),
    ),
    Route(
        method="DELETE",
        path=EXECUTION_ROUTE,
        handler=delete,
        name="delete_execution",
        summary="End a command or cell, and forget the record",
        query=NoQuery,
        replies={204: ()},
        errors=(NotFound,),
    ),
    Route(
        method="GET",
        path=f"{EXECUTION_ROUTE}/events",
        handler=events,
        name="stream_execution",
        summary="Stream the output and the end of a command or cell",
        query=ExecutionEventsQuery,
        headers=("Last-Event-ID",),
        replies={204: ()},
        events={**EVENTS, "part": execution_events.PartEvent},
        errors=(NotFound, Gone, ResourceExhausted),
    ),
    *(
        Route(
            method="GET",
            path=f"{EXECUTION_ROUTE}/{stream}",
            handler=functools.partial(output, stream=stream),
            name=f"read_{stream}",
            summary=f"The bytes of {stream}",
            query=NoQuery,
            headers=("Range",),
            replies={200: (BYTES,), 206: (BYTES,)},
            reply_headers=("Accept-Ranges", "Content-Range"),
            errors=(NotFound, RangeNotSatisfiable),
        )
        for stream in STREAMS
    ),
)
