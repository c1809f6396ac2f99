"""Replies in JSON: the head that execd writes by itself, and the heads that aiohttp writes."""

from __future__ import annotations

import asyncio
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion10
from aiohttp.test_utils import make_mocked_request

from execd.api.wire.keys import FACTS, RequestFacts
from execd.api.wire.replies import (
    MAX_JOINED_BYTES,
    SERVER,
    SentReply,
    UsualReply,
    _date,
    json_reply,
    send_json,
)
from tests.api.conftest import DEADLINE_SECONDS, request_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

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


def _force_close(reply: web.Response) -> None:
    reply.force_close()


def _add_field(reply: web.Response) -> None:
    reply.headers["Cache-Control"] = "no-store"


def _set_status(reply: web.Response) -> None:
    reply.set_status(201)


def _leave(_reply: web.Response) -> None: ...


@pytest.mark.parametrize(
    ("change", "request_options", "is_usual"),
    [
        (_leave, {}, True),
        (_force_close, {}, False),
        (_add_field, {}, False),
        (_set_status, {}, False),
        (web.Response.enable_compression, {}, False),
        (web.Response.enable_chunked_encoding, {}, False),
        (_leave, {"closing": True}, False),
        (_leave, {"version": HttpVersion10}, False),
        (_leave, {"method": "HEAD"}, False),
        (_leave, {"method": "CONNECT"}, False),
    ],
)
def test_aiohttp_writes_every_head_that_differs(
    change: Callable[[web.Response], None], request_options: dict[str, Any], *, is_usual: bool
) -> None:
    reply = json_reply({})
    change(reply)
    assert isinstance(reply, UsualReply)
    request = make_mocked_request(**{"method": "GET", "path": "/", **request_options})
    assert reply._has_usual_head(request) is is_usual


@pytest.mark.parametrize("options", [{"http_status": 201}, {"headers": {"ETag": '"a"'}}])
def test_a_reply_with_a_status_or_fields_of_its_own_is_aiohttps(options: dict[str, Any]) -> None:
    reply = json_reply({}, **options)
    assert not isinstance(reply, UsualReply)
    assert reply.headers["Content-Type"] == "application/json"


def test_a_long_reply_is_aiohttps() -> None:
    assert not isinstance(json_reply("x" * MAX_JOINED_BYTES), UsualReply)


async def test_a_reply_whose_write_fails_fails_again(wire: Wire) -> None:
    """aiohttp sends each reply a second time, and takes the failure for the end of the peer."""
    writer = FailingWriter()
    request = make_mocked_request("GET", "/", writer=writer)
    request[FACTS] = RequestFacts(wire.engine.restores)
    reply = json_reply({})
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            await reply.prepare(request)
    assert (writer.n_writes, request[FACTS].started, reply.keep_alive) == (2, reply, None)


async def test_a_reply_is_written_once_and_can_still_be_the_last(wire: Wire) -> None:
    writer = FailingWriter(is_open=True)
    request = make_mocked_request("GET", "/", writer=writer)
    request[FACTS] = RequestFacts(wire.engine.restores)
    reply = json_reply({})
    for _ in range(2):
        await reply.prepare(request)
        await reply.write_eof()
    assert (writer.n_writes, reply.keep_alive) == (1, True)
    reply.force_close()
    assert reply.keep_alive is False


class FailingWriter(AbstractStreamWriter):
    """The writer of a connection whose peer has left, unless ``is_open``."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.is_open = is_open
        self.n_writes = 0

    async def write_eof(self, chunk: bytes = b"") -> None:
        self.n_writes += 1
        if not self.is_open:
            raise ConnectionResetError

    # The rest is not called.

    async def write(self, chunk: object) -> None: ...

    async def drain(self) -> None: ...

    def enable_compression(self, *_: object, **__: object) -> None: ...

    def enable_chunking(self) -> None: ...

    async def write_headers(self, *_: object) -> None: ...


def test_the_date_is_that_of_the_second() -> None:
    assert _date(0) == "Thu, 01 Jan 1970 00:00:00 GMT"
    assert _date(784111777) == "Sun, 06 Nov 1994 08:49:37 GMT"  # the example of RFC 9110


# Replies that a handler sends as a whole.


async def run(wire: Wire, **headers: str) -> Answer:
    return await wire.execute("true", headers=SAME | headers)


async def test_a_reply_that_was_sent_at_once_has_the_fields_of_any_other(wire: Wire) -> None:
    sent, last = await run(wire), await run(wire, Connection="close")
    assert [name for name, _ in fields(sent)] == [
        *["Content-Type", "Content-Length", "Server", "X-Request-ID", "X-Execd-Instance"]
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


async def test_a_reply_that_was_sent_at_once_is_not_sent_again(wire: Wire) -> None:
    writer = FailingWriter(is_open=True)
    request = make_mocked_request("POST", "/", writer=writer)
    request[FACTS] = RequestFacts(wire.engine.restores)
    reply = await send_json(request, {})
    assert isinstance(reply, SentReply)
    assert request[FACTS].started is reply
    await reply.prepare(request)
    await reply.write_eof()
    assert (writer.n_writes, reply.status, reply.keep_alive) == (1, 200, True)
    reply.force_close()
    assert not reply.keep_alive


async def test_a_reply_whose_write_at_once_fails_fails_again(wire: Wire) -> None:
    request = make_mocked_request("POST", "/", writer=FailingWriter())
    request[FACTS] = RequestFacts(wire.engine.restores)
    with pytest.raises(ConnectionResetError):
        await send_json(request, {})
    started = request[FACTS].started
    assert started is not None
    with pytest.raises(ConnectionResetError):
        await started.prepare(request)


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ("x" * MAX_JOINED_BYTES, {}),
        ("", {"closing": True}),
        ("", {"version": HttpVersion10}),
    ],
)
async def test_aiohttp_sends_at_once_what_is_long_or_has_another_head(
    wire: Wire, body: str, options: dict[str, Any]
) -> None:
    request = make_mocked_request(
        "POST", "/", writer=FailingWriter(is_open=True), app=web.Application(), **options
    )
    request[FACTS] = RequestFacts(wire.engine.restores)
    reply = await send_json(request, body)
    assert not isinstance(reply, SentReply)
    assert reply.prepared
