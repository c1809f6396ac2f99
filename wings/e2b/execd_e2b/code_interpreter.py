"""E2B's code interpreter: cells (``/execute``) and contexts (``/contexts``). A context is a session
of the engine.

A disconnect interrupts the cell. A cell that waits for its context waits without a reply, for
``--queue-wait-seconds`` at most.
"""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from execd.api.wire_api import (
    ENGINE,
    Route,
    json_reply,
    note_started,
    origin_of,
    parse_json,
    read_body,
    send_stream,
)
from execd.engine.engine_api import (
    CellOptions,
    Command,
    DisplayEvent,
    Dropped,
    ExitedEvent,
    ExitReason,
    Heartbeat,
    InvalidArgument,
    NotFound,
    NotSupported,
    Output,
    ProgramStarted,
    ResourceExhausted,
    Submission,
    code_program,
)
from execd_e2b import cell_lines
from execd_e2b.accounts import expand, find_account
from execd_e2b.sandbox import SANDBOX

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from execd.engine.engine_api import Execution, Session
    from execd_e2b.sandbox import Sandbox

DEFAULT_CONTEXT = "e2b-python"
"""The session of cells without a context; made at the first use."""
KEEPALIVE_SECONDS = 5.0
MAX_LISTED = 1000


class CodeCellRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``/execute``. Null equals absent."""

    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = None


class ContextRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``/contexts``. Null equals absent."""

    language: str | None = None
    cwd: str | None = None


EXECUTE = msgspec.json.Decoder(CodeCellRequest)
CONTEXT = msgspec.json.Decoder(ContextRequest)


def _check_language(language: str | None) -> None:
    """Raises NotSupported."""
    if language is not None and language.lower() != "python":
        raise NotSupported(
            f"language: {language[:32]!r} has no interpreter here; the language is python",
            field="language",
        )


def _context(sandbox: Sandbox, context_id: str | None) -> Session:
    """Return the session of a context, and make the default one if missing. Raises NotFound."""
    sessions = sandbox.engine.sessions
    found = sessions.find(context_id or DEFAULT_CONTEXT)
    if found is None and context_id in (None, DEFAULT_CONTEXT):
        found = sessions.declare(
            session_id=DEFAULT_CONTEXT, cwd=sandbox.default_workdir, env=sandbox.env
        )
    if found is None:
        raise NotFound(f"Context {str(context_id)[:128]} not found")
    return found


def _reply(sandbox: Sandbox, session: Session) -> dict[str, str]:
    """Return a context. The SDKs need all three fields."""
    cwd = session.cwd or sandbox.engine.config.base_dir
    return {"id": session.id, "language": "python", "cwd": cwd}


# --- contexts


async def list_contexts(request: web.Request) -> web.StreamResponse:
    sandbox = request.app[SANDBOX]
    if sandbox.engine.config.sessions != "off":
        _context(sandbox, None)
    found, _ = sandbox.engine.sessions.page(limit=MAX_LISTED, cursor=None)
    return json_reply([_reply(sandbox, session) for session in found])


async def create_context(request: web.Request) -> web.StreamResponse:
    sandbox = request.app[SANDBOX]
    body = await read_body(request)
    asked = parse_json(body, CONTEXT) if body else ContextRequest()
    _check_language(asked.language)
    cwd = sandbox.default_workdir
    if asked.cwd:
        account = await find_account(sandbox.engine, None)
        cwd = expand(asked.cwd, account, sandbox.default_workdir)
    session = await sandbox.engine.sessions.create(cwd=cwd, env=sandbox.env)
    return json_reply(_reply(sandbox, session))


async def restart_context(request: web.Request) -> web.StreamResponse:
    sandbox = request.app[SANDBOX]
    session = _context(sandbox, request.match_info["id"])
    await sandbox.engine.sessions.restart(session)
    return json_reply(_reply(sandbox, session))


async def remove_context(request: web.Request) -> web.StreamResponse:
    sandbox = request.app[SANDBOX]
    await sandbox.engine.sessions.end(_context(sandbox, request.match_info["id"]))
    return web.Response(status=204)


# --- cells


async def execute(request: web.Request) -> web.StreamResponse:
    sandbox, engine = request.app[SANDBOX], request.app[ENGINE]
    asked = parse_json(await read_body(request), EXECUTE)
    if asked.context_id and asked.language:
        raise InvalidArgument(
            "Only one of context_id or language can be provided", field="context_id"
        )
    _check_language(asked.language)
    session = _context(sandbox, asked.context_id)
    origin = origin_of(request, "e2b")
    command = Command(
        program=code_program(asked.code),
        env=asked.env_vars or {},
        on_disconnect="kill",
        origin=origin,
    )
    execution = engine.submit(Submission(command, CellOptions(session_id=session.id))).execution
    note_started(request, execution, origin)
    with execution.attach() as attachment:
        await execution.wait_started()
        response = await send_stream(
            request,
            _lines(execution, session),
            bytes,
            content_type="application/x-ndjson",
            on_stall=attachment.excuse,
        )
        attachment.delivered()
    return response


async def _lines(execution: Execution, session: Session) -> AsyncGenerator[bytes, None]:
    has_error = False
    followed = execution.view.follow(0, text=True, heartbeat_seconds=KEEPALIVE_SECONDS)
    async with aclosing(followed):
        async for event in followed:
            match event:
                case ProgramStarted():
                    yield cell_lines.count_line(session.execution_count)
                case Output(stream=name, data=data) if data:
                    text = data.decode("utf-8", "replace")
                    yield cell_lines.output_line(name, text, datetime.now(UTC).isoformat())
                case Dropped(stream=name, offset=offset, size_bytes=size_bytes):
                    yield cell_lines.dropped_line(name, offset, size_bytes)
                case DisplayEvent(rich=message):
                    has_error = has_error or message.kind == "error"
                    shown = cell_lines.display_line(message)
                    if shown is not None:
                        yield shown
                case Heartbeat():
                    yield cell_lines.KEEPALIVE
                case ExitedEvent():
                    pass
    for last in _ends(execution, has_error=has_error):
        yield last


def _ends(execution: Execution, *, has_error: bool) -> list[bytes]:
    """Return the last lines: the error of a cell that did not end by itself, unless the cell has
    shown an error, and the end."""
    outcome: Any = execution.outcome
    ended_itself = outcome is not None and outcome.exit_reason is ExitReason.EXITED
    if has_error or ended_itself:
        return [cell_lines.END]
    if outcome is None:
        message = (
            "the end of the cell is unknown" if execution.error is None else str(execution.error)
        )
        error = cell_lines.line("error", name="Internal", value=message, traceback="")
    else:
        error = cell_lines.end_line(outcome)
    return [error, cell_lines.END]


ROUTES = (
    Route(
        method="POST",
        path="/execute",
        handler=execute,
        name="execute_code",
        summary="Run a cell, and stream what the cell shows",
        body=(CodeCellRequest,),
        replies={200: ("application/x-ndjson",)},
        errors=(NotFound, ResourceExhausted),
    ),
    Route(
        method="GET",
        path="/contexts",
        handler=list_contexts,
        name="list_contexts",
        summary="List the contexts",
        replies={200: (list[dict[str, str]],)},
    ),
    Route(
        method="POST",
        path="/contexts",
        handler=create_context,
        name="create_context",
        summary="Make a context",
        body=(ContextRequest,),
        is_body_optional=True,
        replies={200: (dict[str, str],)},
        errors=(ResourceExhausted,),
    ),
    Route(
        method="POST",
        path="/contexts/{id}/restart",
        handler=restart_context,
        name="restart_context",
        summary="Give a context a new interpreter, without state",
        replies={200: (dict[str, str],)},
        errors=(NotFound, ResourceExhausted),
    ),
    Route(
        method="DELETE",
        path="/contexts/{id}",
        handler=remove_context,
        name="remove_context",
        summary="End a context",
        replies={204: ()},
        errors=(NotFound,),
    ),
)
