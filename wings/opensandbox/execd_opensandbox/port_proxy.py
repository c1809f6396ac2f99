"""The proxy to servers inside the sandbox: /proxy/{port}/{path}, for HTTP and WebSockets.

The proxy reaches 127.0.0.1 only, and never a port of execd itself: a request that comes from
inside would count as local there. Nothing that holds a token of execd or of the platform reaches
the server: neither the headers, nor the subprotocols of a WebSocket, nor an Authorization header
with the token of this daemon. A redirect goes to the caller: the proxy never follows a redirect.

Faults of the server are 502 before the reply has begun, and cut the reply afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus
from typing import TYPE_CHECKING

import aiohttp  # the client half is loaded at the first use: lean_imports of execd
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from execd.api.wire_api import (
    ENGINE,
    FACTS,
    GATE,
    PATH,
    TOKEN_HEADERS,
    TOKEN_SUBPROTOCOL,
    Route,
    abort_when_stalled,
    body_chunks,
    cancel_and_wait,
    raw_path_of,
)
from execd.engine.engine_api import InvalidArgument, PermissionDenied
from execd_opensandbox.opensandbox_errors import TOKEN_HEADER

if TYPE_CHECKING:
    from aiohttp import ClientHandlerType, ClientRequest, ClientResponse, ClientWebSocketResponse

    from execd.api.wire_api import TokenGate
    from execd.engine.engine_api import Engine

HOST = "127.0.0.1"
CONNECT_SECONDS = 5.0
CLOSE_SECONDS = 5.0
MAX_MESSAGE_BYTES = 4 << 20
HOP_BY_HOP = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"),
        *("trailer", "transfer-encoding", "upgrade", "proxy-connection", "expect"),
    )
)
"""RFC 9110 §7.6.1, and Expect, which execd answers itself."""
SECRET_HEADERS = frozenset(
    name.lower() for name in (TOKEN_HEADER, *TOKEN_HEADERS, "OPEN-SANDBOX-API-KEY")
)
SENDABLE = frozenset((*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)))
"""Close codes that may be sent: RFC 6455 §7.4 reserves the others."""
WEBSOCKET_PREFIX = "sec-websocket-"


class _SocketRefused(Exception):
    """The server has answered the handshake of a WebSocket with an ordinary reply."""

    def __init__(self, answer: ClientResponse) -> None:
        super().__init__(f"the server has answered {answer.status}")
        self.answer = answer


def parse_port(engine: Engine, text: str) -> int:
    """Raises InvalidArgument, PermissionDenied."""
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) <= 65535):
        raise InvalidArgument("port: must be a number from 1 to 65535", field="port")
    port = int(text)
    if port in engine.own_ports:
        raise PermissionDenied("port: is a port of execd itself")
    return port


def forwarded_headers(request: web.Request, gate: TokenGate) -> CIMultiDict[str]:
    """Return the headers for the server: neither hop-by-hop headers nor tokens."""
    named = {
        name.strip().lower()
        for value in request.headers.getall("Connection", ())
        for name in value.split(",")
    }
    dropped = HOP_BY_HOP | SECRET_HEADERS | named | {"host"}
    kept: CIMultiDict[str] = CIMultiDict()
    for name, value in request.headers.items():
        lower = name.lower()
        if lower in dropped or lower.startswith(WEBSOCKET_PREFIX):
            continue
        if lower == "authorization" and gate.matches(value.strip().partition(" ")[2].strip()):
            continue
        kept.add(name, value)
    return kept


def forwarded_protocols(request: web.Request) -> tuple[str, ...]:
    """Return the offered subprotocols without those that hold a token."""
    offered = [
        protocol.strip()
        for value in request.headers.getall("Sec-WebSocket-Protocol", ())
        for protocol in value.split(",")
    ]
    return tuple(one for one in offered if one and not one.startswith(TOKEN_SUBPROTOCOL))


def target_of(request: web.Request, port: int) -> URL:
    """Return the address at the server, with path and query as the caller spelled them."""
    path = raw_path_of(request.raw_path)
    rest = path.removeprefix("/proxy/").partition("/")[2]
    query = request.raw_path.partition("?")[2]
    target = f"http://{HOST}:{port}/{rest}"
    return URL(f"{target}?{query}" if query else target, encoded=True)


async def proxy(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    port = parse_port(engine, request.match_info["port"])
    url, headers = target_of(request, port), forwarded_headers(request, request.app[GATE])
    is_socket = "websocket" in request.headers.get("Upgrade", "").lower()
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
    # No pool: a connection lives as long as the request, and nothing is left to close.
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        middlewares=(_refuse_ordinary_reply,) if is_socket else (),
    ) as session:
        try:
            if is_socket:
                return await _pass_socket(request, session, url, headers)
            return await _pass_request(request, session, url, headers)
        except aiohttp.ClientError as error:
            if request[FACTS].started is not None or request.transport is None:
                raise ConnectionResetError("the server or the caller has broken off") from error
            return web.Response(status=502, text="Bad Gateway")


async def _refuse_ordinary_reply(request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
    """A middleware of aiohttp, which would drop the body of such a reply, and follow a redirect to
    any host. Raises _SocketRefused."""
    answer = await send(request)
    if answer.status != HTTPStatus.SWITCHING_PROTOCOLS:
        raise _SocketRefused(answer)
    return answer


async def _pass_request(
    request: web.Request,
    session: aiohttp.ClientSession,
    url: URL,
    headers: CIMultiDict[str],
) -> web.StreamResponse:
    body = body_chunks(request) if request.body_exists else None
    async with session.request(
        request.method, url, headers=headers, data=body, allow_redirects=False
    ) as answer:
        return await _pass_answer(request, answer)


async def _pass_answer(request: web.Request, answer: ClientResponse) -> web.StreamResponse:
    """Pass the server's reply on. Raises aiohttp.ClientError."""
    response = web.StreamResponse(status=answer.status, reason=answer.reason)
    named = {name.strip().lower() for name in answer.headers.get("Connection", "").split(",")}
    for name, value in answer.headers.items():
        if name.lower() not in HOP_BY_HOP | named:
            response.headers.add(name, value)
    _end_with_connection(answer)
    await response.prepare(request)
    with abort_when_stalled(request):
        async for data in answer.content.iter_any():
            await response.write(data)
        await response.write_eof()
    return response


def _end_with_connection(answer: ClientResponse) -> None:
    """Let the reader of the body fail once the connection is lost. aiohttp 3.14 closes the
    connection at a malformed chunk, and leaves the reader of the body waiting for ever."""
    protocol = None if answer.connection is None else answer.connection.protocol
    if protocol is None:
        return  # the whole body is there

    def fail(cause: BaseException | None) -> None:
        body = answer.content
        if not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError(f"the body breaks off: {cause}"))

    if protocol.closed is None:
        fail(None)
    else:
        protocol.closed.add_done_callback(lambda closed: fail(closed.exception()))


async def _pass_socket(
    request: web.Request,
    session: aiohttp.ClientSession,
    url: URL,
    headers: CIMultiDict[str],
) -> web.StreamResponse:
    try:
        return await _pass_messages_both_ways(request, session, url, headers)
    except _SocketRefused as refused:
        async with refused.answer as answer:
            return await _pass_answer(request, answer)


async def _pass_messages_both_ways(
    request: web.Request,
    session: aiohttp.ClientSession,
    url: URL,
    headers: CIMultiDict[str],
) -> web.StreamResponse:
    protocols = forwarded_protocols(request)
    async with session.ws_connect(
        url,
        headers=headers,
        protocols=protocols,
        max_msg_size=MAX_MESSAGE_BYTES,
        autoping=True,
        autoclose=False,
    ) as inside:
        agreed = () if inside.protocol is None else (inside.protocol,)
        socket = web.WebSocketResponse(
            protocols=agreed,
            timeout=CLOSE_SECONDS,
            max_msg_size=MAX_MESSAGE_BYTES,
            autoclose=False,
            compress=False,
        )
        await socket.prepare(request)
        with abort_when_stalled(request):
            ways = [
                asyncio.ensure_future(_pass_messages(socket, inside)),
                asyncio.ensure_future(_pass_messages(inside, socket)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await cancel_and_wait(*ways)
                await _close_both(socket, inside)
        return socket


async def _pass_messages(
    source: web.WebSocketResponse | ClientWebSocketResponse,
    target: web.WebSocketResponse | ClientWebSocketResponse,
) -> None:
    """Pass messages on, until ``source`` has closed."""
    async for message in source:
        if message.type is web.WSMsgType.TEXT:
            await target.send_str(message.data)
        elif message.type is web.WSMsgType.BINARY:
            await target.send_bytes(message.data)


async def _close_both(socket: web.WebSocketResponse, inside: ClientWebSocketResponse) -> None:
    """Close each side with the code of the other."""
    for one, other in ((socket, inside), (inside, socket)):
        with contextlib.suppress(ConnectionError, TimeoutError, RuntimeError):
            async with asyncio.timeout(CLOSE_SECONDS):
                code = other.close_code or aiohttp.WSCloseCode.OK
                await one.close(code=code if code in SENDABLE else aiohttp.WSCloseCode.OK)


ROUTES = tuple(
    Route(
        method="*",
        path=path,
        handler=proxy,
        name=name,
        summary="A server inside the sandbox",
        replies={200: ("*/*",)},
        errors=(PermissionDenied,),
    )
    for name, path in (
        ("opensandbox_proxy_root", "/proxy/{port}"),
        ("opensandbox_proxy", "/proxy/{port}" + PATH),
    )
)
