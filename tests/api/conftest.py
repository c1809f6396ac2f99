"""A real engine and the app in this process, and a client for exact bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from multidict import CIMultiDict

from execd.api.app import make_runner
from execd.api.wire.connections import ConnectionLimits
from execd.config import Config
from execd.engine.engine import Engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from execd.engine.executions.execution import Execution

DEADLINE_SECONDS = 20.0
LIMITS = ConnectionLimits.for_open_files(65536)
JSON = {"Content-Type": "application/json"}


@dataclass
class Answer:
    http_status: int
    headers: CIMultiDict[str]
    body: bytes
    is_whole: bool
    """Whether as much came as the headers promised."""

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Connection:
    """A connection. The client sends requests as the given bytes, and reads the answers in turn."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def receive(self, method: str = "GET") -> Answer:
        async with asyncio.timeout(DEADLINE_SECONDS):
            line, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            headers = CIMultiDict([tuple(line.split(": ", 1)) for line in lines])
            http_status = int(line.split()[1])
            body, is_whole = b"", True
            try:
                if headers.get("Transfer-Encoding") == "chunked":
                    body = await self._chunks()
                elif method != "HEAD" and http_status not in (100, 204, 304):
                    body = await self.reader.readexactly(int(headers["Content-Length"]))
            except asyncio.IncompleteReadError as error:
                body, is_whole = error.partial, False
            except ConnectionResetError:
                is_whole = False
        return Answer(http_status, headers, body, is_whole)

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += await self.reader.readexactly(size)
            await self.reader.readline()
        await self.reader.readline()
        return body

    async def is_closed_by_peer(self) -> bool:
        """Wait until the peer closes. The test fails if the peer keeps the connection open."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except (ConnectionResetError, BrokenPipeError):
            pass  # the server was first


@dataclass
class Wire:
    """A running app."""

    engine: Engine
    port: int
    base_dir: Path
    connections: list[Connection] = field(default_factory=list)

    def live(self) -> list[Execution]:
        """The running and waiting executions. No route of this dialect shows the list."""
        return list(self.engine._registry.live)

    async def connect(self) -> Connection:
        """Open a connection. The fixture closes open connections at the end of the test."""
        connection = Connection(
            *await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 26)
        )
        self.connections.append(connection)
        return connection

    async def request(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Answer:
        connection = await self.connect()
        try:
            await connection.send(request_bytes(method, target, body, headers))
            return await connection.receive(method)
        finally:
            await connection.close()

    async def execute(
        self, command: str, headers: dict[str, str] | None = None, **fields: Any
    ) -> Answer:
        body = json.dumps({"command": command, **fields}).encode()
        return await self.request("POST", "/execute", body, JSON | (headers or {}))

    async def upload(self, filename: str | bytes, content: bytes) -> Answer:
        raw = filename.encode() if isinstance(filename, str) else filename
        body, headers = multipart(b'name="file"; filename="' + raw + b'"', content)
        return await self.request("POST", "/upload", body, headers)


def multipart(parameters: bytes, content: bytes) -> tuple[bytes, dict[str, str]]:
    """Return a body with a single part, and the header of the body."""
    body = (
        b"--b\r\nContent-Disposition: form-data; "
        + parameters
        + b"\r\n\r\n"
        + content
        + b"\r\n--b--\r\n"
    )
    return body, {"Content-Type": "multipart/form-data; boundary=b"}


def request_bytes(
    method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> bytes:
    fields = {"Host": "localhost", "Content-Length": str(len(body))} | (headers or {})
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + body


async def wait_until(condition: Callable[[], Awaitable[object] | object], what: str) -> None:
    """Wait until ``condition`` holds. Fail at the deadline, and name the missing fact."""
    loop = asyncio.get_running_loop()
    end = loop.time() + DEADLINE_SECONDS
    while True:
        found = condition()
        if (
            await found
            if isinstance(found, asyncio.Future) or asyncio.iscoroutine(found)
            else found
        ):
            return
        assert loop.time() < end, f"never came true: {what}"
        await asyncio.sleep(0.01)  # between looks of a bounded wait


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Wire]]]:
    """Start an app with the given settings. A test starts a single app. The fixture stops the
    app."""
    engine: Engine | None = None
    runner: web.AppRunner | None = None
    made: Wire | None = None
    loop = asyncio.get_running_loop()
    # A signal, SIGCHLD for example, may reach a second thread. The stock loop sees the signal only
    # after some signal has a handler.
    loop.add_signal_handler(signal.SIGUSR2, lambda: None)

    ends = contextlib.AsyncExitStack()

    async def start(limits: ConnectionLimits = LIMITS, **settings: Any) -> Wire:
        nonlocal engine, runner, made
        assert engine is None, "one app a test"
        config = Config(
            base_dir=str(tmp_path / "base"),
            state_dir=str(tmp_path / "state"),
            **({"sessions": "lazy"} | settings),
        )
        engine = await ends.enter_async_context(Engine.open(config))
        runner = make_runner(engine, limits, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made = Wire(engine, runner.addresses[0][1], tmp_path / "base")
        return made

    yield start
    if made is not None:
        for connection in made.connections:
            await connection.close()
    if engine is not None:
        await engine.drain()
        if runner is not None:
            await runner.cleanup()
        await ends.aclose()
    loop.remove_signal_handler(signal.SIGUSR2)


@pytest.fixture
async def wire(serve: Callable[..., Awaitable[Wire]]) -> Wire:
    return await serve()
