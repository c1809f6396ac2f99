"""A terminal over the WebSocket, drawn by a real emulator (pyte): resize, Ctrl-C, UTF-8, coming back."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pyte
import pytest

from .target import SLACK_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from .target import Target

DEADLINE_SECONDS = 20.0
LOOP = "print('lo' + 'op'); [None for _ in iter(int, 1)]\r"
SIZE = "import os; print(*os.get_terminal_size())\r"


class Viewer:
    """``screen`` is what a person would see."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.screen = pyte.Screen(80, 24)
        self.last: dict[str, Any] = {}
        self._stream = pyte.ByteStream(self.screen)

    async def until(self, holds: Callable[[str], object]) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS + SLACK_SECONDS):
            while not holds("\n".join(line.rstrip() for line in self.screen.display)):
                message = await self.socket.receive()
                if message.type is aiohttp.WSMsgType.BINARY:
                    self._stream.feed(message.data)
                elif message.type is aiohttp.WSMsgType.TEXT:
                    self.last = json.loads(message.data)
                else:
                    return

    async def type(self, keys: str) -> None:
        await self.socket.send_bytes(keys.encode())


@pytest.fixture
def python(client: httpx.Client) -> str:
    body = {
        "argv": ["python3", "-q"],
        "pty": {"cols": 80, "rows": 24},
        "env": {"TERM": "linux", "PYTHON_BASIC_REPL": "1"},
        "detach": True,
    }
    answer = client.post("/v1/executions", json=body)
    assert answer.status_code == 202, answer.text
    return f"/v1/executions/{answer.json()['id']}"


async def test_python_in_a_terminal_is_resized_interrupted_and_spoken_to_in_utf8(target: Target, python: str) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{target.url}{python}/attach") as socket:
            viewer = Viewer(socket)
            await viewer.until(lambda screen: ">>>" in screen)
            # What is looked for is never in what was typed: where it stands depends on when the prompt was drawn again.
            await viewer.type("print('caf\u00e9 \u20ac', len('\u20ac'))\r")
            await viewer.until(lambda screen: "caf\u00e9 \u20ac 1" in screen)
            await socket.send_str(json.dumps({"type": "resize", "cols": 100, "rows": 30}))
            viewer.screen.resize(30, 100)
            await viewer.type(SIZE)
            await viewer.until(lambda screen: "100 30" in screen)
            await viewer.type(LOOP)
            await viewer.until(lambda screen: "loop" in screen)
            await viewer.type("\x03")
            await viewer.until(lambda screen: "KeyboardInterrupt" in screen)
        async with session.ws_connect(f"{target.url}{python}/attach?offset=0") as socket:  # it has lived on, and shows all again
            viewer = Viewer(socket)
            viewer.screen.resize(30, 100)
            await viewer.until(lambda screen: "caf\u00e9 \u20ac 1" in screen and screen.rstrip().endswith(">>>"))
            await viewer.type("exit(3)\r")
            await viewer.until(lambda _: viewer.last.get("type") == "exited")
            assert (viewer.last["exit_code"], viewer.last["exit_reason"]) == (3, "exited")
