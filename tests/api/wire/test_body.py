"""Bodies share a single budget. A body gives the budget back on every way out."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from execd.engine.in_flight import FREE_BYTES, InFlight
from tests.api.conftest import JSON, LIMITS, request_bytes, wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.api.conftest import Connection, Wire

BUDGET = 1 << 20
LARGE = b" " * (BUDGET * 3 // 4)


@pytest_asyncio.fixture(loop_scope="session")
async def tight(serve: Callable[..., Awaitable[Wire]], monkeypatch: pytest.MonkeyPatch) -> Wire:
    wire = await serve(limits=msgspec.structs.replace(LIMITS, body_seconds=5.0))
    monkeypatch.setattr(wire.engine, "in_flight", InFlight(BUDGET))
    return wire


async def unfinished(wire: Wire, path: str = "/execute", method: str = "POST") -> Connection:
    """Send a part of a request. The part holds most of the budget."""
    connection = await wire.connect()
    await connection.send(
        request_bytes(method, path, headers=JSON | {"Content-Length": str(len(LARGE) + 100)})
        + LARGE
    )
    await wait_until(
        lambda: wire.engine.in_flight.held_bytes > len(LARGE) // 2, "the body is counted"
    )
    return connection


async def is_given_back(wire: Wire) -> None:
    await wait_until(
        lambda: wire.engine.in_flight.held_bytes == 0, "all of the budget is given back"
    )


async def test_body_above_the_budget_is_429_and_small_ones_are_answered(tight: Wire) -> None:
    holder = await unfinished(tight)
    answer = await tight.request("POST", "/v1/executions", LARGE, JSON)
    assert (answer.http_status, answer.json()["code"]) == (429, "RESOURCE_EXHAUSTED")
    assert int(answer.headers["Retry-After"]) >= 1
    assert (await tight.execute("echo hi")).json()["stdout"] == "hi\n"
    assert (await tight.request("GET", "/")).http_status == 200
    await holder.close()
    await is_given_back(tight)


async def test_single_body_larger_than_the_budget_is_served(tight: Wire) -> None:
    command = "echo hi #" + "x" * (2 * BUDGET)
    assert (await tight.execute(command)).json()["stdout"] == "hi\n"
    await is_given_back(tight)


async def test_a_body_counts_until_its_request_is_over(tight: Wire) -> None:
    body = json.dumps(
        {"command": "cat >/dev/null; sleep 60", "stdin": "x" * (BUDGET // 2)}
    ).encode()
    connection = await tight.connect()
    await connection.send(request_bytes("POST", "/v1/executions", body, JSON))
    await wait_until(tight.live, "the command runs")
    assert tight.engine.in_flight.held_bytes == len(body) - FREE_BYTES
    await connection.close()
    await is_given_back(tight)


async def test_the_budget_is_given_back_after_errors(serve: Callable[..., Awaitable[Wire]]) -> None:
    wire = await serve(
        limits=msgspec.structs.replace(LIMITS, body_seconds=2.0), max_body_bytes=BUDGET
    )
    for http_status, headers, body in (
        (408, {"Content-Length": str(len(LARGE) + 100)}, LARGE),
        (422, {"Content-Length": str(len(LARGE))}, LARGE),
        (
            413,
            {"Content-Length": "9", "Transfer-Encoding": "chunked"},
            b"%x\r\n%b\r\n" % (2 * BUDGET, b" " * 2 * BUDGET),
        ),
        (
            400,
            {"Transfer-Encoding": "chunked"},
            b"%x\r\n%b\r\nno size\r\n" % (50_000, LARGE[:50_000]),
        ),
    ):
        if "Transfer-Encoding" in headers:
            head = chunked_head("POST", "/execute")
        else:
            head = request_bytes("POST", "/execute", headers=JSON | headers)
        connection = await wire.connect()
        await connection.send(head + body)
        assert (await connection.receive()).http_status == http_status
        await connection.close()
        await is_given_back(wire)


@pytest.mark.parametrize("path", ["/v1/files/big", "/v1/archive/big"])
async def test_uploads_hold_their_buffers_only_and_all_go_on(wire: Wire, path: str) -> None:
    connections = []
    for number in range(12):
        connections.append(await wire.connect())
        size = 64 << 20
        await connections[-1].send(
            request_bytes("PUT", f"{path}-{number}", headers={"Content-Length": str(size)})
            + b"x" * 100
        )
    await wait_until(lambda: wire.engine.in_flight.held_bytes > 16 << 20, "uploads are counted")
    assert wire.engine.in_flight.held_bytes <= wire.engine.in_flight.max_bytes
    content = b"y" * 3_000_000
    assert (await wire.request("PUT", "/v1/files/other", content)).http_status == 204
    assert (wire.base_dir / "other").read_bytes() == content
    for connection in connections:
        await connection.close()
    await is_given_back(wire)


async def test_upload_above_the_budget_is_429_and_leaves_nothing(tight: Wire) -> None:
    holder = await unfinished(tight)
    answer = await tight.request("PUT", "/v1/files/file", LARGE)
    assert answer.http_status == 429
    assert [found.name for found in tight.base_dir.iterdir() if found.is_file()] == []
    await holder.close()
    await is_given_back(tight)


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
async def test_body_that_means_nothing_is_refused_unless_it_is_small(
    wire: Wire, method: str
) -> None:
    assert (await wire.request(method, "/v1/executions/none", b"{}")).http_status == 404
    assert (
        await wire.request(method, "/v1/executions/none", b" " * (FREE_BYTES + 1))
    ).http_status == 413


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
@pytest.mark.parametrize(
    ("n_bytes", "http_status"), [(0, 404), (FREE_BYTES, 404), (FREE_BYTES + 1, 413)]
)
async def test_body_that_means_nothing_and_comes_in_chunks_is_counted(
    wire: Wire, method: str, n_bytes: int, http_status: int
) -> None:
    head = chunked_head(method, "/v1/executions/none")
    chunk = b"%x\r\n%b\r\n" % (n_bytes, b" " * n_bytes) if n_bytes else b""
    end = b"0\r\n\r\n" if http_status == 404 else b""
    connection = await wire.connect()
    await connection.send(head + chunk + end)
    assert (await connection.receive(method)).http_status == http_status
    await connection.close()


def chunked_head(method: str, path: str) -> bytes:
    line = f"{method} {path} HTTP/1.1\r\n"
    return line.encode() + b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_body_that_means_nothing_is_refused_instead_of_asked_for(wire: Wire) -> None:
    connection = await wire.connect()
    head = chunked_head("GET", "/v1/executions/none")
    await connection.send(head.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
    assert (await connection.receive()).http_status == 413
    await connection.close()


async def test_body_that_means_nothing_and_never_ends_is_408(
    serve: Callable[..., Awaitable[Wire]],
) -> None:
    wire = await serve(limits=msgspec.structs.replace(LIMITS, body_seconds=0.2))
    connection = await wire.connect()
    await connection.send(chunked_head("GET", "/") + b"1\r\n \r\n")
    assert (await connection.receive()).http_status == 408
    await connection.close()


async def test_input_of_a_viewer_goes_on_one_message_at_a_time_where_others_hold_the_budget(
    tight: Wire,
) -> None:
    asked = {"command": "cat", "stdin_open": True, "detach": True}
    made = await tight.request("POST", "/v1/executions", json.dumps(asked).encode(), JSON)
    url = f"/v1/executions/{made.json()['id']}/attach"
    sent = [bytes([number]) * 100_000 for number in range(20)]
    received = b""
    async with tight.client.ws_connect(url, max_msg_size=0) as socket:
        holder = await tight.connect()
        await holder.send(
            request_bytes("POST", "/execute", headers=JSON | {"Content-Length": str(BUDGET)})
            + b" " * (BUDGET // 4)
        )
        await wait_until(
            lambda: tight.engine.in_flight.held_bytes > BUDGET // 2, "both are counted"
        )

        async def type_() -> None:
            for data in sent:
                await socket.send_bytes(data)

        typing = asyncio.create_task(type_())
        while len(received) < sum(map(len, sent)):
            message = await socket.receive(timeout=20)
            if message.type is aiohttp.WSMsgType.BINARY:
                received += message.data
        await typing
        await holder.close()
    assert received == b"".join(sent)
    await tight.request("DELETE", f"/v1/executions/{made.json()['id']}")
    await is_given_back(tight)
