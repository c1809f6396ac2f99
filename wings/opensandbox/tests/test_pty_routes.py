"""Terminals over the WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from execd.model import ExitReason
from tests.api.conftest import DEADLINE_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from wings.opensandbox.tests.conftest import OpenSandbox


class Viewer:
    """``output``: everything shown, by offset. ``controls``: the text messages."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.replayed = b""
        self.replay_offset: int | None = None
        self.output = b""
        self.errors = b""
        self.controls: list[dict[str, Any]] = []

    async def type(self, text: str) -> None:
        await self.socket.send_bytes(b"\x00" + text.encode())

    async def send(self, **fields: Any) -> None:
        await self.socket.send_str(json.dumps(fields))

    async def read(self) -> bool:
        """Read a message. False: the socket has closed."""
        async with asyncio.timeout(DEADLINE_SECONDS):  # pings count for receive's own timeout
            message = await self.socket.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            kind, data = message.data[:1], message.data[1:]
            if kind == b"\x03":
                if self.replay_offset is None:
                    self.replay_offset = int.from_bytes(data[:8], "big")
                self.replayed += data[8:]
            elif kind == b"\x01":
                self.output += data
            else:
                assert kind == b"\x02"
                self.errors += data
        elif message.type is aiohttp.WSMsgType.TEXT:
            self.controls.append(json.loads(message.data))
        else:
            return False
        return True

    async def until(self, text: bytes) -> None:
        while text not in self.replayed + self.output:
            assert await self.read(), (self.output, self.controls)

    async def control(self, kind: str) -> dict[str, Any]:
        while True:
            for control in self.controls:
                if control["type"] == kind:
                    self.controls.remove(control)
                    return control
            assert await self.read(), self.controls

    async def to_the_end(self) -> None:
        while await self.read():
            pass


async def make(opensandbox: OpenSandbox, **fields: Any) -> str:
    return str((await opensandbox.post("/pty", fields))["session_id"])


@contextlib.asynccontextmanager
async def viewing(opensandbox: OpenSandbox, name: str, query: str = "") -> AsyncIterator[Viewer]:
    async with opensandbox.client.ws_connect(f"/pty/{name}/ws{query}") as socket:
        yield Viewer(socket)


async def test_shell_runs_in_a_terminal_and_its_end_closes_the_socket(
    opensandbox: OpenSandbox,
) -> None:
    name = await make(opensandbox, cwd="/tmp")
    async with viewing(opensandbox, name) as viewer:
        assert await viewer.control("connected") == {
            "type": "connected", "session_id": name, "mode": "pty",
        }  # fmt: skip
        await viewer.send(type="resize", cols=101, rows=31)
        await viewer.type("tty -s && echo is-$((40+2)) $PWD $TERM; stty size\n")
        await viewer.until(b"is-42 /tmp xterm-256color")
        await viewer.until(b"31 101")
        await viewer.send(type="stdin", data="exit 3\n")
        assert (await viewer.control("exit"))["exit_code"] == 3
        await viewer.to_the_end()
        assert viewer.socket.close_code == 1000
    assert (await opensandbox.get(f"/pty/{name}"))["running"] is False


async def test_command_of_a_terminal(opensandbox: OpenSandbox) -> None:
    name = await make(opensandbox, command="echo one; exit 4")
    async with viewing(opensandbox, name) as viewer:
        await viewer.until(b"one\r\n")
        assert (await viewer.control("exit"))["exit_code"] == 4


async def test_shell_starts_with_the_first_viewer_and_outlives_the_viewer(
    opensandbox: OpenSandbox,
) -> None:
    name = await make(opensandbox)
    assert await opensandbox.get(f"/pty/{name}") == {
        "session_id": name, "running": False, "output_offset": 0,
    }  # fmt: skip
    async with viewing(opensandbox, name) as viewer:
        await viewer.type("A=1; echo on-$A\n")
        await viewer.until(b"on-1")
    terminal = opensandbox.engine.terminals.get(name)
    await wait_until(lambda: terminal.viewer is None, "the viewer has left")
    state = await opensandbox.get(f"/pty/{name}")
    assert state["running"] is True
    assert state["output_offset"] >= len(b"on-1")
    async with viewing(opensandbox, name) as again:
        await again.control("connected")
        assert again.replay_offset == 0
        assert b"on-1" in again.replayed
        await again.type("echo back-$A\n")
        await again.until(b"back-1")


async def test_viewer_gets_what_it_has_not_seen(opensandbox: OpenSandbox) -> None:
    name = await make(opensandbox, command="printf 0123456789; read line")
    async with viewing(opensandbox, name) as viewer:
        await viewer.until(b"0123456789")
    terminal = opensandbox.engine.terminals.get(name)
    await wait_until(lambda: terminal.viewer is None, "the viewer has left")
    async with viewing(opensandbox, name, "?since=4") as again:
        await again.control("connected")
        assert (again.replay_offset, again.replayed) == (4, b"456789")
    await wait_until(lambda: terminal.viewer is None, "the viewer has left")
    async with viewing(opensandbox, name, "?since=10") as last:
        await last.control("connected")
        assert last.replayed == b""
    assert (await opensandbox.refused("GET", f"/pty/{name}/ws?since=x"))[0] == 400


async def test_second_viewer_is_refused_or_takes_over(opensandbox: OpenSandbox) -> None:
    name = await make(opensandbox)
    async with viewing(opensandbox, name) as first:
        await first.control("connected")
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with viewing(opensandbox, name):
                pass
        assert refused.value.status == 409
        async with viewing(opensandbox, name, "?takeover=1") as second:
            await second.control("connected")
            await first.to_the_end()
            assert first.socket.close_code == 4001
            await second.type("echo still-$((1+1))\n")
            await second.until(b"still-2")


async def test_interrupt_goes_to_the_program_in_the_foreground(opensandbox: OpenSandbox) -> None:
    name = await make(opensandbox)
    async with viewing(opensandbox, name) as viewer:
        await viewer.type("""sh -c 'trap "exit 7" INT; echo rea''dy; read x'; echo ended-$?\n""")
        await viewer.until(b"ready")
        await viewer.send(type="signal", signal="SIGINT")
        await viewer.until(b"ended-7")


async def test_signal_ends_the_shell(opensandbox: OpenSandbox) -> None:
    name = await make(opensandbox)
    async with viewing(opensandbox, name) as viewer:
        await viewer.control("connected")
        await viewer.send(type="signal", signal="SIGKILL")
        assert (await viewer.control("exit"))["exit_code"] == -1  # as of a command


async def test_pipes_keep_the_streams_apart(opensandbox: OpenSandbox) -> None:
    name = await make(opensandbox)
    async with viewing(opensandbox, name, "?pty=0") as viewer:
        assert (await viewer.control("connected"))["mode"] == "pipe"
        await viewer.type("echo out; echo err >&2; exit 5\n")
        assert (await viewer.control("exit"))["exit_code"] == 5
        assert (viewer.output, viewer.errors) == (b"out\n", b"err\n")


async def test_bad_messages_are_answered_and_the_connection_stays(
    opensandbox: OpenSandbox,
) -> None:
    name = await make(opensandbox)
    async with viewing(opensandbox, name) as viewer:
        for send in (
            viewer.send(type="nope"),
            viewer.socket.send_str("x"),
            viewer.socket.send_bytes(b"\x07x"),
            viewer.send(type="signal", signal="SIGSEGV"),
        ):
            await send
            assert (await viewer.control("error"))["code"] == "INVALID_FRAME"
        await viewer.send(type="ping")
        await viewer.control("pong")


async def test_viewer_may_send_as_many_messages_as_are_allowed_in_a_second(
    opensandbox: OpenSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("execd.api.wire.socket_viewer.MESSAGES_PER_SECOND", 100)
    async with viewing(opensandbox, await make(opensandbox)) as viewer:
        for _ in range(100):
            await viewer.send(type="ping")
        for _ in range(100):
            await viewer.control("pong")


async def test_viewer_that_sends_without_end_is_sent_away(
    opensandbox: OpenSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The client of this test would take longer than a second for the real number.
    monkeypatch.setattr("execd.api.wire.socket_viewer.MESSAGES_PER_SECOND", 100)
    async with viewing(opensandbox, await make(opensandbox)) as viewer:
        with contextlib.suppress(ConnectionError):
            for _ in range(5_000):
                await viewer.send(type="ping")
        await viewer.to_the_end()
        assert viewer.socket.close_code == aiohttp.WSCloseCode.POLICY_VIOLATION


async def test_deletion_ends_the_shell_for_its_viewer(opensandbox: OpenSandbox) -> None:
    name = await make(opensandbox)
    async with viewing(opensandbox, name) as viewer:
        await viewer.control("connected")
        [execution] = opensandbox.live()
        deleting = asyncio.ensure_future(opensandbox.request("DELETE", f"/pty/{name}"))
        await viewer.control("exit")
        assert (await deleting).http_status == 200
    assert (await execution.wait()).exit_reason is ExitReason.CANCELED
    refusal = await opensandbox.refused("GET", f"/pty/{name}")
    assert refusal[:2] == (404, "CONTEXT_NOT_FOUND")


async def test_request_without_a_handshake_is_400_and_starts_nothing(
    opensandbox: OpenSandbox,
) -> None:
    name = await make(opensandbox)
    assert (await opensandbox.refused("GET", f"/pty/{name}/ws"))[0] == 400
    assert opensandbox.live() == []


async def test_of_two_viewers_at_the_same_time_one_is_refused(opensandbox: OpenSandbox) -> None:
    name = await make(opensandbox)

    async def look() -> int:
        try:
            async with viewing(opensandbox, name) as viewer:
                await viewer.control("connected")
                looking.set()
                await both.wait()
                return 101
        except aiohttp.WSServerHandshakeError as error:
            await looking.wait()
            both.set()
            return error.status

    looking, both = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert sorted(await asyncio.gather(look(), look())) == [101, 409]
