"""Connections of a running server: the number, the lifetime, and the reply to excess
connections."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
from aiohttp import web

from execd.api.wire.http_server import LATE_SECONDS, READING_SECONDS, HttpServer
from execd.engine.episodes import Episodes
from execd.engine.metrics.counters import Counters
from execd.engine.restores import Readings, Restores
from execd.engine.store.journal import EpisodeRecorded
from execd.model import ExitReason
from tests.api.conftest import JSON, LIMITS, request_bytes, wait_until
from tests.api.v1.test_executions import open_gate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from execd.api.wire.http_server import HttpConnection
    from tests.api.conftest import Connection, Wire

HANGING = b'{"command":"sleep 60"}'


def limited(max_open: int = 2, max_probing: int = 1, **more: float) -> dict[str, object]:
    return {
        "limits": msgspec.structs.replace(
            LIMITS, max_open=max_open, max_probing=max_probing, **more
        )
    }


async def test_oldest_idle_connection_is_closed_for_a_new_one(
    serve: Callable[..., Awaitable[Wire]],
) -> None:
    wire = await serve(**limited())
    silent, kept = await wire.connect(), await wire.connect()
    await kept.send(request_bytes("GET", "/"))
    assert (await kept.receive()).http_status == 200
    newest = await wire.connect()
    assert await silent.is_closed_by_peer()
    await newest.send(request_bytes("GET", "/list"))
    assert (await newest.receive()).http_status == 200
    await kept.send(request_bytes("GET", "/list"))
    assert (await kept.receive()).http_status == 200


@pytest.mark.parametrize("token_sha256", [None, hashlib.sha256(b"token").hexdigest()])
async def test_with_all_connections_in_use_probes_are_answered_and_others_get_503(
    serve: Callable[..., Awaitable[Wire]], token_sha256: str | None
) -> None:
    settings = {} if token_sha256 is None else {"token_sha256": token_sha256}
    wire = await serve(**limited(max_open=1), **settings)
    busy = await wire.connect()
    await busy.send(request_bytes("POST", "/execute", HANGING, JSON | {"X-Access-Token": "token"}))
    await wait_until(wire.live, "the command runs")
    for path in ("/", "/healthz", "/readyz", "/v1/health"):
        answer = await wire.exchange("GET", path)
        assert (answer.http_status, answer.headers["Connection"]) == (200, "close")
    for method, path in (
        ("GET", "/list"),
        ("POST", "/execute"),
        ("GET", "/v1/capabilities"),
        ("GET", "/nothing"),
    ):
        answer = await wire.exchange(method, path, b"x" * 1000 if method == "POST" else b"")
        assert (answer.http_status, answer.headers["Connection"]) == (503, "close")
        assert int(answer.headers["Retry-After"]) >= 1
        assert "connections" in answer.json()["message"]
    assert len(wire.live()) == 1
    await busy.close()


async def test_connections_for_probes_only_are_closed_oldest_first(
    serve: Callable[..., Awaitable[Wire]],
) -> None:
    wire = await serve(**limited(max_open=1, max_probing=1))
    busy = await wire.connect()
    await busy.send(request_bytes("POST", "/execute", HANGING, JSON))
    await wait_until(wire.live, "the command runs")
    silent = await wire.connect()
    assert (await wire.exchange("GET", "/")).http_status == 200
    assert await silent.is_closed_by_peer()
    await busy.close()


async def test_the_place_of_an_ended_connection_is_free(
    serve: Callable[..., Awaitable[Wire]],
) -> None:
    wire = await serve(**limited(max_open=1))
    for _ in range(5):
        answer = await wire.exchange("POST", "/execute", b'{"command":"echo hi"}', JSON)
        assert answer.json()["stdout"] == "hi\n"


@pytest.mark.parametrize("sent", [b"", b"GE", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: b"])
async def test_a_first_request_that_does_not_come_ends_the_connection(
    serve: Callable[..., Awaitable[Wire]], sent: bytes
) -> None:
    wire = await serve(**limited(request_seconds=0.2))
    connection = await wire.connect()
    await connection.send(sent)
    assert await connection.is_closed_by_peer()


async def test_headers_that_trickle_end_a_connection_that_was_used_before(
    serve: Callable[..., Awaitable[Wire]],
) -> None:
    wire = await serve(**limited(request_seconds=1.0))
    connection = await wire.connect()
    await connection.send(request_bytes("GET", "/"))
    assert (await connection.receive()).http_status == 200
    await connection.send(b"GET / HT")
    assert await connection.is_closed_by_peer()


async def test_a_connection_rests_longer_than_headers_may_take(
    serve: Callable[..., Awaitable[Wire]],
) -> None:
    wire = await serve(**limited(request_seconds=1.0))
    connection = await wire.connect()
    await connection.send(request_bytes("GET", "/"))
    assert (await connection.receive()).http_status == 200
    other = await wire.connect()
    assert await other.is_closed_by_peer()
    await connection.send(request_bytes("GET", "/"))
    assert (await connection.receive()).http_status == 200


@pytest.mark.parametrize("path", ["/execute", "/v1/executions", "/v1/fs/mkdir", "/v1/sessions"])
async def test_a_body_that_stops_is_408(serve: Callable[..., Awaitable[Wire]], path: str) -> None:
    wire = await serve(**limited(body_seconds=0.2))
    connection = await wire.connect()
    await connection.send(
        request_bytes("POST", path, headers=JSON | {"Content-Length": "100"}) + b"{"
    )
    answer = await connection.receive()
    assert (answer.http_status, answer.headers["Connection"]) == (408, "close")
    assert "0.2 s" in answer.json()["message"]


async def test_an_upload_that_stops_is_408_and_leaves_nothing(
    serve: Callable[..., Awaitable[Wire]],
) -> None:
    wire = await serve(**limited(body_seconds=0.2))
    connection = await wire.connect()
    await connection.send(
        request_bytes("PUT", "/v1/files/x", headers={"Content-Length": "100"}) + b"begun"
    )
    assert (await connection.receive()).http_status == 408
    assert [path.name for path in wire.base_dir.iterdir() if not path.name.startswith(".tmp")] == []


async def test_a_body_that_trickles_is_read_to_its_end(
    serve: Callable[..., Awaitable[Wire]],
) -> None:
    wire = await serve(**limited(body_seconds=2.0))
    connection = await wire.connect()
    body = b'{"command":"echo hi"}'
    await connection.send(
        request_bytes("POST", "/execute", headers=JSON | {"Content-Length": str(len(body))})
    )
    for number in range(len(body)):
        await connection.send(body[number : number + 1])
        await asyncio.sleep(0.01)  # so the bytes arrive separately
    assert (await connection.receive()).json()["stdout"] == "hi\n"


async def test_a_peer_that_takes_nothing_of_a_long_reply_is_cut(
    serve: Callable[..., Awaitable[Wire]],
) -> None:
    wire = await serve(
        **limited(max_open=1, stall_grace_seconds=0.2), stream_stall_seconds=0.2, is_narrow=True
    )
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(reader, ("127.0.0.1", wire.port))
    os.mkfifo(wire.base_dir / "gate")
    body = b'{"command":"cat gate; head -c 100000 /dev/zero"}'
    await loop.sock_sendall(reader, request_bytes("POST", "/execute", body, JSON))
    await wait_until(wire.live, "the command runs")  # an idle connection gives its place away
    await open_gate(wire)

    async def is_free() -> bool:
        return (await wire.exchange("GET", "/list")).http_status == 200

    try:
        await wait_until(is_free, "the connection is cut, and its place is free")
    finally:
        reader.close()


class Clock:
    """A loop with frozen time. Timers do not fire."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def call_at(self, _at: float, _callback: object) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(1000, lambda: None)


async def test_idle_connection_is_closed_after_keep_alive_seconds(
    serve: Callable[..., Awaitable[Wire]],
) -> None:
    wire = await serve(keep_alive_seconds=0.1)
    idle = await wire.connect()
    await idle.send(request_bytes("GET", "/"))
    assert (await idle.receive()).http_status == 200
    assert await idle.is_closed_by_peer()


class Peer:
    is_dropped = False

    def drop(self) -> None:
        self.is_dropped = True


async def test_late_loop_reads_what_its_peers_sent_before_it_judges_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        raise AssertionError("no request is ever sent")

    options = {"keepalive_timeout": 75.0}
    restores = Restores(lambda: False, lambda: Readings(0.0, 0.0), dict)
    server = HttpServer(
        handler,
        limits=LIMITS,
        counters=Counters(),
        restores=restores,
        episodes=Episodes(EpisodeRecorded("a", 1)),
        stall_seconds=60.0,
        runs=lambda _method, _canonical: False,
        options=options,
        request_factory=web.BaseRequest,
    )
    clock, peer = Clock(), cast("HttpConnection", Peer())
    monkeypatch.setattr(server, "_clock", clock)
    server.register(peer, 10)
    clock.now = LIMITS.request_seconds + LATE_SECONDS + 1
    server._drop_expired()
    assert not peer.is_dropped  # type: ignore[attr-defined]
    clock.now += READING_SECONDS
    server._drop_expired()
    assert peer.is_dropped  # type: ignore[attr-defined]
    server.unregister(peer)
    restores.close()


def half_close(connection: Connection) -> None:
    connection.writer.write_eof()


@pytest.mark.parametrize(
    ("method", "path", "body", "http_status"),
    [
        ("GET", "/", b"", 200),
        ("GET", "/list", b"", 200),
        ("GET", "/nothing", b"", 404),
        ("GET", "/v1/executions", b"", 200),
        ("PUT", "/v1/files/half-closed", b"content", 204),
        ("POST", "/v1/fs/mkdir", b'{"path": "half-closed-folder"}', 200),
    ],
)
async def test_caller_that_ends_its_sending_half_still_gets_the_reply(
    wire: Wire, method: str, path: str, body: bytes, http_status: int
) -> None:
    connection = await wire.connect()
    await connection.send(request_bytes(method, path, body))
    half_close(connection)
    assert (await connection.receive()).http_status == http_status
    assert await connection.is_closed_by_peer()


async def test_half_close_ends_no_wait_for_an_execution(wire: Wire) -> None:
    body = json.dumps({"command": "read line; echo $line", "stdin_open": True, "detach": True})
    started = await wire.request("POST", "/v1/executions", body.encode(), JSON)
    path = f"/v1/executions/{started.json()['id']}"
    poll, stream = await wire.connect(), await wire.connect()
    await poll.send(request_bytes("GET", f"{path}?wait_seconds=20"))
    await stream.send(request_bytes("GET", f"{path}/events"))
    for connection in (poll, stream):
        half_close(connection)
    written = await wire.request("POST", f"{path}/stdin?eof=true", b"hi\n")
    assert written.http_status == 200
    assert (await poll.receive()).json()["stdout"] == "hi\n"
    assert b"event: exited" in (await stream.receive()).body
    for connection in (poll, stream):
        assert await connection.is_closed_by_peer()


async def test_half_closed_connection_gets_the_replies_to_all_its_requests(wire: Wire) -> None:
    connection = await wire.connect()
    await connection.send(request_bytes("GET", "/list") * 3)
    half_close(connection)
    for _ in range(3):
        assert (await connection.receive()).http_status == 200
    assert await connection.is_closed_by_peer()


@pytest.mark.parametrize("path", ["/execute", "/v1/executions"])
async def test_half_close_on_a_route_that_runs_something_is_leaving(wire: Wire, path: str) -> None:
    connection = await wire.connect()
    await connection.send(request_bytes("POST", path, b'{"command": "sleep 60"}', JSON))
    await wait_until(wire.live, "the command runs")
    (execution,) = wire.live()
    half_close(connection)
    assert await connection.is_closed_by_peer()
    await execution.wait()
    assert execution.cause is ExitReason.CLIENT_DISCONNECTED


async def test_half_close_before_the_end_of_a_body_ends_the_connection(wire: Wire) -> None:
    connection = await wire.connect()
    await connection.send(
        request_bytes("PUT", "/v1/files/cut", b"begin", {"Content-Length": "100"})
    )
    half_close(connection)
    assert await connection.is_closed_by_peer()
    assert not (wire.base_dir / "cut").exists()


async def test_half_close_of_an_idle_connection_ends_the_connection(wire: Wire) -> None:
    silent, kept = await wire.connect(), await wire.connect()
    await kept.send(request_bytes("GET", "/"))
    assert (await kept.receive()).http_status == 200
    for connection in (silent, kept):
        half_close(connection)
        assert await connection.is_closed_by_peer()


@pytest.mark.parametrize(
    ("target", "http_status"),
    [
        *(("//list/", 200), ("///list", 200), ("//execute", 405), ("//v1/health", 200)),
        *(("/v1//health", 200), ("//v1//executions", 200), ("//", 200), ("//healthz?x=//y", 200)),
        *(("http://localhost//list", 200), ("//list/../../etc", 403), ("//nothing", 404)),
    ],
)
async def test_slashes_that_a_base_url_adds_make_no_difference(
    wire: Wire, target: str, http_status: int
) -> None:
    assert (await wire.exchange("GET", target)).http_status == http_status


async def test_path_behind_double_slashes_stays_in_its_root(wire: Wire) -> None:
    (wire.base_dir / "inside").write_bytes(b"content")
    for target in ("//download/inside", "//v1//files//inside", "//v1/files/inside"):
        assert (await wire.exchange("GET", target)).body == b"content"
    for target in ("//download/..//..//etc/passwd", "//v1//files//..//..//etc/passwd"):
        assert (await wire.exchange("GET", target)).http_status == 403
