"""Terminals over the WebSocket, with a real client. The client draws with a real terminal emulator
(pyte)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import aiohttp
import pyte
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from execd.api.v1.attach import (
    MAX_STDERR_BYTES,
    EndOfFile,
    Resize,
    SignalMessage,
    choose_protocols,
    parse_control,
)
from execd.api.wire.socket_viewer import (
    MAX_MESSAGE_BYTES,
    MESSAGES_PER_SECOND,
    TOO_SLOW,
    frame_size_bytes,
)
from execd.engine.executions.readers import Attachment
from execd.engine.output.log import StreamLog
from execd.errors import InvalidArgument
from tests.api.conftest import DEADLINE_SECONDS, Wire, wait_until
from tests.api.v1.test_executions import (
    SLEEP,
    URL,
    detached,
    ended,
    open_gate,
    ran,
    seq_output,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Serve = Callable[..., Awaitable[Wire]]
    Attach = Callable[..., Awaitable["Viewer"]]


class Viewer:
    """A terminal. ``screen`` holds the program's drawing. ``controls`` holds the JSON messages."""

    def __init__(
        self, socket: aiohttp.ClientWebSocketResponse, cols: int, rows: int, draws: bool
    ) -> None:
        self.socket = socket
        self.draws = draws
        """False: bytes only; the emulator takes a second for a megabyte."""
        self.screen = pyte.Screen(cols, rows)
        self.controls: list[dict[str, Any]] = []
        self.received = bytearray()
        self._stream = pyte.ByteStream(self.screen)
        self.reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for message in self.socket:
            if message.type is aiohttp.WSMsgType.BINARY:
                self.received += message.data
                if self.draws:
                    self._stream.feed(message.data)
            else:
                self.controls.append(json.loads(message.data))

    def __str__(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    async def type(self, keys: str | bytes) -> None:
        await self.socket.send_bytes(keys.encode() if isinstance(keys, str) else keys)

    async def control(self, **fields: Any) -> None:
        await self.socket.send_str(json.dumps(fields))

    async def shows(self, text: str) -> None:
        await wait_until(lambda: text in str(self), f"{text!r} on the screen:\n{self}")

    async def end(self) -> dict[str, Any]:
        """The last message: the execution."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            await self.reading
        assert self.controls[-1]["type"] == "exited"
        return self.controls[-1]


@pytest_asyncio.fixture(loop_scope="session")
async def attach() -> AsyncIterator[Attach]:
    """Connects a viewer to an execution; all are closed at the end."""
    viewers: list[Viewer] = []

    async def connect(
        wire: Wire,
        execution_id: str,
        query: str = "",
        *,
        cols: int = 80,
        rows: int = 24,
        draws: bool = True,
        **options: Any,
    ) -> Viewer:
        url = f"{URL}/{execution_id}/attach{query}"
        viewers.append(Viewer(await wire.client.ws_connect(url, **options), cols, rows, draws))
        return viewers[-1]

    yield connect
    for viewer in viewers:
        viewer.reading.cancel()
        await asyncio.gather(viewer.reading, return_exceptions=True)
        # without a close handshake: nobody reads the socket in some tests
        viewer.socket._response.close()


async def terminal(wire: Wire, *argv: str, cols: int = 80, rows: int = 24) -> str:
    env = {"TERM": "linux", "PYTHON_BASIC_REPL": "1", "PS1": "$ "}
    body = json.dumps(
        {"argv": argv, "pty": {"cols": cols, "rows": rows}, "env": env, "detach": True}
    ).encode()
    answer = await wire.request("POST", URL, body)
    assert answer.http_status == 202, answer.body
    return answer.json()["id"]


# --- programs in a terminal


# --- controls


async def test_signal_gets_through_while_the_program_reads_nothing(
    wire: Wire, attach: Attach
) -> None:
    execution_id = await detached(wire, f"echo ready; {SLEEP}", stdin_open=True)
    viewer = await attach(wire, execution_id)
    await viewer.shows("ready")
    for _ in range(4):
        await viewer.type(b"x" * 100_000)
    await viewer.control(type="signal", signal="TERM")
    assert (await viewer.end())["signal"] == "SIGTERM"


async def test_end_of_input_is_a_message_in_its_place(wire: Wire, attach: Attach) -> None:
    viewer = await attach(wire, await detached(wire, "cat", stdin_open=True))
    for word in ("one ", "two ", "three"):
        await viewer.type(word)
    await viewer.control(type="eof")
    await viewer.end()
    assert viewer.received == b"one two three"


async def test_started_and_exited_say_what_other_routes_say(wire: Wire, attach: Attach) -> None:
    body = await ran(wire, "echo out; echo err >&2; exit 3")
    viewer = await attach(wire, body["id"])
    assert await viewer.end() == {"type": "exited"} | {
        name: body[name] for name in body if name != "stdout"
    }
    assert body["stderr"] == "err\n"
    assert viewer.controls[0] == {"type": "started"} | {
        name: body[name] for name in ("id", "command", "cwd", "limits", "pid", "started_at")
    }
    assert viewer.received == b"out\n"


async def test_last_message_stays_small_whatever_was_written(wire: Wire, attach: Attach) -> None:
    program = "head -c 100000 /dev/zero; head -c 100000 /dev/zero >&2; echo last >&2"
    viewer = await attach(wire, await detached(wire, program), draws=False)
    body = await viewer.end()
    assert viewer.received == b"\0" * 100_000
    assert len(json.dumps(body)) < MAX_MESSAGE_BYTES
    assert body["stderr"].endswith("last\n")
    assert body["truncated"].keys() == {"stderr"}
    assert "stdout" not in body


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "INVALID_ARGUMENT"),
        ("{}", "INVALID_ARGUMENT"),
        ('{"type":"reset"}', "INVALID_ARGUMENT"),
        ('{"type":"resize","cols":-1,"rows":1}', "INVALID_ARGUMENT"),
        ('{"type":"signal","signal":"NOPE"}', "INVALID_ARGUMENT"),
        ('{"type":"resize","cols":80,"rows":24}', "CONFLICT"),
        (b"input", "CONFLICT"),
    ],
)
async def test_message_that_cannot_be_obeyed_is_answered_and_ends_nothing(
    wire: Wire, attach: Attach, message: str | bytes, code: str
) -> None:
    viewer = await attach(wire, await detached(wire, f"echo ready; {SLEEP}"))
    await viewer.shows("ready")
    await (viewer.type(message) if isinstance(message, bytes) else viewer.socket.send_str(message))
    await wait_until(lambda: viewer.controls[-1]["type"] == "error", "the answer is there")
    assert viewer.controls[-1]["code"] == code
    if message == "{":
        assert viewer.controls[-1]["message"].startswith("message: not JSON: ")
    await viewer.control(type="signal", signal="KILL")
    assert (await viewer.end())["signal"] == "SIGKILL"


async def test_message_that_meets_the_end_of_the_program_is_no_mistake(wire: Wire) -> None:
    """The output is larger than what the sockets hold, so execd still sends when the messages come.
    execd obeys messages in their order, so an answer to the first ones would come first."""
    execution_id = await terminal(wire, "head", "-c", "32000000", "/dev/zero")
    await ended(wire, execution_id)
    async with wire.client.ws_connect(f"{URL}/{execution_id}/attach") as socket:
        await socket.send_str('{"type":"resize","cols":100,"rows":30}')
        await socket.send_str('{"type":"signal","signal":"INT"}')
        await socket.send_bytes(b"a key")
        await socket.send_str('{"type":"eof"}')
        await socket.send_str('{"type":"no such message"}')
        controls = [
            json.loads(message.data)
            async for message in socket
            if message.type is aiohttp.WSMsgType.TEXT
        ]
    assert [item["type"] for item in controls] == ["started", "error", "exited"]
    assert controls[1]["code"] == "INVALID_ARGUMENT"


# --- viewers


async def test_viewers_see_the_same_and_may_come_late(wire: Wire, attach: Attach) -> None:
    os.mkfifo(wire.base_dir / "gate")
    execution_id = await detached(wire, "seq 1000; cat gate; seq 1000 2000", pty={})
    early = [await attach(wire, execution_id) for _ in range(3)]
    await early[0].shows("1000")
    late = await attach(wire, execution_id)
    await open_gate(wire)
    for viewer in (*early, late):
        await viewer.end()
    whole = (await wire.request("GET", f"{URL}/{execution_id}/stdout")).body
    assert [viewer.received for viewer in (*early, late)] == [whole] * 4


@pytest.mark.parametrize("offset", [0, 1, 4095, 48_893, 48_894])
async def test_viewer_that_comes_back_misses_nothing_and_sees_nothing_twice(
    wire: Wire, attach: Attach, offset: int
) -> None:
    whole = seq_output(10_000).encode()
    assert len(whole) == 48_894
    execution_id = (await ran(wire, "seq 10000"))["id"]
    viewer = await attach(wire, execution_id, f"?offset={offset}", draws=False)
    await viewer.end()
    assert viewer.received == whole[offset:]


async def test_viewer_that_comes_back_costs_no_reading_of_what_it_has(
    wire: Wire, attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution_id = (await ran(wire, "seq 400000; seq 400000 >&2"))["id"]
    size_bytes = len(seq_output(400_000))
    assert size_bytes > 2 << 20
    read_bytes = {"stdout": 0, "stderr": 0}
    [execution] = [one for one in wire.engine._registry if one.id == execution_id]
    names = {id(log): str(stream) for stream, log in execution.output.streams.items()}
    read = StreamLog.read

    async def count(log: StreamLog, offset: int, end: int) -> bytes | None:
        data = await read(log, offset, end)
        read_bytes[names[id(log)]] += len(data or b"")
        return data

    monkeypatch.setattr(StreamLog, "read", count)
    viewer = await attach(wire, execution_id, f"?offset={size_bytes - 10}", draws=False)
    await viewer.end()
    assert viewer.received == seq_output(400_000).encode()[-10:]
    assert read_bytes["stdout"] == 10
    assert read_bytes["stderr"] <= MAX_STDERR_BYTES  # for ``exited``


async def test_last_viewer_that_leaves_ends_a_command_that_is_not_detached(
    wire: Wire, attach: Attach
) -> None:
    post = await wire.connect()
    body = json.dumps({"command": f"echo ready; {SLEEP}"}).encode()
    await post.send(
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
        % (URL.encode(), len(body), body)
    )
    await wait_until(wire.live, "it runs")
    (execution,) = wire.live()
    viewer = await attach(wire, execution.id)
    await viewer.shows("ready")
    await post.close()
    await wait_until(
        lambda: execution.readers.count == 1, "the caller has left, and the viewer has not"
    )
    assert execution.state == "RUNNING"
    await viewer.socket.close()
    assert (await ended(wire, execution.id))["exit_reason"] == "client_disconnected"


async def test_slow_viewer_is_sent_away_by_name_and_holds_up_nobody(
    serve: Serve, attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The slow viewer answers no closing handshake.
    monkeypatch.setattr("execd.api.wire.socket_viewer.CLOSE_SECONDS", 0.5)
    wire = await serve(stream_stall_seconds=0.5, is_narrow=True)
    os.mkfifo(wire.base_dir / "gate")
    execution_id = await detached(wire, "cat gate; seq 100000; cat gate", pty={})
    execution = wire.engine.get(execution_id)
    slow = await attach(wire, execution_id, draws=False)
    other = await attach(wire, execution_id, draws=False)
    transport = slow.socket._response.connection.transport
    transport.pause_reading()
    await open_gate(wire)
    await wait_until(
        lambda: other.received.endswith(b"100000\r\n"), "the other has seen everything"
    )
    await wait_until(lambda: execution.readers.count == 1, "the slow one is gone")
    transport.resume_reading()
    async with asyncio.timeout(DEADLINE_SECONDS):
        await asyncio.wait((slow.reading,))
    assert slow.socket.close_code in (TOO_SLOW, 1006)
    again = await attach(wire, execution_id, f"?offset={len(slow.received)}", draws=False)
    await open_gate(wire, "through")
    await again.end()
    await other.end()
    assert slow.received + again.received == other.received


async def test_slow_viewer_that_wakes_up_is_told_why(
    serve: Serve, attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up = asyncio.Event()
    monkeypatch.setattr(Attachment, "excuse", lambda _attachment: given_up.set())
    wire = await serve(stream_stall_seconds=0.2, is_narrow=True)
    os.mkfifo(wire.base_dir / "gate")
    execution_id = await detached(wire, f"cat gate; seq 100000; {SLEEP}")
    viewer = await attach(wire, execution_id, draws=False)
    transport = viewer.socket._response.connection.transport
    transport.pause_reading()
    await open_gate(wire)
    await wait_until(given_up.is_set, "the viewer is given up")
    # The server keeps the connection for a while after giving up the viewer. The viewer first gets
    # the bytes not read yet, and then the reason.
    transport.resume_reading()
    async with asyncio.timeout(DEADLINE_SECONDS):
        await asyncio.wait((viewer.reading,))
    assert viewer.socket.close_code == TOO_SLOW


async def test_silent_viewer_is_kept(serve: Serve, attach: Attach) -> None:
    wire = await serve(stream_stall_seconds=0.1, stream_heartbeat_seconds=0.05)
    os.mkfifo(wire.base_dir / "gate")
    execution_id = await detached(wire, "echo ready; cat gate")
    viewer = await attach(wire, execution_id, autoping=True)
    await viewer.shows("ready")
    loop = asyncio.get_running_loop()
    until = loop.time() + 0.5
    await wait_until(
        lambda: loop.time() > until or viewer.reading.done(), "several stall times have passed"
    )
    await open_gate(wire, "through")
    await viewer.end()
    assert viewer.received == b"ready\nthrough"


async def test_daemon_that_goes_down_tells_its_viewers(own_wire: Wire, attach: Attach) -> None:
    viewer = await attach(own_wire, await detached(own_wire, f"echo ready; {SLEEP}"))
    await viewer.shows("ready")
    await own_wire.engine.drain()
    assert (await viewer.end())["exit_reason"] == "shutdown"


# --- the handshake


async def test_plain_request_is_refused(wire: Wire) -> None:
    target = f"{URL}/{await detached(wire, SLEEP)}/attach"
    answer = await wire.request("GET", target)
    assert (answer.http_status, answer.json()["code"]) == (400, "INVALID_ARGUMENT")
    head = await wire.request("HEAD", target)
    assert (head.http_status, head.headers["Content-Length"]) == (400, str(len(answer.body)))
    handshake = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    assert (await wire.exchange("HEAD", target, headers=handshake)).http_status == 400
    assert (await wire.request("HEAD", f"{URL}/nobody/attach")).http_status == 404


@pytest.mark.parametrize(
    "protocols", [("execd.v1", "execd.bearer.secret"), ("execd.bearer.secret",)]
)
async def test_browser_authenticates_with_a_subprotocol(
    serve: Serve, attach: Attach, protocols: tuple[str, ...]
) -> None:
    wire = await serve(token_sha256=hashlib.sha256(b"secret").hexdigest())
    token = {"Authorization": "Bearer secret", "Content-Type": "application/json"}
    execution_id = (
        await wire.request("POST", URL, b'{"command":"echo hi","detach":true}', token)
    ).json()["id"]
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await attach(wire, execution_id, protocols=("execd.v1", "execd.bearer.guess"))
    assert caught.value.status == 401
    viewer = await attach(wire, execution_id, protocols=protocols)
    assert viewer.socket.protocol == protocols[0]
    await viewer.end()


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (["execd.bearer.x, execd.v1"], ("execd.v1",)),
        (["execd.bearer.x", "execd.v1"], ("execd.v1",)),
        (["execd.bearer.x"], ("execd.bearer.x",)),
        (["chat"], ()),
        ([], ()),
    ],
)
def test_token_is_given_back_only_if_nothing_else_was_offered(
    offered: list[str], chosen: tuple[str, ...]
) -> None:
    assert (
        choose_protocols(CIMultiDict([("Sec-WebSocket-Protocol", value) for value in offered]))
        == chosen
    )


# --- pure parts


def test_controls_are_told_by_their_type() -> None:
    assert parse_control('{"type":"resize","cols":1,"rows":2}') == Resize(cols=1, rows=2)
    assert parse_control('{"type":"signal","signal":"INT"}') == SignalMessage(signal="INT")
    assert parse_control('{"type":"eof"}') == EndOfFile()


@given(st.text(max_size=40))
def test_any_text_is_a_control_or_refused(text: str) -> None:
    try:
        parse_control(text)
    except InvalidArgument:
        return  # the only allowed error


@pytest.mark.parametrize(
    ("payload", "frame"), [(0, 2), (125, 127), (126, 130), (65_535, 65_539), (65_536, 65_546)]
)
def test_frame_is_a_little_larger_than_its_payload(payload: int, frame: int) -> None:
    assert frame_size_bytes(payload) == frame


async def test_a_viewer_that_sends_without_end_is_sent_away(
    wire: Wire, attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pings and messages count alike. aiohttp would handle everything received in a turn of the
    loop."""
    assert (MESSAGES_PER_SECOND, aiohttp.WSCloseCode.POLICY_VIOLATION) == (10_000, 1008)
    # The client of this test would take longer than a second for the real number.
    monkeypatch.setattr("execd.api.wire.socket_viewer.MESSAGES_PER_SECOND", 100)
    for send in ("ping", "send_str"):
        viewer = await attach(wire, await terminal(wire, "sleep", "60"), autoping=False)
        viewer.reading.cancel()
        await asyncio.gather(viewer.reading, return_exceptions=True)
        with contextlib.suppress(ConnectionError):
            for _ in range(5_000):
                await getattr(viewer.socket, send)(*["{}"] * (send == "send_str"))
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not viewer.socket.closed:
                await viewer.socket.receive()
        assert viewer.socket.close_code == aiohttp.WSCloseCode.POLICY_VIOLATION


async def test_a_ping_is_answered(wire: Wire, attach: Attach) -> None:
    viewer = await attach(wire, await terminal(wire, "sleep", "60"), autoping=False)
    viewer.reading.cancel()
    await asyncio.gather(viewer.reading, return_exceptions=True)
    await viewer.socket.ping(b"there?")
    async with asyncio.timeout(DEADLINE_SECONDS):
        while (message := await viewer.socket.receive()).type is not aiohttp.WSMsgType.PONG:
            pass
    assert bytes(message.data) == b"there?"
