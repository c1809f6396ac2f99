"""Commands.

    POST   /command                   run; a stream of events
    DELETE /command?id=               end a command: SIGTERM, and SIGKILL after 3 s
    GET    /command/status/{id}       the state of a command
    GET    /command/{id}/logs         the output of a background command; ?cursor= is a byte offset

The standard error of a background command goes into the same pipe as the standard output: the logs
of OpenSandbox are one text, and a cursor must mean the same bytes in every answer.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from execd.api.wire_api import ENGINE, Route, json_reply, note_started, origin_of
from execd.engine.engine_api import (
    Command,
    Conflict,
    ExitReason,
    InvalidArgument,
    NotFound,
    Program,
    ResourceExhausted,
    State,
    Submission,
    argv_program,
    incomplete_tail_bytes,
    shell_program,
)
from execd_opensandbox.event_frames import opensandbox_exit_code
from execd_opensandbox.event_reply import send_execution, send_started
from execd_opensandbox.requests import (
    expanded,
    int_query,
    parse_body,
    program_environment,
    required_query,
)

if TYPE_CHECKING:
    from execd.engine.engine_api import Engine, Execution

CURSOR_HEADER = "EXECD-COMMANDS-TAIL-CURSOR"
INTERRUPT_SECONDS = 3.0
"""From SIGTERM to SIGKILL of an interrupted command, as in OpenSandbox."""
MAX_LOG_BYTES = 8 << 20
"""Bytes in one answer with logs. The cursor of the answer leads to the rest."""
MAX_ACCOUNT = 2**32 - 2
MERGED = 'exec "$@" 2>&1'

AccountId = Annotated[int, Meta(ge=0, le=MAX_ACCOUNT)]
Milliseconds = Annotated[int, Meta(ge=0)]


class CommandBody(msgspec.Struct, frozen=True, kw_only=True):
    """A command to run: exactly one of ``command`` and ``argv``."""

    command: str | None = None
    argv: list[str] | None = None
    cwd: str | None = None
    background: bool | None = None
    timeout: Milliseconds | None = None
    """0: the daemon's limit."""
    uid: AccountId | None = None
    gid: AccountId | None = None
    envs: dict[str, str] | None = None


class CommandStatusReply(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a command. What is not known yet is absent."""

    id: str
    content: str
    running: bool
    exit_code: int | UnsetType = UNSET
    error: str | UnsetType = UNSET
    started_at: str
    finished_at: str | UnsetType = UNSET


BODY = msgspec.json.Decoder(CommandBody)


async def run(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    asked = await parse_body(request, BODY)
    is_background = bool(asked.background)
    origin = origin_of(request, "opensandbox")
    command = Command(
        program=_program(engine, asked, is_background=is_background),
        cwd=None if asked.cwd is None else expanded(engine, asked.cwd),
        env={**await program_environment(request), **(asked.envs or {})},
        timeout_seconds=asked.timeout / 1000 if asked.timeout else math.inf,
        user=_user(engine, asked),
        detached=is_background,
        origin=origin,
    )
    execution = engine.submit(Submission(await engine.with_account(command))).execution
    note_started(request, execution, origin)
    if is_background:
        return await send_started(request, execution)
    return await send_execution(request, execution, execution.id)


def _program(engine: Engine, asked: CommandBody, *, is_background: bool) -> Program:
    if (asked.command is None) == (asked.argv is None):
        raise InvalidArgument("command: give exactly one of command and argv", field="command")
    if asked.argv is not None:
        program = argv_program(asked.argv)
    else:
        assert asked.command is not None
        if not asked.command.strip():
            raise InvalidArgument("command: empty", field="command")
        bash = engine.find_program("bash")
        program = shell_program(asked.command, (bash or "/bin/sh", "-c"))
        # The last argument is the name that the shell has in its messages.
        argv = (*program.argv, "sh" if bash is None else "bash")
        program = msgspec.structs.replace(program, argv=argv)
    if is_background:
        # A wrapper, and not a first line: bash reads the first line with the mistakes in it before
        # bash does anything, and counts lines from there.
        argv = ("/bin/sh", "-c", MERGED, "sh", *program.argv)
        program = msgspec.structs.replace(program, argv=argv)
    return program


def _user(engine: Engine, asked: CommandBody) -> str | None:
    """Return the user to run as; None: the user of all commands."""
    if asked.uid is None:
        if asked.gid is not None:
            raise InvalidArgument("gid: needs uid", field="gid")
        return None
    if (asked.uid, asked.uid if asked.gid is None else asked.gid) == engine.owner:
        return None
    return str(asked.uid) if asked.gid is None else f"{asked.uid}:{asked.gid}"


async def interrupt(request: web.Request) -> web.StreamResponse:
    """End a command, the run of a bash session, or the cell of a context. Reply after the end of a
    command, and at once for a cell, whose interpreter lives on."""
    engine, name = request.app[ENGINE], required_query(request, "id")
    session = engine.sessions.find(name)
    if session is not None:
        if not engine.sessions.interrupt(session):
            raise _nothing_runs(name)
        return web.Response()
    bash_session = engine.bash_sessions.find(name)
    execution = engine.get(name) if bash_session is None else bash_session.execution
    if execution is None or execution.state is State.EXITED:
        raise _nothing_runs(name)
    cause = ExitReason.CANCELED if execution.cell is None else ExitReason.INTERRUPTED
    execution.end(cause, INTERRUPT_SECONDS)
    await execution.ended()
    return web.Response()


def _nothing_runs(name: str) -> Conflict:
    return Conflict(f"nothing runs under the id {name!r}; start a command first")


async def show(request: web.Request) -> web.StreamResponse:
    execution = request.app[ENGINE].get(request.match_info["id"])
    result = execution.outcome
    return json_reply(
        CommandStatusReply(
            id=execution.id,
            content=execution.command.program.display,
            running=result is None and execution.state is not State.EXITED,
            exit_code=UNSET if result is None else opensandbox_exit_code(result),
            error=UNSET if result is None or not result.message else result.message,
            started_at=rfc3339(execution.started_at or execution.created_at),
            finished_at=UNSET if execution.ended_at is None else rfc3339(execution.ended_at),
        )
    )


def rfc3339(seconds: float) -> str:
    """Return the time in UTC. ``seconds``: since the epoch."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


async def logs(request: web.Request) -> web.StreamResponse:
    execution = request.app[ENGINE].get(request.match_info["id"])
    cursor = int_query(request, "cursor", 0)
    if not execution.command.detached:
        raise InvalidArgument(
            f"the command {execution.id} runs in the foreground: only commands with "
            '"background": true have logs'
        )
    await execution.view.refresh_size("stdout")
    data, stop = await _read_log(execution, cursor)
    return web.Response(
        body=data,
        content_type="text/plain",
        charset="utf-8",
        headers={CURSOR_HEADER: str(max(stop, cursor))},
    )


async def _read_log(execution: Execution, cursor: int) -> tuple[bytes, int]:
    """Return bytes from ``cursor`` on, and the cursor behind the bytes. A marker line stands for
    bytes that were not kept."""
    total_bytes = execution.view.total_bytes("stdout")
    hole = execution.output.hole("stdout")
    marker = b""
    if hole is not None and hole[0] <= cursor < hole[1]:
        marker = f"[execd: {hole[1] - cursor} bytes were not kept]\n".encode()
        cursor = hole[1]
    stop = min(total_bytes, cursor + MAX_LOG_BYTES)
    if hole is not None and cursor < hole[0]:
        stop = min(stop, hole[0])
    data = await execution.view.read("stdout", cursor, stop) if cursor < stop else b""
    may_grow = execution.state is not State.EXITED or execution.output.streams["stdout"].is_held
    if may_grow or stop < total_bytes:
        data = data[: len(data) - incomplete_tail_bytes(data)]
    return marker + data, cursor + len(data)


ROUTES = (
    Route(
        method="POST",
        path="/command",
        handler=run,
        name="opensandbox_run_command",
        summary="Run a command",
        body=(CommandBody,),
        replies={200: ("text/event-stream",)},
        errors=(ResourceExhausted,),
    ),
    Route(
        method="DELETE",
        path="/command",
        handler=interrupt,
        name="opensandbox_interrupt_command",
        summary="End a command, or the run of a bash session",
        replies={200: ()},
        errors=(NotFound, Conflict),
    ),
    Route(
        method="GET",
        path="/command/status/{id}",
        handler=show,
        name="opensandbox_command_status",
        summary="The state of a command",
        replies={200: (CommandStatusReply,)},
        errors=(NotFound,),
    ),
    Route(
        method="GET",
        path="/command/{id}/logs",
        handler=logs,
        name="opensandbox_command_logs",
        summary="The output of a background command",
        replies={200: ("text/plain",)},
        reply_headers=(CURSOR_HEADER,),
        errors=(NotFound,),
    ),
)
