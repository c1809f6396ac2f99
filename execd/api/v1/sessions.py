"""The dialect of /v1/sessions and /v1/code: stateful Python. A cell is an execution, and replies as
an execution, with its displays."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta

from execd.api.v1 import session_events, session_request
from execd.api.v1.execution_events import EVENTS
from execd.api.v1.execution_request import INPUT, InputBody, idempotency_key, parse_limits
from execd.api.v1.execution_types import ExecutionReply, WrittenReply
from execd.api.v1.executions import (
    DEFAULT_PAGE,
    MAX_PAGE,
    EncodingParameter,
    EventsQuery,
    last_event_id,
    reply_now,
    reply_when_ended,
    stream_events,
    submission_headers,
)
from execd.api.v1.session_reply import (
    CompleteReply,
    ForkReply,
    InterruptReply,
    SessionReply,
    SessionsReply,
    VariablesReply,
    session_reply,
)
from execd.api.wire import encoders, streams
from execd.api.wire.body import read_body
from execd.api.wire.fields import NoQuery, parse_json, parse_query
from execd.api.wire.keys import ENGINE
from execd.api.wire.origins import note_started, origin_of
from execd.api.wire.replies import json_reply
from execd.api.wire.route import Route
from execd.engine.executions.submission import Submission
from execd.engine.sessions.session_table import check_id
from execd.errors import (
    Conflict,
    Gone,
    IdempotencyMismatch,
    NotFound,
    PreconditionFailed,
    ResourceExhausted,
    SessionBusy,
)

if TYPE_CHECKING:
    from execd.api.v1.execution_types import Encoding
    from execd.engine.executions.submission import Submitted
    from execd.engine.sessions.session import Session

DEFAULT_VARIABLES = 1000

T = TypeVar("T")


class SessionsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = DEFAULT_PAGE
    """The most sessions in the reply."""
    cursor: str | None = None
    """The `next_cursor` of the page before. Absent: the first page."""


class ExecuteQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    encoding: EncodingParameter = "text"
    create: bool = False
    """Make the session if it is missing."""


class CodeQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    encoding: EncodingParameter = "text"


class VariablesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=10_000)] = DEFAULT_VARIABLES
    """The most variables in the reply."""


def _session(request: web.Request) -> Session:
    return request.app[ENGINE].sessions.get(request.match_info["id"])


async def _body(request: web.Request, decoder: msgspec.json.Decoder[T]) -> T:
    return parse_json(await read_body(request) or b"{}", decoder)


async def _session_and_body(
    request: web.Request, decoder: msgspec.json.Decoder[T]
) -> tuple[Session, T]:
    """Return the session of the path and the body. Raises NotFound without asking for the body, and
    also if the session is deleted while the body comes."""
    _session(request)
    parsed = await _body(request, decoder)
    return _session(request), parsed


# --- sessions


async def create(request: web.Request) -> web.StreamResponse:
    parse_query(request.query, NoQuery)
    engine = request.app[ENGINE]
    parsed = await _body(request, session_request.SESSION)
    session = await engine.sessions.create(
        session_id=parsed.id,
        cwd=parsed.cwd,
        env=parsed.env,
        limits=parse_limits(parsed.limits),
    )
    reply = await session_reply(session, engine.config)
    return json_reply(reply, 201, {"Location": f"/v1/sessions/{session.id}"})


async def list_sessions(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    query = parse_query(request.query, SessionsQuery)
    found, cursor = engine.sessions.page(limit=query.limit, cursor=query.cursor)
    items = await asyncio.gather(*(session_reply(session, engine.config) for session in found))
    return json_reply(SessionsReply(items=items, next_cursor=cursor))


async def show(request: web.Request) -> web.StreamResponse:
    parse_query(request.query, NoQuery)
    return json_reply(await session_reply(_session(request), request.app[ENGINE].config))


async def delete(request: web.Request) -> web.StreamResponse:
    """End all processes of the session and forget the session."""
    parse_query(request.query, NoQuery)
    session = _session(request)
    await request.app[ENGINE].sessions.end(session)
    return web.Response(status=204)


async def interrupt(request: web.Request) -> web.StreamResponse:
    """Send SIGINT to the running cell. If the cell does not end, SIGKILL follows, and a new
    generation."""
    parse_query(request.query, NoQuery)
    was_running = request.app[ENGINE].sessions.interrupt(_session(request))
    return json_reply(InterruptReply(interrupted=was_running))


async def restart(request: web.Request) -> web.StreamResponse:
    parse_query(request.query, NoQuery)
    engine, session = request.app[ENGINE], _session(request)
    await engine.sessions.restart(session)
    return json_reply(await session_reply(session, engine.config))


async def give_input(request: web.Request) -> web.StreamResponse:
    parse_query(request.query, NoQuery)
    session, parsed = await _session_and_body(request, INPUT)
    written_bytes = len(parsed.encoded)
    request.app[ENGINE].sessions.give_input(session, parsed.text)
    return json_reply(WrittenReply(written_bytes=written_bytes))


async def fork(request: web.Request) -> web.StreamResponse:
    parse_query(request.query, NoQuery)
    engine = request.app[ENGINE]
    session, parsed = await _session_and_body(request, session_request.FORK)
    branches, warnings = await engine.sessions.fork(
        session, session_id=parsed.id, count=parsed.count or 1
    )
    replies = await asyncio.gather(*(session_reply(branch, engine.config) for branch in branches))
    return json_reply(ForkReply(sessions=replies, warnings=warnings), 201)


async def complete(request: web.Request) -> web.StreamResponse:
    parse_query(request.query, NoQuery)
    session, parsed = await _session_and_body(request, session_request.COMPLETE)
    cursor = len(parsed.code) if parsed.cursor is None else min(parsed.cursor, len(parsed.code))
    completion = await request.app[ENGINE].sessions.complete(session, parsed.code, cursor)
    start = cursor if completion.cursor_start is None else completion.cursor_start
    end = cursor if completion.cursor_end is None else completion.cursor_end
    # A worker's JSON, checked and not decoded.
    matches: Any = completion.matches
    return json_reply(CompleteReply(matches=matches, cursor_start=start, cursor_end=end))


async def variables(request: web.Request) -> web.StreamResponse:
    """Reply with the user's variables by name."""
    query = parse_query(request.query, VariablesQuery)
    listing = await request.app[ENGINE].sessions.variables(_session(request), query.limit)
    found: Any = listing.variables  # a worker's JSON, checked and not decoded
    return json_reply(VariablesReply(variables=found, total=listing.total))


async def events(request: web.Request) -> web.StreamResponse:
    """Stream the log of the session: past events that are kept, then new events, until the session
    is deleted or the client leaves. The session does not notice its readers."""
    query = parse_query(request.query, EventsQuery)
    after = last_event_id(request.headers.get("Last-Event-ID"), query.after)
    encoder = encoders.choose_stream_encoder(request.headers.get("Accept", ""))
    heartbeat_seconds = request.app[ENGINE].config.stream_heartbeat_seconds
    followed = session_events.render_events(
        _session(request), after, query.encoding, heartbeat_seconds
    )
    if request.method == "HEAD":
        return web.Response(content_type=encoder.content_type, charset=encoder.charset)
    return await streams.send_events(request, encoder, followed)


# --- cells


async def execute(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    query = parse_query(request.query, ExecuteQuery)
    parsed = session_request.parse(await read_body(request), session_request.CELL)
    session_id = request.match_info["id"]
    key = idempotency_key(request.headers.get("Idempotency-Key"))
    origin = origin_of(request, "v1")
    submission = Submission(
        session_request.to_command(parsed, origin),
        session_request.to_options(parsed, session_id=session_id, makes_session=query.create),
        execution_id=parsed.id,
        key=key,
        payload=session_request.payload(parsed, session_id) if key or parsed.id else b"",
    )
    submitted = engine.submit(submission)
    note_started(request, submitted.execution, origin)
    return await _reply_to_cell(request, submitted, query.encoding, detached=bool(parsed.detach))


async def code(request: web.Request) -> web.StreamResponse:
    """Run code in an existing session, in a session made under its name, or in a session for this
    code only."""
    engine = request.app[ENGINE]
    query = parse_query(request.query, CodeQuery)
    parsed = session_request.parse(await read_body(request), session_request.CODE)
    origin = origin_of(request, "v1")
    command = session_request.to_command(parsed, origin)
    if parsed.timeout_seconds is None:
        command = msgspec.structs.replace(
            command, timeout_seconds=engine.config.code_timeout_seconds
        )
    key = idempotency_key(request.headers.get("Idempotency-Key"))
    if parsed.session_id is not None:
        check_id(parsed.session_id, "session_id")
    options = session_request.to_options(
        parsed,
        session_id=parsed.session_id,
        makes_session=True,
        keeps_env=True,
        is_last=parsed.session_id is None and not parsed.keep,
    )
    submission = Submission(
        command,
        options,
        execution_id=parsed.id,
        key=key,
        payload=session_request.code_payload(parsed) if key or parsed.id else b"",
    )
    submitted = engine.submit(submission)
    note_started(request, submitted.execution, origin)
    return await _reply_to_cell(request, submitted, query.encoding, detached=bool(parsed.detach))


async def _reply_to_cell(
    request: web.Request, submitted: Submitted, encoding: Encoding, *, detached: bool
) -> web.StreamResponse:
    execution, headers = submitted.execution, submission_headers(submitted)
    encoder = encoders.choose_encoder(request.headers.get("Accept", ""))
    if encoder is not None:
        after = 0 if submitted.is_new else last_event_id(request.headers.get("Last-Event-ID"), 0)
        return await stream_events(request, execution, encoder, after, encoding, headers)
    if detached:
        return await reply_now(request, execution, encoding, headers)
    return await reply_when_ended(request, execution, encoding, headers)


SESSION_ROUTE = "/v1/sessions/{id}"
CELL_ERRORS = (
    NotFound,
    Conflict,
    SessionBusy,
    Gone,
    PreconditionFailed,
    IdempotencyMismatch,
    ResourceExhausted,
)
# The router tries routes with the same beginning in order: the most frequent first.
ROUTES = (
    Route(
        method="POST",
        path=f"{SESSION_ROUTE}/execute",
        handler=execute,
        name="run_cell",
        summary="Run a cell in a session",
        query=ExecuteQuery,
        headers=("Idempotency-Key", "Last-Event-ID"),
        body=(session_request.CellRequest,),
        replies={200: (ExecutionReply,), 202: (ExecutionReply,), 204: ()},
        reply_headers=("Location", "Idempotent-Replayed"),
        events=EVENTS,
        errors=CELL_ERRORS,
    ),
    Route(
        method="POST",
        path="/v1/code",
        handler=code,
        name="run_code",
        summary="Run code in a session of this name, or in a new session",
        query=CodeQuery,
        headers=("Idempotency-Key", "Last-Event-ID"),
        body=(session_request.CodeRequest,),
        replies={200: (ExecutionReply,), 202: (ExecutionReply,), 204: ()},
        reply_headers=("Location", "Idempotent-Replayed"),
        events=EVENTS,
        errors=CELL_ERRORS,
    ),
    Route(
        method="POST",
        path="/v1/sessions",
        handler=create,
        name="create_session",
        summary="Make a Python session",
        query=NoQuery,
        body=(session_request.SessionRequest,),
        is_body_optional=True,
        replies={201: (SessionReply,)},
        reply_headers=("Location",),
        errors=(Conflict, ResourceExhausted),
    ),
    Route(
        method="GET",
        path="/v1/sessions",
        handler=list_sessions,
        name="list_sessions",
        summary="List the sessions",
        query=SessionsQuery,
        replies={200: (SessionsReply,)},
    ),
    Route(
        method="GET",
        path=SESSION_ROUTE,
        handler=show,
        name="get_session",
        summary="One session",
        query=NoQuery,
        replies={200: (SessionReply,)},
        errors=(NotFound,),
    ),
    Route(
        method="DELETE",
        path=SESSION_ROUTE,
        handler=delete,
        name="delete_session",
        summary="End a session, and forget the id",
        query=NoQuery,
        replies={204: ()},
        errors=(NotFound,),
    ),
    Route(
        method="POST",
        path=f"{SESSION_ROUTE}/interrupt",
        handler=interrupt,
        name="interrupt_session",
        summary="Interrupt the running cell",
        query=NoQuery,
        replies={200: (InterruptReply,)},
        errors=(NotFound, Conflict),
    ),
    Route(
        method="POST",
        path=f"{SESSION_ROUTE}/restart",
        handler=restart,
        name="restart_session",
        summary="Give a session a new interpreter, without state",
        query=NoQuery,
        replies={200: (SessionReply,)},
        errors=(NotFound, Conflict, ResourceExhausted),
    ),
    Route(
        method="POST",
        path=f"{SESSION_ROUTE}/input",
        handler=give_input,
        name="give_session_input",
        summary="Answer the question of a cell",
        query=NoQuery,
        body=(InputBody,),
        replies={200: (WrittenReply,)},
        errors=(NotFound, Conflict),
    ),
    Route(
        method="POST",
        path=f"{SESSION_ROUTE}/fork",
        handler=fork,
        name="fork_session",
        summary="Branch the live state of a session into new sessions",
        query=NoQuery,
        body=(session_request.ForkRequest,),
        is_body_optional=True,
        replies={201: (ForkReply,)},
        errors=(NotFound, Conflict, SessionBusy, ResourceExhausted),
    ),
    Route(
        method="POST",
        path=f"{SESSION_ROUTE}/complete",
        handler=complete,
        name="complete_code",
        summary="Complete code",
        query=NoQuery,
        body=(session_request.CompleteRequest,),
        replies={200: (CompleteReply,)},
        errors=(NotFound, Conflict, SessionBusy, ResourceExhausted),
    ),
    Route(
        method="GET",
        path=f"{SESSION_ROUTE}/variables",
        handler=variables,
        name="list_variables",
        summary="The variables of a session",
        query=VariablesQuery,
        replies={200: (VariablesReply,)},
        errors=(NotFound, Conflict, SessionBusy, ResourceExhausted),
    ),
    Route(
        method="GET",
        path=f"{SESSION_ROUTE}/events",
        handler=events,
        name="stream_session",
        summary="Stream the states of a session, its cells and the output between cells",
        query=EventsQuery,
        headers=("Last-Event-ID",),
        replies={},
        events=session_events.EVENTS,
        errors=(NotFound, Gone),
    ),
)
