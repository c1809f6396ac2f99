"""The python-runtime dialect: what the sandbox image of kubernetes-sigs/agent-sandbox speaks on
port 8888, third generation, for callers of all three.

    POST /execute            run a shell command; 200 for whatever it did
    POST /upload             multipart field "file"; the part's filename is where it goes
    GET  /download/{path}    GET /list/{path}    GET /exists/{path}

Kept on purpose: bodies with "message" for our errors and "detail" for the framework's; a leading
slash means the base dir; 404 for a directory to /download; 124 with a line on stderr after a
timeout; a spawn that fails is exit code 1.

Who owns what in /execute: the execution belongs to the engine and may have other readers (the same
request, sent again). The handler is one reader, for as long as it is inside its attachment. Leaving
it before ``delivered``, by an error or because aiohttp cancels the handler when its peer hangs up,
is "the reader went away". So the reply is written here, inside, and not by whoever would get it as
a return value.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from contextlib import AsyncExitStack
from functools import wraps
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import HttpVersion11, web

from execd.api.python_runtime import reply as execute_reply
from execd.api.python_runtime import request as execute_request
from execd.api.python_runtime.request import Refused, fault
from execd.api.wire import multipart
from execd.api.wire.body import form_events, read_body
from execd.api.wire.downloads import send_file
from execd.api.wire.keys import ENGINE
from execd.api.wire.listings import send_listing
from execd.api.wire.replies import json_reply, presentable
from execd.api.wire.targets import path_below
from execd.api.wire.tracing import trace_environment
from execd.errors import ExecdError, Internal, InvalidArgument, NotFound, PermissionDenied

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler

    from execd.engine.executions.execution import Execution
    from execd.engine.files.service import Entry, Files
    from execd.engine.files.transfers import Upload


def routes() -> list[web.RouteDef]:
    """Both spellings of each, since clients take any redirect for an error."""
    table: list[web.RouteDef] = []
    for path, handler in (("/execute", execute), ("/upload", upload)):
        table += [web.post(path, _refusing(handler)), web.post(f"{path}/", _refusing(handler))]
    for path, handler in (("/download", download), ("/list", list_directory), ("/exists", exists)):
        # "s": a name may contain a newline.
        table += [web.get(path, handler), web.get(path + "/{path:(?s:.*)}", handler)]
    return table


def _refusing(handler: Handler) -> Handler:
    @wraps(handler)
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except Refused as refused:
            return json_reply({"detail": refused.detail}, refused.http_status)

    return answer


# --- /execute


async def execute(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    body = await read_body(request, engine.config.max_body_bytes)
    asked = execute_request.parse(body, request.headers.get("Content-Type"))
    budget_seconds = sandbox_timeout(request.headers.get("X-Sandbox-Timeout"))
    command = engine.shell_command(
        asked.command,
        timeout_seconds=_least(asked.timeout_seconds, budget_seconds),
        total_seconds=budget_seconds,
        env=trace_environment(request.headers.get("traceparent")),
    )
    execution = engine.run(
        command, request_key=request_key(request.headers.get("X-Request-ID"), body)
    )
    with execution.attach() as attachment:
        await execution.wait_started()
        response = await _wait_with_heartbeat(request, execution)
        reply = msgspec.json.encode(await execute_reply.of(execution, engine.config.reply_bytes))
        if response is None:
            response = web.Response(body=reply, content_type="application/json")
            await response.prepare(request)
            await response.write_eof()
        else:
            await response.write_eof(reply)
        attachment.delivered()
    return response


async def _wait_with_heartbeat(
    request: web.Request, execution: Execution
) -> web.StreamResponse | None:
    """Wait for the end. If that takes long, and the setting says so, start a response meanwhile and
    return it.

    A router that gives up when no headers come for 30 s then sees some, and JSON may begin with
    spaces. It is off unless asked for because it also keeps a client's own read timeout from ever
    firing.
    """
    interval_seconds = request.app[ENGINE].config.execute_heartbeat_seconds
    response: web.StreamResponse | None = None
    while True:
        try:
            # chunked is HTTP/1.1's
            beats = interval_seconds > 0 and request.version >= HttpVersion11
            async with asyncio.timeout(interval_seconds if beats else None):
                await execution.wait()
                return response
        except TimeoutError:
            if response is None:
                response = web.StreamResponse()
                response.content_type = "application/json"
                response.enable_chunked_encoding()
                await response.prepare(request)
            await response.write(b" ")


def sandbox_timeout(header: str | None) -> float | None:
    """X-Sandbox-Timeout: how long the client will wait, in seconds. Routers pass on what they get,
    so no error."""
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def request_key(request_id: str | None, body: bytes) -> bytes | None:
    """Tells a request that is sent again from another one. The Go client repeats its X-Request-ID
    on each attempt."""
    if request_id is None:
        return None
    raw = request_id.encode("utf-8", "surrogateescape")
    return hashlib.sha256(b"%d:%b%b" % (len(raw), raw, body)).digest()


def _least(*bounds: float | None) -> float | None:
    return min((bound for bound in bounds if bound is not None), default=None)


# --- files


async def upload(request: web.Request) -> web.StreamResponse:
    try:
        boundary = multipart.boundary(request.headers.get("Content-Type", ""))
    except InvalidArgument as error:
        raise Refused(400, error.message) from None
    if boundary is None:
        raise _no_file_part()
    try:
        filename = await _receive(
            request, multipart.MultipartDecoder(boundary), request.app[ENGINE].files
        )
    except ExecdError as error:
        raise _reworded(error, failed="File upload failed") from error
    return json_reply({"message": f"File '{presentable(filename)}' uploaded successfully."})


async def _receive(request: web.Request, decoder: multipart.MultipartDecoder, files: Files) -> str:
    """Put the file in its place and return its name. Of several the last counts, as with FastAPI.

    It is put there when the whole body has been seen to be well-formed: a body that breaks off
    leaves nothing behind.
    """
    async with AsyncExitStack() as stack:
        filename: str | None = None
        current: Upload | None = None
        last: Upload | None = None
        async for event in form_events(request, decoder):
            match event:
                case bytes() if current is not None:
                    await current.write(event)
                case multipart.Part(name="file", filename=str(filename)):
                    await stack.aclose()
                    last = current = await stack.enter_async_context(await files.create(filename))
                case multipart.Part(name="file"):
                    raise _no_file_in_part()
                case multipart.PartEnd():
                    current = None
        if not decoder.is_complete:
            raise InvalidArgument("the multipart body ends before its closing boundary")
        if last is None or filename is None:
            raise _no_file_part()
        await last.commit()
        return filename


def _no_file_part() -> Refused:
    return Refused(422, [fault("missing", ["file"], "Field required", None)])


def _no_file_in_part() -> Refused:
    message = "Value error, Expected UploadFile, received: <class 'str'>"
    return Refused(422, [fault("value_error", ["file"], message, None)])


async def download(request: web.Request) -> web.StreamResponse:
    try:
        async with await request.app[ENGINE].files.open(
            path_below(request.raw_path, "/download")
        ) as file:
            return await send_file(request, file)
    except ExecdError as error:
        raise _reworded(error, missing="File not found") from error


async def list_directory(request: web.Request) -> web.StreamResponse:
    files = request.app[ENGINE].files
    try:
        async with await files.open_listing(path_below(request.raw_path, "/list")) as listing:
            return await send_listing(request, listing, _entry_fields, b"[", b"]")
    except ExecdError as error:
        raise _reworded(
            error, missing="Path is not a directory", failed="List files failed"
        ) from error


def _entry_fields(entry: Entry) -> dict[str, Any]:
    return {
        "name": presentable(entry.name),
        "size": entry.size_bytes,
        "type": entry.kind,
        "mod_time": entry.modified_at,
    }


async def exists(request: web.Request) -> web.StreamResponse:
    path = path_below(request.raw_path, "/exists")
    try:
        found = await request.app[ENGINE].files.exists(path)
    except InvalidArgument:
        found = False  # a name that no file can have
    except ExecdError as error:
        raise _reworded(error) from error
    return json_reply({"path": presentable(path), "exists": found})


def _reworded(
    error: ExecdError, missing: str | None = None, failed: str | None = None
) -> ExecdError:
    """``error`` in the words that this dialect's clients know."""
    match error:
        case Internal():
            return error
        case PermissionDenied():
            return PermissionDenied("Access denied")
        case NotFound() | InvalidArgument() if missing is not None:
            return NotFound(missing)  # InvalidArgument: a name that no file can have
        case _ if failed is not None:
            return type(error)(f"{failed}: {error.message}", **error.details)
        case _:
            return error
