"""The python-runtime dialect: the HTTP API of the sandbox image of kubernetes-sigs/agent-sandbox on
port 8888. The routes are the third generation's; callers of all three generations are served.

    POST /execute            run a shell command; 200 for every outcome
    POST /upload             multipart field "file"; the part's filename is the target
    GET  /download/{path}    GET /list/{path}    GET /exists/{path}

Kept on purpose: bodies with "message" for execd's errors and "detail" for the framework's errors; a
leading slash means the base dir; 404 for a directory to /download; exit code 124 with a line on
stderr after a timeout; exit code 1 for a failed spawn.

Ownership in /execute: the execution belongs to the engine and may have several readers (the same
request, sent again). The handler is one reader while inside its attachment. If the handler leaves
the attachment before ``delivered``, by an error or because aiohttp cancels the handler when the
peer hangs up, the engine counts a lost reader. So the handler writes the reply inside the
attachment, instead of returning the reply to the middleware.
"""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from functools import wraps
from typing import TYPE_CHECKING

from execd.api.python_runtime import request as execute_request
from execd.api.python_runtime.reply import (
    ExecuteReply,
    ExistsReply,
    FaultsReply,
    ListedEntry,
    UploadReply,
    make_reply,
)
from execd.api.python_runtime.request import Refused, fault
from execd.api.wire import multipart
from execd.api.wire.body import form_events, read_body
from execd.api.wire.downloads import FILE_HEADERS, send_file, send_listing
from execd.api.wire.early_headers import EarlyHeaders
from execd.api.wire.errors import DetailReply
from execd.api.wire.keys import ENGINE
from execd.api.wire.origins import note_started, origin_of, trace_environment
from execd.api.wire.replies import json_reply, replace_surrogates
from execd.api.wire.route import BYTES, FORM, PATH, RouteTable
from execd.api.wire.targets import path_below
from execd.engine.executions.command import shell_program
from execd.engine.executions.submission import Submission
from execd.errors import (
    Conflict,
    ExecdError,
    Internal,
    InvalidArgument,
    NoSpace,
    NotFound,
    PermissionDenied,
    RangeNotSatisfiable,
    ReadOnly,
    ResourceExhausted,
)
from execd.model import Command, State

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.typedefs import Handler

    from execd.engine.files.service import Entry, Files
    from execd.engine.files.transfers import Upload


# Each route with and without a trailing slash: clients take any redirect for an error.
ROUTES = RouteTable()


def _answering_refusals(handler: Handler) -> Handler:
    @wraps(handler)
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except Refused as refused:
            return json_reply({"detail": refused.detail}, refused.http_status)

    return answer


# --- /execute


@ROUTES.add(
    "POST",
    {"execute": "/execute", "execute_with_slash": "/execute/"},
    headers=("X-Sandbox-Timeout", "X-Request-ID", "traceparent"),
    body=(execute_request.ExecuteRequest,),
    replies={200: (ExecuteReply,), 400: (DetailReply,), 422: (FaultsReply,)},
    errors=(ResourceExhausted,),
)
@_answering_refusals
async def execute(request: web.Request) -> web.StreamResponse:
    """Run a shell command."""
    engine = request.app[ENGINE]
    body = await read_body(request)
    parsed = execute_request.parse(body, request.headers.get("Content-Type"))
    budget_seconds = sandbox_timeout(request.headers.get("X-Sandbox-Timeout"))
    origin = origin_of(request, "python_runtime")
    command = Command(
        program=shell_program(parsed.command, nul_is_a_result=True),
        timeout_seconds=min(
            math.inf if parsed.timeout_seconds is None else parsed.timeout_seconds,
            math.inf if budget_seconds is None else budget_seconds,
        ),
        total_seconds=budget_seconds,
        env=trace_environment(request.headers.get("traceparent")),
        keeps_order=False,
        origin=origin,
    )
    submission = Submission(
        command, request_key=request_key(request.headers.get("X-Request-ID"), body)
    )
    execution = engine.submit(submission).execution
    note_started(request, execution, origin)
    with execution.attach() as attachment:
        early = EarlyHeaders(request, engine.config.execute_heartbeat_seconds)
        await execution.wait_started()
        if execution.state is not State.EXITED:
            await early.wait(execution.wait)
        reply = await make_reply(execution, engine.config.reply_bytes)
        response = await early.finish(json_reply(reply))
        attachment.delivered()
    return response


def sandbox_timeout(header: str | None) -> float | None:
    """Parse X-Sandbox-Timeout: how many seconds the client will wait. Routers pass the header on
    unchecked, so a malformed value is ignored."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def request_key(request_id: str | None, body: bytes) -> bytes | None:
    """Return a key that is equal for repeats of a request only. The Go client repeats its
    X-Request-ID on each attempt."""
    if request_id is None:
        return None
    import hashlib  # see lean_imports

    raw = request_id.encode("utf-8", "surrogateescape")
    return hashlib.sha256(b"%d:%b%b" % (len(raw), raw, body)).digest()


# --- files


@ROUTES.add(
    "POST",
    {"upload": "/upload", "upload_with_slash": "/upload/"},
    body=(FORM,),
    replies={200: (UploadReply,), 400: (DetailReply,), 422: (FaultsReply,)},
    errors=(NotFound, Conflict, ResourceExhausted, NoSpace, ReadOnly),
)
@_answering_refusals
async def upload(request: web.Request) -> web.StreamResponse:
    """Write a file below the base dir, under the filename of the part."""
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
    return json_reply(
        UploadReply(message=f"File '{replace_surrogates(filename)}' uploaded successfully.")
    )


async def _receive(request: web.Request, decoder: multipart.MultipartDecoder, files: Files) -> str:
    """Put the file in its place and return its name. The last of several files counts, as with
    FastAPI.

    The file is put there after the whole body was found to be well-formed: a body that breaks off
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
        assert current is None, "the closing boundary ends the last part"
        await last.commit()
        return filename


def _no_file_part() -> Refused:
    return Refused(422, [fault("missing", ["file"], "Field required", None)])


def _no_file_in_part() -> Refused:
    message = "Value error, Expected UploadFile, received: <class 'str'>"
    return Refused(422, [fault("value_error", ["file"], message, None)])


@ROUTES.add(
    "GET",
    {"download_base_dir": "/download", "download": "/download" + PATH},
    headers=("Range", "If-Range", "If-None-Match", "If-Modified-Since"),
    replies={200: (BYTES,), 206: (BYTES,), 304: ()},
    reply_headers=FILE_HEADERS,
    errors=(NotFound, Conflict, RangeNotSatisfiable, ResourceExhausted),
)
async def download(request: web.Request) -> web.StreamResponse:
    """Read a file below the base dir."""
    try:
        async with await request.app[ENGINE].files.open(
            path_below(request.raw_path, "/download")
        ) as file:
            return await send_file(request, file)
    except ExecdError as error:
        raise _reworded(error, missing="File not found") from error


@ROUTES.add(
    "GET",
    {"list_base_dir": "/list", "list_directory": "/list" + PATH},
    replies={200: (list[ListedEntry],)},
    errors=(NotFound, Conflict, ResourceExhausted),
)
async def list_directory(request: web.Request) -> web.StreamResponse:
    """List a directory below the base dir."""
    files = request.app[ENGINE].files
    try:
        async with await files.open_listing(path_below(request.raw_path, "/list")) as listing:
            return await send_listing(request, listing, _entry_reply, b"[", b"]")
    except ExecdError as error:
        raise _reworded(
            error, missing="Path is not a directory", failed="List files failed"
        ) from error


def _entry_reply(entry: Entry) -> ListedEntry:
    return ListedEntry(
        name=replace_surrogates(entry.name),
        size=entry.size_bytes,
        type=entry.kind,
        mod_time=entry.modified_at,
    )


@ROUTES.add(
    "GET",
    {"base_dir_exists": "/exists", "exists": "/exists" + PATH},
    replies={200: (ExistsReply,)},
    errors=(NotFound, ResourceExhausted),
)
async def exists(request: web.Request) -> web.StreamResponse:
    """Whether a path below the base dir exists."""
    path = path_below(request.raw_path, "/exists")
    try:
        found = await request.app[ENGINE].files.exists(path)
    except InvalidArgument:
        found = False  # no file can have this name
    except ExecdError as error:
        raise _reworded(error) from error
    return json_reply(ExistsReply(path=replace_surrogates(path), exists=found))


def _reworded(
    error: ExecdError, missing: str | None = None, failed: str | None = None
) -> ExecdError:
    """Return ``error`` in the words that clients of this dialect know."""
    match error:
        case Internal():
            return error
        case PermissionDenied():
            return PermissionDenied("Access denied")
        case NotFound() | InvalidArgument() if missing is not None:
            return NotFound(missing)  # InvalidArgument: no file can have this name
        case _ if failed is not None:
            return type(error)(f"{failed}: {error.message}", **error.details)
        case _:
            return error
