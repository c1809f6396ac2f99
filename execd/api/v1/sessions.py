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
from execd.api.wire.route import RouteTable
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

SESSION_ROUTE = "/v1/sessions/{id}"
# The router tries routes with the same beginning in order: the most frequent first.
ROUTES = RouteTable(query=NoQuery, errors=(NotFound, Conflict, SessionBusy, ResourceExhausted))
CELL: dict[str, Any] = {
    "headers": ("Idempotency-Key", "Last-Event-ID"),
    "replies": {200: (ExecutionReply,), 202: (ExecutionReply,), 204: ()},
    "reply_headers": ("Location", "Idempotent-Replayed"),
    "events": EVENTS,
    "errors": (
        NotFound,
        Conflict,
        SessionBusy,
        Gone,
        PreconditionFailed,
        IdempotencyMismatch,
        ResourceExhausted,
    ),
}
"""The facts of the rows that run a cell."""
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


# --- cells


@ROUTES.add(
    "POST",
    f"{SESSION_ROUTE}/execute",
    query=ExecuteQuery,
    body=(session_request.CellRequest,),
    **CELL,
)
async def run_cell(request: web.Request) -> web.StreamResponse:
    """Run a cell in a session."""
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


@ROUTES.add("POST", "/v1/code", query=CodeQuery, body=(session_request.CodeRequest,), **CELL)
async def run_code(request: web.Request) -> web.StreamResponse:
    """Run code in a session of this name, or in a new session. That session is for this code
    only, unless the caller keeps the session."""
    engine = request.app[ENGINE]
    query = parse_query(request.query, CodeQuery)
    parsed = session_request.parse(await read_body(request), session_request.CODE)
    origin = origin_of(request, "v1")
    command = session_request.to_command(parsed, origin)
    if parsed.timeout_seconds is None:
        command = msgspec.structs.replace(
            command,
            timeout_seconds=engine.config.code_timeout_seconds,
            may_exceed_timeout=False,  # the daemon's own setting is cut, not refused
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


# --- sessions


@ROUTES.add(
    "POST",
    "/v1/sessions",
    body=(session_request.SessionRequest,),
    is_body_optional=True,
    replies={201: (SessionReply,)},
    reply_headers=("Location",),
    errors=(Conflict, ResourceExhausted),
)
async def create_session(request: web.Request) -> web.StreamResponse:
    """Make a Python session."""
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


@ROUTES.add("GET", "/v1/sessions", query=SessionsQuery, replies={200: (SessionsReply,)}, errors=())
async def list_sessions(request: web.Request) -> web.StreamResponse:
    """List the sessions."""
    engine = request.app[ENGINE]
    query = parse_query(request.query, SessionsQuery)
    found, cursor = engine.sessions.page(limit=query.limit, cursor=query.cursor)
    items = await asyncio.gather(*(session_reply(session, engine.config) for session in found))
    return json_reply(SessionsReply(items=items, next_cursor=cursor))


@ROUTES.add("GET", SESSION_ROUTE, replies={200: (SessionReply,)}, errors=(NotFound,))
async def get_session(request: web.Request) -> web.StreamResponse:
    """One session."""
    parse_query(request.query, NoQuery)
    return json_reply(await session_reply(_session(request), request.app[ENGINE].config))


@ROUTES.add("DELETE", SESSION_ROUTE, replies={204: ()}, errors=(NotFound,))
async def delete_session(request: web.Request) -> web.StreamResponse:
    """End a session, and forget the id. Ends all processes of the session."""
    parse_query(request.query, NoQuery)
    session = _session(request)
    await request.app[ENGINE].sessions.end(session)
    return web.Response(status=204)


@ROUTES.add(
    "POST",
    f"{SESSION_ROUTE}/interrupt",
    replies={200: (InterruptReply,)},
    errors=(NotFound, Conflict),
)
async def interrupt_session(request: web.Request) -> web.StreamResponse:
    """Interrupt the running cell. SIGINT; if the cell does not end, SIGKILL follows, and a
    new generation."""
    parse_query(request.query, NoQuery)
    was_running = request.app[ENGINE].sessions.interrupt(_session(request))
    return json_reply(InterruptReply(interrupted=was_running))


@ROUTES.add(
    "POST",
    f"{SESSION_ROUTE}/restart",
    replies={200: (SessionReply,)},
    errors=(NotFound, Conflict, ResourceExhausted),
)
async def restart_session(request: web.Request) -> web.StreamResponse:
    """Give a session a new interpreter, without state."""
    parse_query(request.query, NoQuery)
    engine, session = request.app[ENGINE], _session(request)
    await engine.sessions.restart(session)
    return json_reply(await session_reply(session, engine.config))


@ROUTES.add(
    "POST",
    f"{SESSION_ROUTE}/input",
    body=(InputBody,),
    replies={200: (WrittenReply,)},
    errors=(NotFound, Conflict),
)
async def give_session_input(request: web.Request) -> web.StreamResponse:
    """Answer the question of a cell."""
    parse_query(request.query, NoQuery)
    session, parsed = await _session_and_body(request, INPUT)
    written_bytes = len(parsed.encoded)
    request.app[ENGINE].sessions.give_input(session, parsed.text)
    return json_reply(WrittenReply(written_bytes=written_bytes))


@ROUTES.add(
    "POST",
    f"{SESSION_ROUTE}/fork",
    body=(session_request.ForkRequest,),
    is_body_optional=True,
    replies={201: (ForkReply,)},
)
async def fork_session(request: web.Request) -> web.StreamResponse:
    """Branch the live state of a session into new sessions."""
    parse_query(request.query, NoQuery)
    engine = request.app[ENGINE]
    session, parsed = await _session_and_body(request, session_request.FORK)
    branches, warnings = await engine.sessions.fork(
        session, session_id=parsed.id, count=parsed.count or 1
    )
    replies = await asyncio.gather(*(session_reply(branch, engine.config) for branch in branches))
    return json_reply(ForkReply(sessions=replies, warnings=warnings), 201)


@ROUTES.add(
    "POST",
    f"{SESSION_ROUTE}/complete",
    body=(session_request.CompleteRequest,),
    replies={200: (CompleteReply,)},
)
async def complete_code(request: web.Request) -> web.StreamResponse:
    """Complete code."""
    parse_query(request.query, NoQuery)
    session, parsed = await _session_and_body(request, session_request.COMPLETE)
    cursor = len(parsed.code) if parsed.cursor is None else min(parsed.cursor, len(parsed.code))
    completion = await request.app[ENGINE].sessions.complete(session, parsed.code, cursor)
    start = cursor if completion.cursor_start is None else completion.cursor_start
    end = cursor if completion.cursor_end is None else completion.cursor_end
    # A worker's JSON, checked and not decoded.
    matches: Any = completion.matches
    return json_reply(CompleteReply(matches=matches, cursor_start=start, cursor_end=end))


@ROUTES.add(
    "GET", f"{SESSION_ROUTE}/variables", query=VariablesQuery, replies={200: (VariablesReply,)}
)
async def list_variables(request: web.Request) -> web.StreamResponse:
    """The variables of a session. By name; only the user's."""
    query = parse_query(request.query, VariablesQuery)
    listing = await request.app[ENGINE].sessions.variables(_session(request), query.limit)
    found: Any = listing.variables  # a worker's JSON, checked and not decoded
    return json_reply(VariablesReply(variables=found, total=listing.total))


@ROUTES.add(
    "GET",
    f"{SESSION_ROUTE}/events",
    query=EventsQuery,
    headers=("Last-Event-ID",),
    replies={},
    events=session_events.EVENTS,
    errors=(NotFound, Gone),
)
async def stream_session(request: web.Request) -> web.StreamResponse:
    """Stream the states of a session, its cells and the output between cells. Past
    events that are kept, then new events, until the session is deleted or the client leaves. The
    session does not notice its readers."""
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
