"""The dialect of E2B on the engine that the tests of the api share, and calls as the SDKs send
them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest_asyncio

from execd_e2b.settings import Settings
from execd_e2b.table import make_service
from tests.api.conftest import DEADLINE_SECONDS, JSON, Answer, Wire, share_loop
from tests.api.conftest import guarded_loop as guarded_loop
from tests.api.conftest import one_loop as one_loop
from tests.api.conftest import serve as serve
from tests.api.conftest import shared_engine as shared_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import pytest
    from aiohttp import ClientResponse

E2B = make_service(Settings(), is_code_port=False)
STREAM = {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"}

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    share_loop(items, FOLDER)


def shell(line: str, **fields: Any) -> dict[str, Any]:
    """The request of Start for ``commands.run(line)`` of the SDKs, without the login shell, which
    reads files of this machine."""
    return {"process": {"cmd": "/bin/sh", "args": ["-c", line]}, "stdin": False, **fields}


def packed(*messages: Any) -> bytes:
    bodies = [json.dumps(message).encode() for message in messages]
    return b"".join(struct.pack(">BI", 0, len(body)) + body for body in bodies)


def unpacked(body: bytes) -> list[Any]:
    """The messages of a whole stream. The last is the end of the stream."""
    found, at = [], 0
    while at < len(body):
        flags, size = struct.unpack_from(">BI", body, at)
        assert flags == (2 if at + 5 + size == len(body) else 0)
        found.append(json.loads(body[at + 5 : at + 5 + size]))
        at += 5 + size
    return found


def output_of(messages: list[Any], kind: str = "stdout") -> str:
    events = [message.get("event", {}).get("data", {}) for message in messages]
    return b"".join(base64.b64decode(data.get(kind, "")) for data in events).decode()


def end_of(messages: list[Any]) -> dict[str, Any]:
    [end] = [m["event"]["end"] for m in messages if "end" in m.get("event", {})]
    return end


class Following:
    """A stream that goes on. The reader asks for one message after the other."""

    def __init__(self, response: ClientResponse) -> None:
        self._response = response

    async def next(self) -> Any:
        async with asyncio.timeout(DEADLINE_SECONDS):
            content = self._response.content
            _, size = struct.unpack(">BI", await content.readexactly(5))
            return json.loads(await content.readexactly(size))

    async def until(self, kind: str) -> Any:
        """The next event of this kind."""
        while True:
            event = (await self.next())["event"]
            if kind in event:
                return event[kind]


class Box:
    """The calls of the SDKs."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    async def call(
        self, name: str, message: Any, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """A unary call: the HTTP status, and the message of the reply."""
        body = json.dumps(message).encode()
        answer = await self.wire.request("POST", f"/{name}", body, JSON | (headers or {}))
        return answer.http_status, answer.json()

    async def process(self, name: str, message: Any) -> tuple[int, Any]:
        return await self.call(f"process.Process/{name}", message)

    async def filesystem(self, name: str, message: Any) -> tuple[int, Any]:
        return await self.call(f"filesystem.Filesystem/{name}", message)

    async def stream(
        self, name: str, *messages: Any, headers: dict[str, str] | None = None
    ) -> list[Any]:
        """A streaming call to its end."""
        answer = await self.wire.request(
            "POST", f"/{name}", packed(*messages), STREAM | (headers or {})
        )
        assert answer.http_status == 200, answer.body
        assert answer.headers["Content-Type"] == "application/connect+json"
        return unpacked(answer.body)

    async def start(self, message: Any, **headers: str) -> list[Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.stream("process.Process/Start", message, headers=named)

    @contextlib.asynccontextmanager
    async def following(
        self, name: str, message: Any, headers: dict[str, str] | None = None
    ) -> AsyncIterator[Following]:
        """A streaming call that the block leaves in the middle."""
        async with self.wire.client.post(
            f"/{name}", data=packed(message), headers=STREAM | (headers or {})
        ) as response:
            assert response.status == 200
            yield Following(response)
            response.close()

    async def get(self, target: str, headers: dict[str, str] | None = None) -> Answer:
        return await self.wire.request("GET", target, headers=headers)


@pytest_asyncio.fixture(loop_scope="session")
async def box(serve: Callable[..., Awaitable[Wire]]) -> Box:
    return Box(await serve(dialect=E2B))
