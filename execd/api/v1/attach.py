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

Three tasks serve a viewer. ``_send_log`` sends. ``_receive`` receives. ``_feed_input`` gives the
program its input; a task of its own, so that a signal gets through while the program reads nothing.
At most MAX_INPUTS messages wait for ``_feed_input``; then receiving stops, and TCP slows the viewer
down.

The lock ``_sending`` is held during each send. The code that ends a viewer takes the lock before it
cancels the tasks, so no send is cancelled in the middle: ``streams`` explains the reason.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from aiohttp import web
from aiohttp.http import WSCloseCode, WSMsgType
from msgspec import Meta

from execd.api.v1 import execution_events, execution_reply
from execd.api.v1.execution_types import ExecutionReply
from execd.api.wire.auth import TOKEN_SUBPROTOCOL
from execd.api.wire.body import lease_of
from execd.api.wire.fields import parse_json, parse_query
from execd.api.wire.keys import ENGINE
from execd.api.wire.route import Socket
from execd.api.wire.signal_names import signal_number
from execd.api.wire.streams import StallDetector, Turn, cancel_and_wait
from execd.engine.in_flight import FREE_BYTES
from execd.engine.output.follow import Dropped, ExitedEvent, Heartbeat, Output, ProgramStarted

# msgspec reads the annotations at run time.
from execd.errors import Conflict, ErrorCode, ExecdError, InvalidArgument, ResourceExhausted
from execd.model import TerminalColumns, TerminalRows  # noqa: TC001

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from multidict import MultiMapping

    from execd.config import Config
    from execd.engine.executions.execution import Execution
    from execd.engine.executions.readers import Attachment
    from execd.engine.in_flight import Lease

TOO_SLOW = 4008
"""Close code, from the range for applications (RFC 6455 §7.4.2). Modelled on HTTP's 408; other
servers use the same code."""
SUBPROTOCOL = "execd.v1"
MAX_MESSAGE_BYTES = 256 * 1024
"""Size of a message to execd. Messages to the viewer are pieces of the log, and stderr cut to
MAX_STDERR_BYTES (in JSON six times as many at worst)."""
MAX_STDERR_BYTES = 32 * 1024
MAX_INPUTS = 16
VIEWER_BYTES = MAX_MESSAGE_BYTES
"""The least that a viewer counts as in flight: a message received in part, or as many bytes of
input that the program has not read. Both at once are twice as many. Input above this size is
counted."""
CLOSE_SECONDS = 5.0
"""Seconds for the closing handshake."""

MESSAGES_PER_TURN = 32
MESSAGES_PER_SECOND = 10_000
"""Messages of a viewer of a terminal, in a second. With more the WebSocket closes with 1008.

A paste is one message; the fastest keyboard makes some hundred messages a second."""

SIGNAL_RULE = "A name (`SIGINT`, `INT`, `RTMIN+3`), or a number from 1 to 64."


class AttachQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    offset: Annotated[
        int,
        Meta(ge=0, le=2**63 - 1, description="The number of bytes of stdout that the viewer has."),
    ] = 0


class Resize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="resize"):
    """The terminal has another size."""

    cols: TerminalColumns
    rows: TerminalRows


class SignalMessage(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="signal"
):
    """A signal for the program."""

    signal: Annotated[str | int, Meta(description=SIGNAL_RULE)]


class EndOfFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="eof"):
    """No more input follows: the standard input is closed."""


class StartedMessage(execution_events.StartedEvent, frozen=True, kw_only=True, tag="started"):
    """The program has started. The first message."""


class DroppedMessage(msgspec.Struct, frozen=True, kw_only=True, tag="dropped"):
    """Output that is not kept any more."""

    offset: Annotated[int, Meta(description="The place of the first lost byte of stdout.")]
    size_bytes: Annotated[int, Meta(description="The number of lost bytes.")]


class ErrorMessage(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """A message of the viewer could not be obeyed. Everything else goes on."""

    code: Annotated[ErrorCode, Meta(description="Which rule was broken.")]
    message: Annotated[str, Meta(description="The reason in words.")]


class ExitedMessage(ExecutionReply, frozen=True, kw_only=True, tag="exited"):
    """The execution has ended. The last message: without stdout, and with the ends of stderr."""


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


async def attach(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    query = parse_query(request.query, AttachQuery)
    execution = engine.get(request.match_info["id"])
    socket = web.WebSocketResponse(
        timeout=CLOSE_SECONDS,
        autoping=False,  # aiohttp answers a flood of pings in one turn of the loop
        compress=False,
        max_msg_size=MAX_MESSAGE_BYTES,
        protocols=choose_protocols(request.headers),
    )
    # RFC 6455 §4.1: the handshake is a GET. HEAD gets the answer of a GET without a handshake.
    if request.method != "GET" or not socket.can_prepare(request):
        raise InvalidArgument("attach: a WebSocket is needed (Upgrade: websocket)")
    lease = lease_of(request)
    lease.resize(FREE_BYTES + VIEWER_BYTES)
    with execution.attach() as attachment:
        await execution.wait_started()
        await socket.prepare(request)
        await Viewer(request, socket, execution, attachment, lease, engine.config).serve(
            query.offset
        )
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


class Viewer:
    """One WebSocket on one execution."""

    def __init__(
        self,
        request: web.Request,
        socket: web.WebSocketResponse,
        execution: Execution,
        attachment: Attachment,
        lease: Lease,
        config: Config,
    ) -> None:
        self._request = request
        self._engine = request.app[ENGINE]
        self._lease = lease
        self._attachment = attachment
        self._socket = socket
        self._execution = execution
        self._config = config
        self._sent_bytes = 0
        self._turn = Turn()
        self._sending = asyncio.Lock()
        self._inputs: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_INPUTS)
        self._input_bytes = 0
        """Bytes in the queue, and on the way from the queue to the program."""

    async def serve(self, offset: int) -> None:
        """Serve until the execution has ended, the viewer has left, or execd has closed the
        socket."""
        transport = self._request.transport
        if transport is None:
            return
        stalled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        detector = StallDetector(
            transport,
            self._config.stream_stall_seconds,
            lambda: self._sent_bytes,
            lambda: stalled.set_result(None),
        )
        send = asyncio.ensure_future(self._send_log(offset))
        receive = asyncio.ensure_future(self._receive())
        feed = asyncio.ensure_future(self._feed_input())
        try:
            await asyncio.wait((send, receive, stalled), return_when=asyncio.FIRST_COMPLETED)
            if stalled.done():
                self._attachment.excuse()
                # Without ``_sending``: the holder of the lock waits for the viewer.
                await self._close(TOO_SLOW, b"too slow")
            elif send.done():
                async with self._sending:
                    await cancel_and_wait(receive, feed)
                send.result()
                self._attachment.delivered()
                await self._close(WSCloseCode.OK, b"")
        finally:
            detector.stop()
            await cancel_and_wait(send, receive, feed)
            # aiohttp counts the handshake only.
            self._request.app[ENGINE].counters.sent_bytes += self._sent_bytes

    async def _close(self, code: int, reason: bytes) -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._socket.close(code=code, message=reason)
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()

    # To the viewer.

    async def _send_log(self, offset: int) -> None:
        """Send the log and the messages around it. Returns when all are sent."""
        async with aclosing(self._log_messages(offset)) as messages:
            async for message in messages:
                if message is None:
                    async with self._sending:
                        self._sent_bytes += frame_size_bytes(0)
                        await self._socket.ping()
                else:
                    await self._send(message)

    async def _log_messages(
        self, offset: int
    ) -> AsyncGenerator[bytes | msgspec.Struct | None, None]:
        """Yield stdout from ``offset`` on and the JSON messages. None stands for a heartbeat."""
        execution, config = self._execution, self._config
        # By event, not by offset alone: events tell of new bytes and of holes in the log.
        async with aclosing(execution.view.follow_stream("stdout", offset)) as followed:
            async for event in followed:
                match event:
                    case ProgramStarted():
                        started = execution_events.started_event(execution, config)
                        yield StartedMessage(**msgspec.structs.asdict(started))
                    case Output():
                        yield event.data
                    case Dropped():
                        yield DroppedMessage(offset=event.offset, size_bytes=event.size_bytes)
                    case ExitedEvent():
                        body = await execution_reply.full_reply(
                            execution, config, "text", ("stderr",), MAX_STDERR_BYTES
                        )
                        yield ExitedMessage(**msgspec.structs.asdict(body))
                    case Heartbeat():
                        yield None

    async def _send(self, message: bytes | msgspec.Struct) -> None:
        is_output = isinstance(message, bytes)
        data = message if isinstance(message, bytes) else msgspec.json.encode(message)
        async with self._sending:
            self._sent_bytes += frame_size_bytes(len(data))
            await self._socket.send_frame(data, WSMsgType.BINARY if is_output else WSMsgType.TEXT)
        await self._turn.count_sent(len(data))

    # From the viewer.

    async def _receive(self) -> None:
        """Obey messages. Returns when the viewer has left or was closed for sending too many
        messages.

        aiohttp returns received messages without a turn of the event loop, and 256 KiB hold 40,000
        small messages. So other tasks run after each MESSAGES_PER_TURN messages, and a viewer above
        MESSAGES_PER_SECOND is closed.
        """
        loop = asyncio.get_running_loop()
        since, n_messages = loop.time(), 0
        async for message in self._socket:
            n_messages += 1
            if n_messages % MESSAGES_PER_TURN == 0:
                await asyncio.sleep(0)
            if n_messages > MESSAGES_PER_SECOND:
                if loop.time() - since < 1.0:
                    reason = f"over {MESSAGES_PER_SECOND} messages a second"
                    await self._close(WSCloseCode.POLICY_VIOLATION, reason.encode())
                    return
                since, n_messages = loop.time(), 0
            if message.type is WSMsgType.PING:
                await self._socket.pong(message.data)
            elif message.type is WSMsgType.BINARY:
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
            await self._send(ErrorMessage(code=error.code, message=error.message))


def parse_control(text: str) -> Control:
    """Decode a control message. Raises InvalidArgument."""
    return parse_json(text.encode(), CONTROL, "message")


def frame_size_bytes(size_bytes: int) -> int:
    """Return the size of an unmasked frame with a payload of ``size_bytes``: RFC 6455 §5.2."""
    return size_bytes + (2 if size_bytes < 126 else 4 if size_bytes < 65536 else 10)
