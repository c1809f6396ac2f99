"""Terminals.

    POST   /pty             make a terminal; its shell starts with the first viewer
    GET    /pty/{id}        whether the shell runs, and how much output there is
    DELETE /pty/{id}        end the shell
    GET    /pty/{id}/ws     look on: a WebSocket, for one viewer at a time

Messages to the viewer: binary, with a first byte:

    0x03  output from before: the offset (8 bytes, big-endian), then the bytes
    0x01  output          0x02  standard error, only without a terminal (``?pty=0``)

and text: ``connected``, ``pong``, ``error``, and ``exit``, after which the socket closes. Messages
from the viewer: binary 0x00 and input; text ``stdin``, ``signal``, ``resize``, ``ping``.

``?since=`` is the offset from which the viewer needs the output; ``?takeover=1`` sends the present
viewer away, with the close code 4001. A viewer who leaves ends nothing.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web
from aiohttp.http import WSMsgType

from execd.api.wire_api import (
    ENGINE,
    Route,
    SocketViewer,
    json_reply,
    origin_of,
    parse_json,
    query_of,
    signal_number,
)
from execd.engine.engine_api import (
    Conflict,
    Dropped,
    ExecdError,
    ExitedEvent,
    Heartbeat,
    InvalidArgument,
    NotFound,
    Output,
    ProgramStarted,
    ResourceExhausted,
)
from execd_opensandbox.event_frames import opensandbox_exit_code
from execd_opensandbox.pty_messages import (
    MESSAGE,
    PtyInput,
    PtyPing,
    PtyResize,
    PtySignal,
    output_message,
    replay_message,
)
from execd_opensandbox.requests import expanded, int_query, parse_body, program_environment

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from aiohttp import WSMessage

    from execd.engine.engine_api import Execution, NamedTerminal

    Frame = tuple[bytes, WSMsgType]

TAKEN_OVER = 4001
"""Close code from the range for applications (RFC 6455 §7.4.2)."""
KEYS = {"SIGINT": b"\x03", "SIGQUIT": b"\x1c"}
"""Signals that a terminal sends itself, to the program in the foreground."""


class PtyBody(msgspec.Struct, frozen=True, kw_only=True):
    """A terminal to make. ``command``: None for an interactive shell."""

    cwd: str | None = None
    command: str | None = None


class PtyReply(msgspec.Struct, frozen=True, kw_only=True):
    """A new terminal."""

    session_id: str


class PtyStatusReply(msgspec.Struct, frozen=True, kw_only=True):
    """A terminal. ``output_offset``: bytes of output up to now."""

    session_id: str
    running: bool
    output_offset: int


BODY = msgspec.json.Decoder(PtyBody)


def _terminal(request: web.Request) -> NamedTerminal:
    return request.app[ENGINE].terminals.get(request.match_info["id"])


async def create(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    asked = await parse_body(request, BODY)
    terminal = engine.terminals.create(
        cwd=expanded(engine, asked.cwd) if asked.cwd else None, command=asked.command or None
    )
    return json_reply(PtyReply(session_id=terminal.id), 201)


async def show(request: web.Request) -> web.StreamResponse:
    terminal = _terminal(request)
    return json_reply(
        PtyStatusReply(
            session_id=terminal.id,
            running=terminal.is_running,
            output_offset=terminal.output_bytes,
        )
    )


async def delete(request: web.Request) -> web.StreamResponse:
    await request.app[ENGINE].terminals.end(_terminal(request))
    return web.Response()


async def look_on(request: web.Request) -> web.StreamResponse:
    engine, terminal = request.app[ENGINE], _terminal(request)
    query, since = query_of(request.raw_path), int_query(request, "since", 0)
    socket = SocketViewer.offer(request, "ws")
    takes_over = query.get("takeover") == "1"
    _refuse_second_viewer(terminal, takes_over=takes_over)
    environment = await program_environment(request)
    execution = engine.terminals.start(
        terminal,
        has_terminal=query.get("pty") != "0",
        env=environment,
        origin=origin_of(request, "opensandbox"),
    )
    await execution.wait_started()
    # Another viewer may have come during the waits. From this look to the claim nobody waits.
    _refuse_second_viewer(terminal, takes_over=takes_over)
    viewer = PtyViewer(request, socket, terminal, execution)
    if terminal.viewer is not None:
        terminal.viewer()
    terminal.viewer = viewer.send_away
    try:
        await socket.prepare(request)
        await viewer.serve(since)
    finally:
        if terminal.viewer == viewer.send_away:
            terminal.viewer = None
    return socket


def _refuse_second_viewer(terminal: NamedTerminal, *, takes_over: bool) -> None:
    """Raises Conflict."""
    if terminal.viewer is not None and not takes_over:
        raise Conflict(
            "somebody looks on already; pass takeover=1 to send them away",
            opensandbox_code="ALREADY_CONNECTED",
        )


class PtyViewer(SocketViewer):
    """One WebSocket on a terminal."""

    def __init__(
        self,
        request: web.Request,
        socket: web.WebSocketResponse,
        terminal: NamedTerminal,
        execution: Execution,
    ) -> None:
        super().__init__(request, socket)
        self._terminal = terminal
        self._execution = execution
        self._inputs: asyncio.Queue[bytes] = asyncio.Queue(1)

    def send_away(self) -> None:
        """Another viewer has taken over."""
        self.dismiss(TAKEN_OVER, b"TAKEN_OVER")

    # To the viewer.

    async def _frames(self, offset: int) -> AsyncGenerator[Frame | None, None]:
        known = self._terminal.output_bytes
        since = min(offset, known)
        is_connected = False
        connected = _text(
            type="connected",
            session_id=self._terminal.id,
            mode="pty" if self._terminal.has_terminal else "pipe",
        )
        if since >= known:
            is_connected = True
            yield connected
        async with aclosing(self._followed(since)) as followed:
            async for event in followed:
                match event:
                    case ProgramStarted():
                        pass
                    case Output() if event.stream == "stdout" and event.offset < known:
                        past = event.data[: known - event.offset]
                        yield replay_message(event.offset, past), WSMsgType.BINARY
                        if event.offset + len(past) >= known and not is_connected:
                            is_connected = True
                            yield connected
                        if len(past) < len(event.data):
                            yield (
                                output_message("stdout", event.data[len(past) :]),
                                WSMsgType.BINARY,
                            )
                    case Output():
                        yield output_message(event.stream, event.data), WSMsgType.BINARY
                    case Dropped():
                        end = event.offset + event.size_bytes
                        if end >= known and not is_connected:
                            is_connected = True
                            yield connected
                    case ExitedEvent():
                        yield self._exit()
                    case Heartbeat():
                        yield None

    def _followed(self, since: int) -> AsyncGenerator[Any, None]:
        if self._terminal.has_terminal:
            return self._execution.view.follow_stream("stdout", since)
        # The offset counts standard output. A viewer who comes back has the standard error.
        stderr_bytes = self._execution.view.total_bytes("stderr") if since else 0
        return self._execution.view.follow(
            0, text=False, known={"stdout": since, "stderr": stderr_bytes}
        )

    def _exit(self) -> Frame:
        result = self._execution.outcome
        exit_code = 125 if result is None else opensandbox_exit_code(result)
        return _text(type="exit", exit_code=exit_code)

    # From the viewer.

    async def _obey(self, message: WSMessage) -> None:
        try:
            if message.type is WSMsgType.BINARY:
                if message.data[:1] != b"\x00":
                    raise InvalidArgument("a binary message begins with the byte 0x00")
                await self._inputs.put(message.data[1:])
            elif message.type is WSMsgType.TEXT:
                await self._obey_text(parse_json(message.data.encode(), MESSAGE, "message"))
        except ExecdError as error:
            await self._refuse(error, error.details.get("opensandbox_code", "INVALID_FRAME"))

    async def _refuse(self, error: ExecdError, code: str) -> None:
        """Report a refusal. A message that meets the end of the shell is no mistake: ``exit``
        follows."""
        if not (isinstance(error, Conflict) and self._execution.program_has_ended):
            await self._send(*_text(type="error", error=error.message, code=code))

    async def _obey_text(self, message: PtyInput | PtySignal | PtyResize | PtyPing) -> None:
        match message:
            case PtyInput():
                await self._inputs.put(message.data.encode("utf-8", "surrogatepass"))
            case PtySignal():
                key = KEYS.get(message.signal)
                if key is not None and self._terminal.has_terminal:
                    await self._inputs.put(key)
                else:
                    self._execution.signal(signal_number(message.signal))
            case PtyResize():
                self._execution.resize(message.cols, message.rows)
            case PtyPing():
                await self._send(b'{"type":"pong"}', WSMsgType.TEXT)

    async def _feed_input(self) -> None:
        while True:
            data = await self._inputs.get()
            try:
                await self._execution.write_stdin(data)
            except ExecdError as error:
                await self._refuse(error, "STDIN_WRITE_FAILED")


def _text(**message: Any) -> Frame:
    return json.dumps(message).encode(), WSMsgType.TEXT


TERMINAL_ROUTE = "/pty/{id}"
ROUTES = (
    Route(
        method="POST",
        path="/pty",
        handler=create,
        name="opensandbox_create_pty",
        summary="Make a terminal",
        body=(PtyBody,),
        is_body_optional=True,
        replies={201: (PtyReply,)},
        errors=(ResourceExhausted,),
    ),
    Route(
        method="GET",
        path=TERMINAL_ROUTE,
        handler=show,
        name="opensandbox_pty_status",
        summary="One terminal",
        replies={200: (PtyStatusReply,)},
        errors=(NotFound,),
    ),
    Route(
        method="DELETE",
        path=TERMINAL_ROUTE,
        handler=delete,
        name="opensandbox_delete_pty",
        summary="End the shell of a terminal",
        replies={200: ()},
        errors=(NotFound,),
    ),
    Route(
        method="GET",
        path=f"{TERMINAL_ROUTE}/ws",
        handler=look_on,
        name="opensandbox_attach_pty",
        summary="A WebSocket on a terminal",
        replies={101: ()},
        errors=(NotFound, Conflict, ResourceExhausted),
    ),
)
