"""One engine for the tests of this folder, the app in this process, pytest-aiohttp's client for
requests, and connections for exact bytes.

All tests of this folder share the loop of the engine. A test with settings of its own, or that ends
or damages the engine, has an engine of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import json
import re
import signal
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import aiohttp
import pytest
import pytest_asyncio
from aiohttp.test_utils import BaseTestServer, TestClient, get_port_socket
from multidict import CIMultiDict
from yarl import URL

from execd.api.app import make_http_port
from execd.api.routes import PORT_8888
from execd.api.wire.auth import TokenGate
from execd.api.wire.connections import ConnectionLimits
from execd.api.wire.port import PortContext
from execd.config import Config
from execd.engine.engine import Engine
from tests import subreaper
from tests.api.shared_engine import SharedEngine
from tests.guards import children, no_new_task
from tools.openapi.words import EVENT_STREAMS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiohttp import web
    from pytest_aiohttp.plugin import AiohttpClient

    from execd.api.wire.http_server import HttpRunner
    from execd.api.wire.port import HttpService
    from execd.api.wire.route import Route
    from execd.engine.executions.execution import Execution

FOLDER = Path(__file__).parent
DEADLINE_SECONDS = 20.0
LIMITS = ConnectionLimits.for_open_files(65536)
JSON = {"Content-Type": "application/json"}
# Only the headers of a test are sent.
OWN_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
NARROW_BYTES = 8192


@dataclass
class Answer:
    http_status: int
    headers: CIMultiDict[str]
    body: bytes

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
            body = b""
            if headers.get("Transfer-Encoding") == "chunked":
                body = await self._chunks()
            elif method != "HEAD" and http_status not in (100, 204, 304):
                body = await self.reader.readexactly(int(headers["Content-Length"]))
        return Answer(http_status, headers, body)

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

    async def reset(self) -> None:
        """Leave so that the server sees the leave at once. After a mere close the peer could still
        be reading, so the server learns of the leave from a reset, at the next heartbeat."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self.close()

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except (ConnectionResetError, BrokenPipeError):
            pass  # the server was first


class ExecdServer(BaseTestServer):
    """execd's own runner, for pytest-aiohttp's client.

    ``is_narrow``: with small buffers, so that a few hundred kilobytes stall a peer that reads
    nothing. The sockets of connections inherit the buffer of the listening socket.
    """

    def __init__(
        self,
        engine: Engine,
        limits: ConnectionLimits,
        *,
        is_narrow: bool,
        dialect: HttpService = PORT_8888,
        gate: TokenGate | None = None,
        port: int | None = None,
    ) -> None:
        super().__init__(port=port, socket_factory=_narrow_socket if is_narrow else get_port_socket)
        self._engine = engine
        self._limits = limits
        self._dialect = dialect
        self._gate = gate

    async def _make_runner(self, **_of_aiohttp: Any) -> HttpRunner:
        gate = self._gate or TokenGate(self._engine.config.token_sha256)
        return make_http_port(self._engine, PortContext(gate, self._limits, 1.0), self._dialect)

    def make_url(self, path: str | URL) -> URL:
        """Keep the path as the test spells the path: yarl would remove dots and decode escapes."""
        return URL(f"http://{self.host}:{self.port}{path}", encoded=True)


def _narrow_socket(host: str, port: int, family: socket.AddressFamily) -> socket.socket:
    listener = get_port_socket(host, port, family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NARROW_BYTES)
    return listener


@dataclass
class Wire:
    """A running app. Requests go by pytest-aiohttp's client, exact bytes by connections."""

    engine: Engine
    client: TestClient[web.Request, None]
    dialect: HttpService = PORT_8888
    connections: list[Connection] = field(default_factory=list)

    @property
    def base_dir(self) -> Path:
        return Path(self.engine.config.base_dir)

    @property
    def port(self) -> int:
        assert self.client.port is not None
        return self.client.port

    def live(self) -> list[Execution]:
        """The running and waiting executions. No route of this dialect shows the list."""
        return list(self.engine._registry.live)

    async def connect(self, read_ahead_bytes: int = 1 << 26) -> Connection:
        """Open a connection, which ``close`` closes. The client reads up to twice
        ``read_ahead_bytes`` before the test asks for them."""
        connection = Connection(
            *await asyncio.open_connection("127.0.0.1", self.port, limit=read_ahead_bytes)
        )
        self.connections.append(connection)
        return connection

    async def close(self) -> None:
        """Close the connections, the client and the server."""
        for connection in self.connections:
            await connection.close()
        await self.client.close()

    async def request(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Answer:
        async with self.client.request(
            method, target, data=io.BytesIO(body) if body else None, headers=headers
        ) as response:
            answer = Answer(response.status, CIMultiDict(response.headers), await response.read())
        if not fits_row(answer, self.dialect, method, target):
            pytest.fail(f"the row of {method} {target} has no such reply: {answer}")
        return answer

    async def exchange(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Answer:
        """Send a request as exact bytes, on a connection of its own."""
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


def fits_row(answer: Answer, dialect: HttpService, method: str, target: str) -> bool:
    """Whether the row of the request has such a reply. Errors have forms of their own."""
    if answer.http_status >= 400:
        return True
    route = row_of(dialect, method, target)
    if route.method == "*":  # the reply of a server of the sandbox
        return True
    contents = route.replies.get(answer.http_status)
    if answer.http_status == 200 and route.events:
        contents = (*(contents or ()), *EVENT_STREAMS)
    if contents is None or not answer.body:
        return contents is not None
    media_type = answer.headers["Content-Type"].partition(";")[0]
    media_types = {one if isinstance(one, str) else "application/json" for one in contents}
    return not media_types.isdisjoint((media_type, "*/*"))


def row_of(dialect: HttpService, method: str, target: str) -> Route:
    methods = ("*", "GET" if method == "HEAD" else method)
    path = unquote(target.partition("?")[0])
    return next(
        route
        for route in dialect.routes
        if route.method in methods and _pattern(route.path).fullmatch(path)
    )


@functools.cache
def _pattern(path: str) -> re.Pattern[str]:
    """A parameter is {name}, or {name:PATTERN} at the end of the path."""
    fixed, _, last = re.split(r"(\{\w+:)", path, maxsplit=1) if ":" in path else (path, "", "")
    parts = [re.escape(part) for part in re.split(r"\{\w+\}", fixed)]
    return re.compile("[^/]+".join(parts) + last.removesuffix("}"))


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    share_loop(items, FOLDER)


def share_loop(items: list[pytest.Item], folder: Path) -> None:
    """Have the asynchronous tests of a folder share the loop of the engine."""
    for item in items:
        if item.path.is_relative_to(folder) and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="package", loop_scope="session", autouse=True)
async def one_loop() -> AsyncIterator[None]:
    """The loop of this folder's tests begins before the guards look."""
    loop = asyncio.get_running_loop()
    # A signal, SIGCHLD for example, may reach a second thread. The stock loop sees the signal only
    # after some signal has a handler.
    loop.add_signal_handler(signal.SIGUSR2, lambda: None)
    yield
    loop.remove_signal_handler(signal.SIGUSR2)


@pytest_asyncio.fixture(loop_scope="session")
async def guarded_loop() -> AsyncIterator[None]:
    """The guard of all tests, on the loop of this folder's tests."""
    async with no_new_task():
        yield


def make_config(folder: Path, **settings: Any) -> Config:
    return Config(
        base_dir=str(folder / "base"),
        state_dir=str(folder / "state"),
        **({"sessions": "lazy"} | settings),
    )


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def shared_engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SharedEngine]:
    """The engine with the default settings. A warden without namespaces makes this process a
    subreaper, which the process has to remain for as long as the engine."""
    with subreaper.restored():
        async with Engine.open(make_config(tmp_path_factory.mktemp("shared"))) as engine:
            yield SharedEngine(engine, frozenset(children()))


@pytest_asyncio.fixture(loop_scope="session")
async def serve(
    tmp_path: Path, shared_engine: SharedEngine, aiohttp_client: AiohttpClient
) -> AsyncIterator[Callable[..., Awaitable[Wire]]]:
    """Start an app; a test starts a single app. The engine is the shared engine, unless there are
    settings, or the test asks for an engine of its own."""
    async with contextlib.AsyncExitStack() as ends:
        started: list[Wire] = []

        async def start(
            limits: ConnectionLimits = LIMITS,
            *,
            is_narrow: bool = False,
            has_own_engine: bool = False,
            dialect: HttpService = PORT_8888,
            **settings: Any,
        ) -> Wire:
            assert not started, "one app a test"
            if settings or has_own_engine:
                config = make_config(tmp_path, **settings)
                engine = await ends.enter_async_context(Engine.open(config))
                ends.push_async_callback(engine.drain)
            else:
                engine = shared_engine.engine
                ends.push_async_callback(shared_engine.reset)
            client = await aiohttp_client(
                ExecdServer(engine, limits, is_narrow=is_narrow, dialect=dialect),
                skip_auto_headers=OWN_HEADERS,
                timeout=aiohttp.ClientTimeout(total=DEADLINE_SECONDS),
            )
            started.append(Wire(engine, client, dialect))
            # Here and not in pytest-aiohttp's fixture, which ends on a loop of its own.
            ends.push_async_callback(started[0].close)
            return started[0]

        yield start


@pytest_asyncio.fixture(loop_scope="session")
async def wire(serve: Callable[..., Awaitable[Wire]]) -> Wire:
    return await serve()


@pytest_asyncio.fixture(loop_scope="session")
async def own_wire(serve: Callable[..., Awaitable[Wire]]) -> Wire:
    """An app whose engine the test ends or damages."""
    return await serve(has_own_engine=True)
