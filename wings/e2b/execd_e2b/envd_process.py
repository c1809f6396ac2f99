"""``process.Process`` of envd: each command is an execution of the engine.

    Start         run a program; the reply streams its events
    Connect       the events of a program that runs, or has ended of late
    List          the programs that run
    SendInput, StreamInput, CloseStdin, SendSignal, Update    act on a program that runs

As in envd: ``Connect-Timeout-Ms`` of Start is the life of the program, and the end of the
connection is not. Otherwise than in envd: SIGNAL_SIGKILL and the end of a life end the whole tree,
a later Connect gets all output that no client has taken (``receipts``), and the stream ends with
the program and not with its pipes.
"""

from __future__ import annotations

import math
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from execd.api.wire_api import (
    ENGINE,
    PIECES_BYTES,
    body_chunks,
    lease_of,
    note_started,
    origin_of,
    parse_json,
    trace_environment,
)
from execd.engine.engine_api import (
    Command,
    Conflict,
    Dropped,
    ExitedEvent,
    ExitReason,
    Heartbeat,
    Internal,
    InvalidArgument,
    Output,
    RequestTimeout,
    Submission,
    TerminalSize,
    line_program,
)
from execd_e2b import envd_messages as messages
from execd_e2b.accounts import expand
from execd_e2b.connect import ConnectDecoder, decode_bytes, frame, parse_keepalive, parse_timeout
from execd_e2b.receipts import Receipts
from execd_e2b.rpc import raw_stream, send_frames, stream, unary
from execd_e2b.sandbox import SANDBOX

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from aiohttp import web

    from execd.engine.engine_api import Engine, Execution, Stream
    from execd_e2b.accounts import RequestAccount
    from execd_e2b.sandbox import Sandbox

SERVICE = "/process.Process/"
ENDED_SECONDS = 300.0
"""How long Connect finds a command after its end. envd: 30 s, and without the output."""


async def start(
    request: web.Request, sandbox: Sandbox, asked: messages.StartRequest
) -> web.StreamResponse:
    account = await sandbox.account(request.headers.get("Authorization"))
    command = await _command(request, sandbox, asked, account)
    execution = sandbox.engine.submit(Submission(command)).execution
    note_started(request, execution, command.origin)
    has_own_deadline = command.timeout_seconds <= sandbox.engine.config.timeout
    return await _follow(request, sandbox, execution, has_own_deadline=has_own_deadline)


async def _command(
    request: web.Request, sandbox: Sandbox, asked: messages.StartRequest, account: RequestAccount
) -> Command:
    """Make the command of a Start. Raises InvalidArgument, RequestTimeout (no time is left)."""
    seconds = parse_timeout(request.headers.get("Connect-Timeout-Ms"))
    if seconds == 0:
        raise RequestTimeout("Connect-Timeout-Ms: 0 leaves no time for the program")
    terminal = None
    if asked.pty is not None:
        cols, rows = messages.terminal_size(asked.pty)
        terminal = TerminalSize(cols=cols, rows=rows)
    if not asked.process.cmd:
        raise InvalidArgument("process.cmd: the program's name is missing", field="process.cmd")
    return Command(
        program=line_program([asked.process.cmd, *(asked.process.args or ())]),
        cwd=await _working_directory(sandbox, asked.process.cwd, account),
        env={
            **trace_environment(request.headers.get("traceparent")),
            **account.env,
            **sandbox.env,
            **(asked.process.envs or {}),
        },
        user=account.user,
        timeout_seconds=math.inf if seconds is None else seconds,
        total_seconds=seconds,
        terminal=terminal,
        stdin_open=terminal is not None or asked.stdin is not False,
        tag=asked.tag,
        on_disconnect="detach",
        origin=origin_of(request, "e2b"),
    )


async def _working_directory(
    sandbox: Sandbox, asked: str | None, account: RequestAccount
) -> str | None:
    """Return the absolute path; None for the base dir, which execd makes if missing. Raises
    InvalidArgument before anything is started, as envd does."""
    path = expand(asked or "", account, sandbox.default_workdir)
    if path == sandbox.engine.config.base_dir:
        return None
    await sandbox.check_directory(path, "cwd", "process.cwd")
    return path


async def connect(
    request: web.Request, sandbox: Sandbox, asked: messages.ProcessRequest
) -> web.StreamResponse:
    parse_timeout(request.headers.get("Connect-Timeout-Ms"))  # the caller's own deadline
    pid, tag = asked.process.names()
    execution = sandbox.engine.find_command(pid=pid, tag=tag, ended_within_seconds=ENDED_SECONDS)
    return await _follow(request, sandbox, execution)


async def _follow(
    request: web.Request,
    sandbox: Sandbox,
    execution: Execution,
    *,
    has_own_deadline: bool = False,
) -> web.StreamResponse:
    """Send the events of a command, from the output on that no client has taken.

    ``has_own_deadline``: the caller has set the life of the program, so its end by time is the
    caller's own deadline: an error of the stream, as in envd, which the SDKs call a timeout.
    """
    keepalive_seconds = parse_keepalive(request.headers.get("Keepalive-Ping-Interval"))
    with execution.attach() as attachment:
        await execution.wait_started()
        events = _events(
            execution,
            sandbox.received(execution),
            Receipts(request, sandbox.received(execution)),
            keepalive_seconds,
            has_own_deadline=has_own_deadline,
        )
        response = await send_frames(request, events, attachment.excuse)
        attachment.delivered()
    return response


async def _events(
    execution: Execution,
    received: Mapping[Stream, int],
    receipts: Receipts,
    keepalive_seconds: float,
    *,
    has_own_deadline: bool,
) -> AsyncGenerator[bytes, None]:
    """Yield the frames of a command. ``received``: by stream, how many bytes are left out."""
    has_terminal = execution.command.terminal is not None
    yield frame(messages.start_event(execution.pid, execution.id))
    if execution.pid is None and execution.result is not None:
        yield frame(messages.data_event("stderr", f"{execution.result.message}\n".encode()))
    followed = execution.view.follow(
        0, text=False, heartbeat_seconds=keepalive_seconds, known=dict(received)
    )
    async with aclosing(followed):
        async for event in followed:
            match event:
                case Output(stream=name, offset=offset, data=data):
                    yield frame(messages.data_event("pty" if has_terminal else name, data))
                    receipts.sent(name, offset + len(data))
                case Dropped(stream=name, offset=offset, size_bytes=size_bytes):
                    yield frame(messages.dropped_event(name, offset, size_bytes))
                case Heartbeat():
                    yield frame(messages.KEEPALIVE)
                case ExitedEvent():
                    if execution.outcome is None:
                        raise execution.error or Internal("the end of the command is unknown")
                    if has_own_deadline and execution.outcome.exit_reason is ExitReason.TIMEOUT:
                        raise RequestTimeout("the time of Connect-Timeout-Ms is over")
                    yield frame(messages.end_event(execution.outcome))


async def list_processes(
    _request: web.Request, sandbox: Sandbox, _asked: messages.ProcessRequest
) -> dict[str, Any]:
    found = [_listed(sandbox.engine, one) for one in sandbox.engine.running_commands()]
    return {"processes": found} if found else {}


def _listed(engine: Engine, execution: Execution) -> dict[str, Any]:
    """Return the row of a command, without its environment, which may hold secrets."""
    command = execution.command
    cmd, *args = command.program.argv
    row: dict[str, Any] = {
        "config": {"cmd": cmd, "args": args, "cwd": command.cwd or engine.config.base_dir},
        "pid": execution.pid,
        "executionId": execution.id,
    }
    return row if command.tag is None else {**row, "tag": command.tag}


def _running(sandbox: Sandbox, selector: messages.Selector) -> Execution:
    """Return the command, which runs. Raises NotFound, InvalidArgument."""
    pid, tag = selector.names()
    return sandbox.engine.find_command(pid=pid, tag=tag)


async def send_input(
    _request: web.Request, sandbox: Sandbox, asked: messages.ProcessRequest
) -> dict[str, Any]:
    await _write(_running(sandbox, asked.process), asked.input)
    return {}


async def _write(execution: Execution, given: messages.Input) -> None:
    """Raises Conflict (the program has no such input), InvalidArgument."""
    has_terminal = execution.command.terminal is not None
    text = given.stdin if given.pty is None else given.pty
    if text is None:
        raise InvalidArgument("input: needs stdin or pty", field="input")
    if has_terminal != (given.pty is not None):
        kind = "terminal: send pty" if has_terminal else "pipe as its input: send stdin"
        raise Conflict(f"input: the program has a {kind}; use the other field")
    await execution.write_stdin(
        decode_bytes(text, "input.stdin" if given.pty is None else "input.pty")
    )


async def stream_input(request: web.Request) -> web.StreamResponse:
    """Write each message of the body as it comes. The reply is one empty message."""
    sandbox = request.app[SANDBOX]
    decoder = ConnectDecoder(request.app[ENGINE].config.max_body_bytes)
    execution: Execution | None = None
    async for chunk in body_chunks(request):
        for message in decoder.feed(chunk):
            asked = parse_json(message or b"{}", messages.STREAM_INPUT, "message")
            if asked.start is not None:
                execution = _running(sandbox, asked.start.process)
            elif asked.data is not None and execution is None:
                raise InvalidArgument("data: comes after start, which names the process")
            elif asked.data is not None and execution is not None:
                await _write(execution, asked.data.input)
        lease_of(request).resize(PIECES_BYTES + decoder.held_bytes)
    decoder.finish()
    return await send_frames(request, _empty_message())


async def _empty_message() -> AsyncGenerator[bytes, None]:
    yield frame({})


async def close_stdin(
    _request: web.Request, sandbox: Sandbox, asked: messages.ProcessRequest
) -> dict[str, Any]:
    execution = _running(sandbox, asked.process)
    if execution.command.terminal is not None:
        raise Conflict("process: a terminal is not closed; send the byte 4 (Ctrl-D) as pty input")
    await execution.end_stdin()
    return {}


async def send_signal(
    _request: web.Request, sandbox: Sandbox, asked: messages.ProcessRequest
) -> dict[str, Any]:
    execution = _running(sandbox, asked.process)
    number = messages.signal_number(asked.signal)
    if number == messages.SIGNALS["SIGNAL_SIGKILL"]:
        execution.end(ExitReason.CANCELED, 0.0)
        await execution.ended()  # so that the next List has it no more
    else:
        execution.signal(number)
    return {}


async def update(
    _request: web.Request, sandbox: Sandbox, asked: messages.ProcessRequest
) -> dict[str, Any]:
    execution = _running(sandbox, asked.process)
    if asked.pty is not None:
        execution.resize(*messages.terminal_size(asked.pty))
    return {}


ROUTES = (
    stream(SERVICE + "Start", messages.START, start, "Run a program"),
    stream(SERVICE + "Connect", messages.PROCESS, connect, "Follow a program"),
    unary(SERVICE + "List", messages.PROCESS, list_processes, "List the programs that run"),
    unary(SERVICE + "SendInput", messages.PROCESS, send_input, "Give a program input"),
    raw_stream(SERVICE + "StreamInput", stream_input, "Give a program input as it comes"),
    unary(SERVICE + "CloseStdin", messages.PROCESS, close_stdin, "End a program's input"),
    unary(SERVICE + "SendSignal", messages.PROCESS, send_signal, "Signal a program"),
    unary(SERVICE + "Update", messages.PROCESS, update, "Set the size of a terminal"),
)
