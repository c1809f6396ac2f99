"""Replies in JSON: the head that execd writes by itself, and the heads that aiohttp writes."""

from __future__ import annotations

import asyncio
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from execd.api.wire.replies import (
    SERVER,
)
from tests.api.conftest import DEADLINE_SECONDS, request_bytes

if TYPE_CHECKING:
    from tests.api.conftest import Answer, Wire

PATH = "/exists/a%20b"
SAME = {"X-Request-ID": "same"}


def fields(answer: Answer) -> list[tuple[str, str]]:
    return [(name, value) for name, value in answer.headers.items() if name != "Date"]


async def test_a_usual_reply_has_the_fields_that_aiohttp_writes_in_the_same_order(
    wire: Wire,
) -> None:
    usual = await wire.exchange("GET", PATH, headers=SAME)
    last = await wire.exchange("GET", PATH, headers=SAME | {"Connection": "close"})
    assert fields(usual) == [
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(usual.body))),
        ("Server", SERVER),
        ("X-Request-ID", "same"),
        ("X-Execd-Instance", wire.engine.restores.instance_id),
        ("X-Execd-Episode", wire.engine.episodes.current),
    ]
    assert ("Connection", "close") in fields(last)
    assert [field for field in fields(last) if field[0] != "Connection"] == fields(usual)
    assert (usual.http_status, usual.body) == (last.http_status, last.body)
    for answer in usual, last:
        date = parsedate_to_datetime(answer.headers["Date"])
        assert abs(date.timestamp() - time.time()) < 60


async def test_usual_replies_follow_each_other_on_one_connection(wire: Wire) -> None:
    connection = await wire.connect()
    await connection.send(3 * request_bytes("GET", PATH))
    for _ in range(3):
        assert (await connection.receive()).json() == {"path": "a b", "exists": False}


async def test_a_head_request_gets_the_head_of_the_reply_alone(wire: Wire) -> None:
    get, head = [await wire.exchange(method, PATH, headers=SAME) for method in ("GET", "HEAD")]
    assert (head.http_status, head.body, fields(head)) == (200, b"", fields(get))


async def test_a_client_of_http_1_0_gets_a_reply_of_that_version(wire: Wire) -> None:
    connection = await wire.connect()
    kept = request_bytes("GET", PATH, headers={"Connection": "keep-alive"})
    for request, is_kept in (kept, True), (request_bytes("GET", PATH), False):
        await connection.send(request.replace(b"HTTP/1.1", b"HTTP/1.0"))
        async with asyncio.timeout(DEADLINE_SECONDS):
            line, *lines = (await connection.reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
            await connection.reader.readuntil(b"}")
        assert line == b"HTTP/1.0 200 OK"
        assert (b"Connection: keep-alive" in lines) is is_kept
    assert await connection.is_closed_by_peer()


# Replies that a handler sends as a whole.


async def run(wire: Wire, **headers: str) -> Answer:
    return await wire.execute("true", headers=SAME | headers)


async def test_a_reply_that_was_sent_at_once_has_the_fields_of_any_other(wire: Wire) -> None:
    sent, last = await run(wire), await run(wire, Connection="close")
    assert [name for name, _ in fields(sent)] == [
        *["Content-Type", "Content-Length", "Server", "X-Request-ID", "X-Execd-Instance"],
        "X-Execd-Episode",
    ]
    assert ("Connection", "close") in fields(last)
    assert (sent.http_status, sent.json().keys()) == (last.http_status, last.json().keys())


async def test_replies_that_were_sent_at_once_follow_each_other_on_one_connection(
    wire: Wire,
) -> None:
    connection = await wire.connect()
    request = request_bytes(
        "POST", "/execute", headers={"Content-Type": "application/json"}, body=b'{"command":"true"}'
    )
    await connection.send(3 * request)
    for _ in range(3):
        assert (await connection.receive()).json()["exit_code"] == 0
