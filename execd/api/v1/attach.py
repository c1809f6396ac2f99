"""Attach: a WebSocket on an execution's terminal, or without a terminal on stdin and stdout.

    binary, to the viewer    bytes of the stream stdout from ``offset`` on: the present bytes,
                             then the bytes to come
    binary, from the viewer  input for the program
    text, to the viewer      {"type":"started",…}  {"type":"dropped","offset","size_bytes"}
                             {"type":"error","code","message"} for a message that could not be
                             obeyed: everything else goes on. None for a message that meets the end
                             of the program
                             {"type":"exited",…} is the execution without stdout, which has been
                             sent, and with the ends of its stderr
    text, from the viewer    {"type":"resize","cols","rows"}  {"type":"signal","signal"}
                             {"type":"eof"}

The socket closes with 1000 after ``exited``, with TOO_SLOW if the viewer has taken nothing for
``stream_stall_seconds``, and with 1008 if the viewer sends more than MESSAGES_PER_SECOND. Each
viewer reads the log at its own pace: a slow viewer delays neither the program nor other viewers,
and a viewer that returns with the offset reached misses nothing.

``SocketViewer`` has the tasks and bounds of a viewer. At most MAX_INPUTS messages wait for the
program; then receiving stops, and TCP slows the viewer down.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from aiohttp.http import WSCloseCode, WSMsgType
from msgspec import Meta

from execd.api.v1 import execution_events, execution_reply
from execd.api.v1.execution_types import ExecutionReply
from execd.api.v1.executions import EXECUTION_ROUTE
from execd.api.wire.auth import TOKEN_SUBPROTOCOL
from execd.api.wire.body import lease_of
from execd.api.wire.fields import parse_json, parse_query
from execd.api.wire.keys import ENGINE
from execd.api.wire.route import RouteTable, Socket
from execd.api.wire.signal_names import signal_number
from execd.api.wire.socket_viewer import (
    MAX_MESSAGE_BYTES,
    TOO_SLOW,
    SocketViewer,
)
from execd.engine.in_flight import FREE_BYTES
from execd.engine.output.follow import Dropped, ExitedEvent, Heartbeat, Output, ProgramStarted

# msgspec reads the annotations at run time.
from execd.errors import Conflict, ErrorCode, ExecdError, NotFound, ResourceExhausted
from execd.model import TerminalColumns, TerminalRows  # noqa: TC001

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from aiohttp import WSMessage, web
    from multidict import MultiMapping

    from execd.api.wire.socket_viewer import Frame
    from execd.engine.executions.execution import Execution
    from execd.engine.executions.readers import Attachment

SUBPROTOCOL = "execd.v1"
MAX_STDERR_BYTES = 32 * 1024
"""stderr in the last message is cut to this size: in JSON six times as many bytes at worst."""
MAX_INPUTS = 16
VIEWER_BYTES = MAX_MESSAGE_BYTES
"""The least that a viewer counts as in flight: a message received in part, or as many bytes of
input that the program has not read. Both at once are twice as many. Input above this size is
counted."""

SignalWord = str | int
"""A name (`SIGINT`, `INT`, `RTMIN+3`), or a number from 1 to 64."""


class AttachQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    offset: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """The number of bytes of stdout that the viewer has."""


class Resize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="resize"):
    """The terminal has another size."""

    cols: TerminalColumns
    rows: TerminalRows


class SignalMessage(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="signal"
):
    """A signal for the program."""

    signal: SignalWord


class EndOfFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="eof"):
    """No more input follows: the standard input is closed."""


class StartedMessage(execution_events.StartedEvent, frozen=True, kw_only=True, tag="started"):
    """The program has started. The first message."""


class DroppedMessage(msgspec.Struct, frozen=True, kw_only=True, tag="dropped"):
    """Output that is not kept any more."""

    offset: int
    """The place of the first lost byte of stdout."""
    size_bytes: int
    """The number of lost bytes."""


class ErrorMessage(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """A message of the viewer could not be obeyed. Everything else goes on."""

    code: ErrorCode
    """Which rule was broken."""
    message: str
    """The reason in words."""


class ExitedMessage(ExecutionReply, frozen=True, kw_only=True, tag="exited"):
    """The execution has ended. The last message: without stdout, and with the ends of stderr."""


ROUTES = RouteTable()
Control = Resize | SignalMessage | EndOfFile
SOCKET = Socket(
    sends={
        "started": StartedMessage,
        "dropped": DroppedMessage,
        "error": ErrorMessage,
        "exited": ExitedMessage,
    },
    receives=(Resize, SignalMessage, EndOfFile),
    subprotocol=SUBPROTOCOL,
)
CONTROL: msgspec.json.Decoder[Control] = msgspec.json.Decoder(Control)


@ROUTES.add(
    "GET",
    f"{EXECUTION_ROUTE}/attach",
    query=AttachQuery,
    replies={101: ()},
    socket=SOCKET,
    errors=(NotFound, ResourceExhausted),
)
async def attach_terminal(request: web.Request) -> web.StreamResponse:
    """A WebSocket with a terminal, or with stdin and stdout."""
    engine = request.app[ENGINE]
    query = parse_query(request.query, AttachQuery)
    execution = engine.get(request.match_info["id"])
    socket = SocketViewer.offer(request, "attach", choose_protocols(request.headers))
    with execution.attach() as attachment:
        await execution.wait_started()
        await socket.prepare(request)
        await Viewer(request, socket, execution, attachment).serve(query.offset)
    return socket


def choose_protocols(headers: MultiMapping[str]) -> tuple[str, ...]:
    """Return the subprotocol to agree on. Browsers drop a connection whose server accepts none of
    the offered subprotocols, so a browser that offers only a token gets the token back."""
    offered = [
        protocol.strip()
        for value in headers.getall("Sec-WebSocket-Protocol", ())
        for protocol in value.split(",")
    ]
    if SUBPROTOCOL in offered:
        return (SUBPROTOCOL,)
    return tuple(protocol for protocol in offered if protocol.startswith(TOKEN_SUBPROTOCOL))


class Viewer(SocketViewer):
    """One WebSocket on one execution."""

    def __init__(
        self,
        request: web.Request,
        socket: web.WebSocketResponse,
        execution: Execution,
        attachment: Attachment,
    ) -> None:
        super().__init__(request, socket, self._note_close)
        self._lease = lease_of(request)
        self._attachment = attachment
        self._execution = execution
        self._inputs: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_INPUTS)
        self._input_bytes = 0
        """Bytes in the queue, and on the way from the queue to the program."""

    def _note_close(self, code: int) -> None:
        if code == TOO_SLOW:
            self._attachment.excuse()
        elif code == WSCloseCode.OK:
            self._attachment.delivered()

    # To the viewer.

    async def _frames(self, offset: int) -> AsyncGenerator[Frame | None, None]:
        """Yield stdout from ``offset`` on and the JSON messages. None stands for a heartbeat."""
        execution, config = self._execution, self._engine.config
        # By event, not by offset alone: events tell of new bytes and of holes in the log.
        async with aclosing(execution.view.follow_stream("stdout", offset)) as followed:
            async for event in followed:
                match event:
                    case ProgramStarted():
                        started = execution_events.started_event(execution, config)
                        yield _text(StartedMessage(**msgspec.structs.asdict(started)))
                    case Output():
                        yield event.data, WSMsgType.BINARY
                    case Dropped():
                        yield _text(
                            DroppedMessage(offset=event.offset, size_bytes=event.size_bytes)
                        )
                    case ExitedEvent():
                        body = await execution_reply.full_reply(
                            execution, config, "text", ("stderr",), MAX_STDERR_BYTES
                        )
                        yield _text(ExitedMessage(**msgspec.structs.asdict(body)))
                    case Heartbeat():
                        yield None

    # From the viewer.

    async def _obey(self, message: WSMessage) -> None:
        if message.type is WSMsgType.BINARY:
            await self._queue_input(message.data)
        elif message.type is WSMsgType.TEXT:
            await self._report_refusal(self._obey_control(message.data))

    async def _queue_input(self, data: bytes) -> None:
        """Queue input. If the budget for bytes in flight is taken by others, the viewer's messages
        pass one at a time: the viewer slows down, and nothing is lost."""
        try:
            self._count_input(len(data))
        except ResourceExhausted:
            await self._inputs.join()
            self._count_input(len(data))  # within VIEWER_BYTES now
        await self._inputs.put(data)

    def _count_input(self, change_bytes: int) -> None:
        self._lease.resize(FREE_BYTES + max(VIEWER_BYTES, self._input_bytes + change_bytes))
        self._input_bytes += change_bytes
        assert self._input_bytes >= 0

    async def _feed_input(self) -> None:
        while True:
            data = await self._inputs.get()
            await self._report_refusal(
                self._execution.end_stdin() if data is None else self._execution.write_stdin(data)
            )
            if data is not None:
                self._count_input(-len(data))
            self._inputs.task_done()

    async def _obey_control(self, text: str) -> None:
        """Obey a control message; return once the warden has the signal of the message.

        A viewer can send resizes faster than the warden takes signals. Without the wait, the
        queue to the warden grew by thousands a second, and no ping was answered in time.
        """
        match parse_control(text):
            case Resize() as size:
                self._execution.resize(size.cols, size.rows)
                await self._engine.signals_sent()
            case SignalMessage() as message:
                self._execution.signal(signal_number(message.signal))
                await self._engine.signals_sent()
            case EndOfFile():
                await self._inputs.put(None)

    async def _report_refusal(self, action: Any) -> None:
        """Run the action. Report a refusal to the viewer; the viewer goes on. A size, a key or a
        signal that meets the end of the program is no mistake: ``exited`` follows."""
        try:
            await action
        except ExecdError as error:
            if isinstance(error, Conflict) and self._execution.program_has_ended:
                return
            await self._send(*_text(ErrorMessage(code=error.code, message=error.message)))


def _text(message: msgspec.Struct) -> Frame:
    return msgspec.json.encode(message), WSMsgType.TEXT


def parse_control(text: str) -> Control:
    """Decode a control message. Raises InvalidArgument."""
    return parse_json(text.encode(), CONTROL, "message")
