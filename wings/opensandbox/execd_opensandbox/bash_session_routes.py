"""Bash sessions.

POST   /session               make a session
POST   /session/{id}/run      run a command in the session; a stream of events
DELETE /session/{id}          end the session
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from execd.api.wire_api import ENGINE, Route, json_reply, note_started, origin_of
from execd.engine.engine_api import (
    Command,
    Conflict,
    InvalidArgument,
    NotFound,
    NotSupported,
    ResourceExhausted,
    shell_program,
)

# msgspec reads the annotations at run time.
from execd_opensandbox.command_routes import Milliseconds  # noqa: TC001
from execd_opensandbox.event_reply import send_execution
from execd_opensandbox.requests import expanded, parse_body, program_environment

if TYPE_CHECKING:
    from execd.engine.engine_api import BashSession


class BashSessionBody(msgspec.Struct, frozen=True, kw_only=True):
    """A bash session to make."""

    cwd: str | None = None


class BashRunBody(msgspec.Struct, frozen=True, kw_only=True):
    """A command for a bash session."""

    command: str
    cwd: str | None = None
    timeout: Milliseconds | None = None


class BashSessionReply(msgspec.Struct, frozen=True, kw_only=True):
    """A new bash session."""

    session_id: str


SESSION_BODY = msgspec.json.Decoder(BashSessionBody)
RUN_BODY = msgspec.json.Decoder(BashRunBody)


async def create(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    asked = await parse_body(request, SESSION_BODY)
    if engine.find_program("bash") is None:
        raise NotSupported("session: there is no bash in this image")
    cwd = None if not asked.cwd else expanded(engine, asked.cwd)
    session = await engine.bash_sessions.create(cwd=cwd)
    return json_reply(BashSessionReply(session_id=session.id))


async def run(request: web.Request) -> web.StreamResponse:
    session = request.app[ENGINE].bash_sessions.get(request.match_info["id"])
    asked = await parse_body(request, RUN_BODY)
    timeout_seconds = asked.timeout / 1000 if asked.timeout else math.inf
    return await run_in_session(
        request, session, asked.command, cwd=asked.cwd, timeout_seconds=timeout_seconds
    )


async def run_in_session(
    request: web.Request,
    session: BashSession,
    text: str,
    *,
    cwd: str | None = None,
    timeout_seconds: float = math.inf,
) -> web.StreamResponse:
    """Run ``text`` in the session, and send the events."""
    engine = request.app[ENGINE]
    if not text.strip():
        raise InvalidArgument("command: empty", field="command")
    origin = origin_of(request, "opensandbox")
    command = Command(
        program=shell_program(text),  # the session puts its own script in this place
        cwd=None if not cwd else expanded(engine, cwd),
        env=await program_environment(request),
        timeout_seconds=timeout_seconds,
        total_seconds=timeout_seconds,
        origin=origin,
    )
    execution = engine.bash_sessions.run(session, text, command)
    note_started(request, execution, origin)
    return await send_execution(request, execution, session.id)


async def delete(request: web.Request) -> web.StreamResponse:
    sessions = request.app[ENGINE].bash_sessions
    await sessions.end(sessions.get(request.match_info["id"]))
    return web.Response()


ROUTES = (
    Route(
        method="POST",
        path="/session",
        handler=create,
        name="opensandbox_create_bash_session",
        summary="Make a bash session",
        body=(BashSessionBody,),
        is_body_optional=True,
        replies={200: (BashSessionReply,)},
        errors=(Conflict, ResourceExhausted, NotSupported),
    ),
    Route(
        method="POST",
        path="/session/{id}/run",
        handler=run,
        name="opensandbox_run_in_bash_session",
        summary="Run a command in a bash session",
        body=(BashRunBody,),
        replies={200: ("text/event-stream",)},
        errors=(NotFound, ResourceExhausted),
    ),
    Route(
        method="DELETE",
        path="/session/{id}",
        handler=delete,
        name="opensandbox_delete_bash_session",
        summary="End a bash session",
        replies={200: ()},
        errors=(NotFound,),
    ),
)
