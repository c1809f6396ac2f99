"""The routes of /v1/executions that act on a running program: input, signals, the end, the size of
the terminal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta

from execd.api.v1 import execution_request
from execd.api.v1.attach import SignalWord  # noqa: TC001  # msgspec reads the annotations

# msgspec reads the annotations at run time.
from execd.api.v1.execution_types import ExecutionReply, WrittenReply
from execd.api.v1.executions import EXECUTION_ROUTE, ExecutionView, execution_of, reply_now
from execd.api.wire.body import body_chunks, read_body
from execd.api.wire.early_headers import EarlyHeaders
from execd.api.wire.fields import NoQuery, parse_json, parse_query
from execd.api.wire.keys import ENGINE
from execd.api.wire.replies import json_reply
from execd.api.wire.route import BYTES, RouteTable
from execd.api.wire.signal_names import signal_number
from execd.errors import Conflict, NotFound, ResourceExhausted
from execd.model import ExitReason, TerminalColumns, TerminalRows

if TYPE_CHECKING:
    from execd.engine.executions.execution import Execution

T = TypeVar("T")


class InputQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    eof: bool = False
    """Close the standard input after the body."""


class SignalRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A signal for the program."""

    signal: SignalWord


class ResizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new size of the terminal."""

    cols: TerminalColumns
    rows: TerminalRows


class KillRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to end the execution."""

    grace_seconds: Annotated[float, Meta(ge=0, le=60)] | None = None
    """Time from SIGTERM to SIGKILL. Null: `--cancel-grace-seconds`."""


ROUTES = RouteTable(query=NoQuery, errors=(NotFound, Conflict, ResourceExhausted))

SIGNAL = msgspec.json.Decoder(SignalRequest)
RESIZE = msgspec.json.Decoder(ResizeRequest)
KILL = msgspec.json.Decoder(KillRequest)


@ROUTES.add(
    "POST",
    f"{EXECUTION_ROUTE}/stdin",
    query=InputQuery,
    body=(BYTES,),
    is_body_optional=True,
    replies={200: (WrittenReply,)},
)
async def write_stdin(request: web.Request) -> web.StreamResponse:
    """Give a program input, and end the input. The body goes to the program as fast as the program
    reads. Replies after the program, or its pipe, has taken all bytes."""
    query = parse_query(request.query, InputQuery)
    execution = execution_of(request)
    await execution.wait_started()
    if execution.cell is not None:  # the body answers one question, however its chunks arrive
        if query.eof:
            await execution.end_stdin()
        return await write_text(execution, await read_body(request))
    written_bytes = 0
    async for chunk in body_chunks(request):
        try:
            await execution.write_stdin(chunk)
        except Conflict as error:
            raise Conflict(error.message, written_bytes=written_bytes) from None
        written_bytes += len(chunk)
    if query.eof:
        await execution.end_stdin()
    return json_reply(WrittenReply(written_bytes=written_bytes))


async def write_text(execution: Execution, text: bytes) -> web.Response:
    """Give the program a text as input. The reply is that of ``stdin``."""
    await execution.write_stdin(text)
    return json_reply(WrittenReply(written_bytes=len(text)))


@ROUTES.add(
    "POST",
    f"{EXECUTION_ROUTE}/input",
    body=(execution_request.InputBody,),
    replies={200: (WrittenReply,)},
)
async def give_execution_input(request: web.Request) -> web.StreamResponse:
    """Give a program a text as input. The text of a JSON body, as ``stdin`` passes a raw body."""
    execution = execution_of(request)
    parsed = await _body(request, execution_request.INPUT)
    await execution.wait_started()
    return await write_text(execution, parsed.encoded)


@ROUTES.add("POST", f"{EXECUTION_ROUTE}/signal", body=(SignalRequest,), replies={204: ()})
async def signal_execution(request: web.Request) -> web.StreamResponse:
    """Send a signal to a program."""
    execution = execution_of(request)
    execution.signal(signal_number((await _body(request, SIGNAL)).signal))
    return web.Response(status=204)


@ROUTES.add(
    "POST",
    f"{EXECUTION_ROUTE}/kill",
    query=ExecutionView,
    body=(KillRequest,),
    is_body_optional=True,
    replies={200: (ExecutionReply,), 202: (ExecutionReply,)},
    errors=(NotFound, ResourceExhausted),
)
async def kill_execution(request: web.Request) -> web.StreamResponse:
    """End all processes of a command or cell, and keep the record. Replies with the record. After
    the program's own end: end the processes that the program left running."""
    view = parse_query(request.query, ExecutionView)
    execution, config = execution_of(request), request.app[ENGINE].config
    body = await read_body(request)
    parsed = parse_json(body, KILL) if body else KillRequest()
    grace_seconds = (
        config.cancel_grace_seconds if parsed.grace_seconds is None else parsed.grace_seconds
    )
    execution.end(ExitReason.CANCELED, grace_seconds)
    early = EarlyHeaders(request, config.execute_heartbeat_seconds)
    await early.wait(execution.wait)
    rest = asyncio.ensure_future(execution.end_rest(grace_seconds))
    try:
        await early.wait(lambda: asyncio.shield(rest))
    finally:
        rest.cancel()
    return await early.finish(await reply_now(request, execution, view.encoding))


@ROUTES.add("POST", f"{EXECUTION_ROUTE}/resize", body=(ResizeRequest,), replies={204: ()})
async def resize_terminal(request: web.Request) -> web.StreamResponse:
    """Set the size of a terminal."""
    execution = execution_of(request)
    size = await _body(request, RESIZE)
    execution.resize(size.cols, size.rows)
    return web.Response(status=204)


async def _body(request: web.Request, decoder: msgspec.json.Decoder[T]) -> T:
    parse_query(request.query, NoQuery)
    return parse_json(await read_body(request), decoder)
