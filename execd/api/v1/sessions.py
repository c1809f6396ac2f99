"""The dialect of /v1/sessions and /v1/code: stateful Python. A cell is an execution, and replies as
an execution, with its displays."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta

from execd.api.v1 import session_request
from execd.api.v1.execution_reply import Encoding, rfc3339
from execd.api.v1.execution_request import idempotency_key
from execd.api.v1.executions import (
    DEFAULT_PAGE,
    MAX_PAGE,
    last_event_id,
    reply_now,
    reply_when_ended,
    stream_events,
    submission_headers,
)
from execd.api.wire import encoders
from execd.api.wire.body import read_body
from execd.api.wire.fields import NoQuery, parse_json, parse_query
from execd.api.wire.keys import ENGINE
from execd.api.wire.replies import json_reply, replace_surrogates

if TYPE_CHECKING:
    from execd.engine.engine import Engine
    from execd.engine.executions.idempotency import Submitted
    from execd.engine.sessions.session import Session

DEFAULT_VARIABLES = 1000

T = TypeVar("T")


class SessionsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = DEFAULT_PAGE
    cursor: str | None = None


class ExecuteQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    encoding: Encoding = "text"
    create: bool = False


class CodeQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    encoding: Encoding = "text"


class VariablesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=10_000)] = DEFAULT_VARIABLES


def routes() -> list[web.RouteDef]:
    one = "/v1/sessions/{id}"
    return [
        # The router tries routes with the same beginning in order: the most frequent first.
        web.post(f"{one}/execute", execute),
        web.post("/v1/code", code),
        web.post("/v1/sessions", create),
        web.get("/v1/sessions", list_sessions),
        web.get(one, show),
        web.delete(one, delete),
        web.post(f"{one}/interrupt", interrupt),
        web.post(f"{one}/restart", restart),
        web.post(f"{one}/input", give_input),
        web.post(f"{one}/fork", fork),
        web.post(f"{one}/complete", complete),
        web.get(f"{one}/variables", variables),
    ]


def _session(request: web.Request) -> Session:
    return request.app[ENGINE].sessions.get(request.match_info["id"])


async def _body(request: web.Request, decoder: msgspec.json.Decoder[T]) -> T:
    return parse_json(await read_body(request) or b"{}", decoder)


async def session_fields(session: Session, engine: Engine) -> dict[str, Any]:
    return {
        "id": session.id,
        "session_id": session.id,
        "state": session.state,
        "generation": session.generation,
        "execution_count": session.execution_count,
        "created_at": rfc3339(session.created_at),
        "uptime_seconds": round(session.uptime_seconds, 3),
        "last_used_at": rfc3339(session.last_used_at),
        "cwd": replace_surrogates(session.cwd or engine.config.base_dir),
        "pid": session.pid,
        "memory_bytes": await session.memory_bytes(),
        "waiting": session.n_waiting,
        "unclaimed_output_bytes": session.unclaimed_output_bytes,
    }


# --- sessions


async def create(request: web.Request) -> web.StreamResponse:
    parse_query(request.query, NoQuery)
    engine = request.app[ENGINE]
    parsed = await _body(request, session_request.SESSION)
    session = await engine.sessions.create(
        session_id=parsed.id,
        cwd=parsed.cwd,
        env=parsed.env,
        limits=session_request.parse_limits(parsed.limits),
    )
    return json_reply(
        await session_fields(session, engine), 201, {"Location": f"/v1/sessions/{session.id}"}
    )


async def list_sessions(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    query = parse_query(request.query, SessionsQuery)
    found, cursor = engine.sessions.page(limit=query.limit, cursor=query.cursor)
    items = await asyncio.gather(*(session_fields(session, engine) for session in found))
    return json_reply({"items": items, "next_cursor": cursor})


async def show(request: web.Request) -> web.StreamResponse:
    parse_query(request.query, NoQuery)
    return json_reply(await session_fields(_session(request), request.app[ENGINE]))


async def delete(request: web.Request) -> web.StreamResponse:
    """End all processes of the session and forget the session."""
    parse_query(request.query, NoQuery)
    session = _session(request)
    await request.app[ENGINE].sessions.delete(session)
    return json_reply({"status": "success", "id": session.id})


async def interrupt(request: web.Request) -> web.StreamResponse:
    """Send SIGINT to the running cell. If the cell does not end, SIGKILL follows, and a new
    generation."""
    parse_query(request.query, NoQuery)
    return json_reply({"interrupted": request.app[ENGINE].sessions.interrupt(_session(request))})


async def restart(request: web.Request) -> web.StreamResponse:
    parse_query(request.query, NoQuery)
    engine, session = request.app[ENGINE], _session(request)
    await engine.sessions.restart(session)
    return json_reply(await session_fields(session, engine))


async def give_input(request: web.Request) -> web.StreamResponse:
    parse_query(request.query, NoQuery)
    parsed = await _body(request, session_request.INPUT)
    request.app[ENGINE].sessions.give_input(_session(request), parsed.text)
    return web.Response(status=204)


async def fork(request: web.Request) -> web.StreamResponse:
    parse_query(request.query, NoQuery)
    engine = request.app[ENGINE]
    parsed = await _body(request, session_request.FORK)
    branches, warnings = await engine.sessions.fork(
        _session(request), session_id=parsed.id, count=parsed.count or 1
    )
    replies = await asyncio.gather(*(session_fields(branch, engine) for branch in branches))
    return json_reply({"sessions": replies, "warnings": warnings}, 201)


async def complete(request: web.Request) -> web.StreamResponse:
    parse_query(request.query, NoQuery)
    parsed = await _body(request, session_request.COMPLETE)
    cursor = len(parsed.code) if parsed.cursor is None else min(parsed.cursor, len(parsed.code))
    completion = await request.app[ENGINE].sessions.complete(_session(request), parsed.code, cursor)
    start = cursor if completion.cursor_start is None else completion.cursor_start
    end = cursor if completion.cursor_end is None else completion.cursor_end
    return json_reply({"matches": completion.matches, "cursor_start": start, "cursor_end": end})


async def variables(request: web.Request) -> web.StreamResponse:
    """Reply with the user's variables by name."""
    query = parse_query(request.query, VariablesQuery)
    listing = await request.app[ENGINE].sessions.variables(_session(request), query.limit)
    return json_reply({"variables": listing.variables, "total": listing.total})


# --- cells


async def execute(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    query = parse_query(request.query, ExecuteQuery)
    parsed = await _body(request, session_request.CELL)
    session_id = request.match_info["id"]
    key = idempotency_key(request.headers.get("Idempotency-Key"))
    submitted = engine.run_cell(
        session_id,
        session_request.to_command(parsed),
        session_request.to_options(parsed),
        create=query.create,
        execution_id=parsed.id,
        key=key,
        payload=session_request.payload(parsed, session_id) if key or parsed.id else b"",
    )
    return await _reply_to_cell(request, submitted, query.encoding, detached=bool(parsed.detach))


async def code(request: web.Request) -> web.StreamResponse:
    """Run code in an existing session, in a session made under its name, or in a session for this
    code only."""
    engine = request.app[ENGINE]
    query = parse_query(request.query, CodeQuery)
    parsed = await _body(request, session_request.CODE)
    timeout_seconds = (
        engine.config.code_timeout_seconds
        if parsed.timeout_seconds is None
        else parsed.timeout_seconds
    )
    cell = session_request.CellRequest(code=parsed.code, timeout_seconds=timeout_seconds)
    key = idempotency_key(request.headers.get("Idempotency-Key"))
    submitted = engine.run_code(
        session_request.to_command(cell),
        session_request.to_options(cell),
        session_id=parsed.session_id,
        env=parsed.env,
        keep=bool(parsed.keep),
        key=key,
        payload=session_request.code_payload(parsed) if key else b"",
    )
    return await _reply_to_cell(request, submitted, query.encoding)


async def _reply_to_cell(
    request: web.Request, submitted: Submitted, encoding: Encoding, *, detached: bool = False
) -> web.StreamResponse:
    execution, headers = submitted.execution, submission_headers(submitted)
    encoder = encoders.choose_encoder(request.headers.get("Accept", ""))
    if encoder is not None:
        after = 0 if submitted.is_new else last_event_id(request.headers.get("Last-Event-ID"), 0)
        return await stream_events(request, execution, encoder, after, encoding, headers)
    if detached:
        return await reply_now(request, execution, encoding, headers)
    return await reply_when_ended(request, execution, encoding, headers)
