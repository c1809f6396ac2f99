"""The proxy to servers inside the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import logging
import socket
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from execd.api.wire.auth import TokenGate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from wings.opensandbox.tests.conftest import OpenSandbox, Serve

TOKEN = "right"
SHA256 = hashlib.sha256(TOKEN.encode()).hexdigest()


async def echo(request: web.Request) -> web.StreamResponse:
    """Answer with the request; a WebSocket with each message."""
    if "upgrade" in request.headers.get("Connection", "").lower():
        ws = web.WebSocketResponse(protocols=("chat",))
        await ws.prepare(request)
        await ws.send_str(json.dumps(dict(request.headers)))
        async for message in ws:
            if message.type is aiohttp.WSMsgType.BINARY:
                await ws.send_bytes(message.data)
            elif message.data == "close":
                await ws.close(code=4321)
            else:
                await ws.send_str(message.data)
        return ws
    body = await request.read()
    facts = {
        "method": request.method,
        "path": request.raw_path,
        "headers": dict(request.headers),
        "body": body.decode(),
    }
    if request.method == "HEAD":
        return web.Response(status=204)
    return web.json_response(
        facts, status=418, headers={"X-Of-The-App": "1", "Connection": "X-Hop", "X-Hop": "1"}
    )


@pytest_asyncio.fixture(loop_scope="session")
async def port() -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", echo)
    async with TestServer(app, host="127.0.0.1") as server:
        assert server.port is not None
        yield server.port


async def ask(
    opensandbox: OpenSandbox, path: str, method: str = "GET", **headers: str
) -> dict[str, Any]:
    answer = await opensandbox.request(
        method, path, b"the body" if method == "POST" else b"",
        {name.replace("_", "-"): value for name, value in headers.items()},
    )  # fmt: skip
    assert answer.http_status == 418, answer
    assert answer.headers["X-Of-The-App"] == "1"
    assert "X-Hop" not in answer.headers
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_method_path_query_and_body_arrive_as_they_were_sent(
    opensandbox: OpenSandbox, port: int, method: str
) -> None:
    found = await ask(opensandbox, f"/proxy/{port}/a%2Fb/../c%20d?x=%26&y", method)
    assert (found["method"], found["path"]) == (method, "/a%2Fb/../c%20d?x=%26&y")
    assert found["body"] == ("the body" if method == "POST" else "")
    assert found["headers"]["Host"] == f"127.0.0.1:{port}"


@pytest.mark.parametrize("path", ["", "/"])
async def test_root_of_the_server(opensandbox: OpenSandbox, port: int, path: str) -> None:
    assert (await ask(opensandbox, f"/proxy/{port}{path}"))["path"] == "/"


async def test_head_has_no_body(opensandbox: OpenSandbox, port: int) -> None:
    answer = await opensandbox.request("HEAD", f"/proxy/{port}/x")
    assert (answer.http_status, answer.body) == (204, b"")


async def test_no_token_reaches_the_server(serve_opensandbox: Serve, port: int) -> None:
    opensandbox = await serve_opensandbox(gate=TokenGate(SHA256))
    found = await ask(
        opensandbox,
        f"/proxy/{port}/",
        X_EXECD_ACCESS_TOKEN=TOKEN,
        X_Access_Token=TOKEN,
        OPEN_SANDBOX_API_KEY="key",
        Authorization=f"Bearer {TOKEN}",
        X_Kept="kept",
        Connection="x-named",
        X_Named="dropped",
    )
    assert TOKEN not in json.dumps(found)
    assert "key" not in found["headers"].values()
    assert "X-Named" not in found["headers"]
    assert found["headers"]["X-Kept"] == "kept"


async def test_authorization_of_the_app_itself_is_passed_on(
    opensandbox: OpenSandbox, port: int
) -> None:
    found = await ask(opensandbox, f"/proxy/{port}/", Authorization="Bearer of-the-app")
    assert found["headers"]["Authorization"] == "Bearer of-the-app"


async def test_own_ports_are_refused(opensandbox: OpenSandbox, port: int) -> None:
    own_ports = opensandbox.engine.own_ports
    own_ports.add(port)
    try:
        for path in (f"/proxy/{port}/ping", f"/proxy/{port:05d}/ping"):
            refusal = await opensandbox.refused("GET", path)
            assert refusal[:2] == (403, "PERMISSION_DENIED")
    finally:
        own_ports.discard(port)


@pytest.mark.parametrize("port", ["0", "65536", "x", "-1", "1.2.3.4:80", "%31"])
async def test_port_that_is_no_port_is_400(opensandbox: OpenSandbox, port: str) -> None:
    answer = await opensandbox.request("GET", f"/proxy/{port}/")
    assert answer.http_status in (400, 502) if port == "%31" else answer.http_status == 400


async def test_port_without_a_server_is_502(opensandbox: OpenSandbox) -> None:
    with socket.socket() as unused:  # bound, and not listening
        unused.bind(("127.0.0.1", 0))
        answer = await opensandbox.request("GET", f"/proxy/{unused.getsockname()[1]}/")
    assert (answer.http_status, answer.body) == (502, b"Bad Gateway")


async def test_large_bodies_pass_both_ways(opensandbox: OpenSandbox, port: int) -> None:
    body = b"x" * 900_000
    async with opensandbox.client.post(f"/proxy/{port}/", data=io.BytesIO(body)) as response:
        assert len((await response.json())["body"]) == len(body)


async def test_socket_passes_messages_protocols_and_close_codes(
    serve_opensandbox: Serve, port: int
) -> None:
    opensandbox = await serve_opensandbox(gate=TokenGate(SHA256))
    offered = ("chat", f"execd.bearer.{TOKEN}")
    async with opensandbox.client.ws_connect(f"/proxy/{port}/ws", protocols=offered) as ws:
        assert ws.protocol == "chat"
        headers = json.loads((await ws.receive()).data)
        assert TOKEN not in json.dumps(headers)
        await ws.send_str("text")
        assert (await ws.receive()).data == "text"
        await ws.send_bytes(b"\x00\xff")
        assert (await ws.receive()).data == b"\x00\xff"
        await ws.send_str("close")
        assert (await ws.receive()).type is aiohttp.WSMsgType.CLOSE
        assert ws.close_code == 4321


async def test_token_is_needed_for_the_proxy(serve_opensandbox: Serve, port: int) -> None:
    opensandbox = await serve_opensandbox(gate=TokenGate(SHA256))
    assert (await opensandbox.refused("GET", f"/proxy/{port}/"))[0] == 401
    with contextlib.suppress(aiohttp.WSServerHandshakeError):
        async with opensandbox.client.ws_connect(f"/proxy/{port}/"):
            pytest.fail("a socket without a token")


class RawServer:
    """A server that answers each connection with the given bytes, in parts, and hangs up. The
    parts after the first wait for ``go_on``."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = parts
        self.go_on = asyncio.Event()

    async def __aenter__(self) -> int:
        self.server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        port: int = self.server.sockets[0].getsockname()[1]
        return port

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        await self.server.wait_closed()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in self.parts:
            writer.write(part)
            await writer.drain()
            if part is not self.parts[-1]:
                await self.go_on.wait()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def has_logged_errors(caplog: pytest.LogCaptureFixture) -> bool:
    return any(record.levelno >= logging.ERROR for record in caplog.records)


@pytest.mark.parametrize(
    "reply",
    [
        b"SSH-2.0-OpenSSH_9.2p1\r\n",
        b"\x00\x00\x00\x04\x00\x00\x00\x00\x00",  # SETTINGS of HTTP/2
        b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-\xc3\xa9: 1\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"",
    ],
    ids=["ssh", "http2", "long-header", "header-name", "broken-off", "nothing"],
)
@pytest.mark.parametrize("is_socket", [False, True], ids=["request", "socket"])
async def test_answer_that_is_not_http_is_502(
    opensandbox: OpenSandbox, caplog: pytest.LogCaptureFixture, reply: bytes, is_socket: bool
) -> None:
    async with RawServer(reply) as port:
        if is_socket:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await opensandbox.client.ws_connect(f"/proxy/{port}/")
            assert refused.value.status == 502
        else:
            answer = await opensandbox.request("GET", f"/proxy/{port}/")
            assert (answer.http_status, answer.body) == (502, b"Bad Gateway")
    assert not has_logged_errors(caplog)


@pytest.mark.parametrize(
    ("head", "rest"),
    [
        (b"Content-Length: 100\r\n\r\nabc", b""),
        (b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"no size\r\n"),
    ],
    ids=["short-body", "bad-chunk"],
)
async def test_answer_that_breaks_off_is_cut_for_the_caller_too(
    opensandbox: OpenSandbox, caplog: pytest.LogCaptureFixture, head: bytes, rest: bytes
) -> None:
    server = RawServer(b"HTTP/1.1 200 OK\r\n" + head, rest)
    async with server as port, opensandbox.client.get(f"/proxy/{port}/") as response:
        assert await response.content.readexactly(3) == b"abc"
        server.go_on.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.read()
    assert not has_logged_errors(caplog)


@pytest.mark.parametrize(
    ("http_status", "headers"),
    [
        (200, {}),
        (302, {"Location": "http://127.0.0.1:1/elsewhere"}),
        (403, {"X-Of-The-App": "1"}),
        (404, {}),
    ],
)
async def test_handshake_that_the_server_refuses_is_the_reply(
    opensandbox: OpenSandbox,
    caplog: pytest.LogCaptureFixture,
    http_status: int,
    headers: dict[str, str],
) -> None:
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    reply = f"HTTP/1.1 {http_status} Word\r\nContent-Length: 2\r\n{head}\r\nno".encode()
    handshake = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    async with (
        RawServer(reply) as port,
        opensandbox.client.get(
            f"/proxy/{port}/", headers=handshake, allow_redirects=False
        ) as answer,
    ):
        assert (answer.status, await answer.read()) == (http_status, b"no")
        assert answer.headers.items() >= headers.items()
    assert not has_logged_errors(caplog)
