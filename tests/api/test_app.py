from __future__ import annotations

import gzip
import hashlib
import json
import logging
import re
import socket
import struct
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import execd
from execd.api.app import MAX_UNREAD_BYTES
from execd.api.routes import PORT_8888
from execd.api.wire.origins import MAX_REQUEST_ID_LENGTH, request_id
from tests.api.conftest import JSON, multipart, request_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.api.conftest import Wire

TOKEN = "open-sesame"
HASH = hashlib.sha256(TOKEN.encode()).hexdigest()


HOST = b"Host: localhost\r\n"
POST = b"POST /execute HTTP/1.1\r\nHost: localhost\r\n"
NOT_HTTP = [
    (b"GARBAGE\r\n\r\n", 400, "method"),
    (b"get / HTTP/1.1\r\n" + HOST + b"\r\n", 400, "upper case"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "without TLS"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "HTTP/2"),
    (POST + b"Content-Length: abc\r\n\r\n", 400, "Content-Length: must be"),
    (POST + b"Content-Length: -1\r\n\r\n", 400, "Content-Length: must be"),
    (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "Content-Length: given more"),
    (POST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "one of the two"),
    (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400, "one of the two"),
    (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "body: not chunked"),
    (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", 400, "body: not chunked"),
    (POST + b"Transfer-Encoding: gzip\r\n\r\n", 400, "Transfer-Encoding: must end in chunked"),
    (POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n", 400, "Transfer-Encoding"),
    (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "Transfer-Encoding"),
    (b"GET / HTTP/1.1\r\n" + HOST + b"broken header\r\n\r\n", 400, "'Name: value'"),
    (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\x00c\r\n\r\n", 400, "control character"),
    (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n c\r\n\r\n", 400, "without a continuation"),
    (b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400, "Host: given more than once"),
    (b"GET / HTTP/1.1\r\n\r\n", 400, "Host: required"),
    (b"GET / HTTP/1.1\nHost: localhost\n\n", 400, "CR LF"),
    (b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n", 400, "%20"),
    (b"GET /\xc3\xa9 HTTP/1.1\r\n" + HOST + b"\r\n", 400, "percent-encoded"),
    (b"GET /\r\n" + HOST + b"\r\n", 400, "HTTP/1.1"),
    (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 400, "HTTP/1.1"),
    (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 431, "request line"),
    (b"GET / HTTP/1.1\r\n" + HOST + b"A: " + b"a" * 9000 + b"\r\n\r\n", 431, "8190 bytes"),
    (b"GET / HTTP/1.1\r\n" + HOST + b"A: a\r\n" * 200 + b"\r\n", 431, "more than 128"),
]
CODES = {400: "INVALID_ARGUMENT", 431: "HEADERS_TOO_LARGE", 501: "NOT_SUPPORTED"}


@pytest.mark.parametrize(("sent", "http_status", "rule"), NOT_HTTP)
async def test_a_malformed_request_is_refused_with_the_rule_that_it_breaks(
    wire: Wire, caplog: pytest.LogCaptureFixture, sent: bytes, http_status: int, rule: str
) -> None:
    caplog.set_level(logging.INFO, "execd.api")
    before = Counter(wire.engine.counters.error_replies)
    sent = sent.replace(b"/execute", b"/v1/executions")
    connection = await wire.connect()
    await connection.send(sent)
    answer = await connection.receive()
    assert (answer.http_status, answer.headers["Content-Type"]) == (http_status, "application/json")
    assert answer.json().keys() - {"details"} == {"code", "message"}
    assert answer.json()["code"] == CODES[http_status]
    assert Counter(wire.engine.counters.error_replies) - before == {CODES[http_status]: 1}
    assert rule in answer.json()["message"]
    assert re.fullmatch("[0-9a-f]{16}", answer.headers["X-Request-ID"])
    (line,) = (vars(record) for record in caplog.records if record.name.startswith("execd.api"))
    assert line["request_id"] == answer.headers["X-Request-ID"]
    assert line["http_status"] == http_status
    assert answer.headers["X-Execd-Instance"] == wire.engine.restores.instance_id
    assert answer.headers["Server"].startswith("execd/")
    connection.writer.write_eof()  # a body may be under way
    assert await connection.is_closed_by_peer()


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("abc-1", "abc-1"),
        ("a b\tc\udcffé", "abc"),
        ("x" * 500, "x" * MAX_REQUEST_ID_LENGTH),
        ("\r\nSet-Cookie: x", "Set-Cookie:x"),
    ],
)
def test_request_id_is_cut_to_what_is_printable(given: str, kept: str) -> None:
    assert request_id(given) == kept


@pytest.mark.parametrize("given", [None, "", " ", "é"])
def test_request_id_of_nothing_is_made(given: str | None) -> None:
    assert re.fullmatch("[0-9a-f]{16}", request_id(given))


async def test_token_is_asked_for_everywhere_but_at_the_probes(
    serve: Callable[..., Awaitable[Wire]],
) -> None:
    wire = await serve(token_sha256=HASH)
    for target in ("/", "/healthz", "/readyz", "/v1/health", "http://localhost/healthz?x=y"):
        assert (await wire.exchange("GET", target)).http_status == 200
    for method, target in (
        ("GET", "/list"),
        ("POST", "/execute"),
        ("GET", "/v1/metadata"),
        ("GET", "/nothing"),
        ("GET", "/list/../healthz"),
    ):
        answer = await wire.request(method, target)
        assert answer.http_status == 401
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert (await wire.request("GET", "/v1/metadata")).json()["code"] == "UNAUTHENTICATED"
    for headers in ({"Authorization": f"Bearer {TOKEN}"}, {"X-Access-Token": TOKEN}):
        assert (await wire.request("GET", "/list", headers=headers)).http_status == 200


@pytest.mark.parametrize("size_bytes", [10, 1_000_000_000])
async def test_body_without_a_token_is_not_asked_for(
    serve: Callable[..., Awaitable[Wire]], size_bytes: int
) -> None:
    """The connection ends, because the client does not send the body: the next request would be
    taken for the body."""
    wire = await serve(token_sha256=HASH)
    connection = await wire.connect()
    await connection.send(
        request_bytes(
            "POST", "/upload", headers={"Expect": "100-continue", "Content-Length": str(size_bytes)}
        )
    )
    answer = await connection.receive()
    assert (answer.http_status, answer.headers["Connection"]) == (401, "close")


EXPECTING = {"Expect": "100-continue", "Content-Length": str(1 << 30)}


@pytest.mark.parametrize(
    ("method", "path", "headers", "http_status"),
    [
        ("POST", "/nothing", {}, 404),
        ("PUT", "/v1/nothing", {}, 404),
        ("PUT", "/execute", {}, 405),
        ("PUT", "/v1/executions", {}, 405),
        ("POST", "/execute", JSON, 413),
        ("POST", "/v1/executions", JSON, 413),
        ("GET", "/list", {}, 413),
        ("PUT", "/v1/files/new", {"If-Match": '"no"'}, 412),
        ("PUT", "/v1/files/new?unknown=1", {}, 400),
        ("PUT", "/v1/files/%2e%2e/out", {}, 403),
        ("POST", "/v1/executions/none/stdin", {}, 404),
        ("POST", "/v1/executions/none/signal", {"Content-Length": "9"}, 404),
        ("POST", "/v1/executions/none/resize", {"Content-Length": "9"}, 404),
        ("POST", "/v1/executions/none/kill", {"Content-Length": "9"}, 404),
        ("POST", "/v1/sessions/none/fork", {"Content-Length": "9"}, 404),
        ("POST", "/v1/sessions/none/input", {"Content-Length": "9"}, 404),
        ("POST", "/v1/sessions/none/complete", {"Content-Length": "9"}, 404),
        ("POST", "/execute", {"Origin": "https://evil.example"}, 403),
    ],
)
async def test_a_refusal_that_needs_no_body_comes_instead_of_100_continue(
    wire: Wire, method: str, path: str, headers: dict[str, str], http_status: int
) -> None:
    connection = await wire.connect()
    await connection.send(request_bytes(method, path, headers=EXPECTING | headers))
    answer = await connection.receive()
    assert (answer.http_status, answer.headers["Connection"]) == (http_status, "close")
    # Otherwise the daemon waits 10 s for a body that was under way: see the next test.
    connection.writer.write_eof()
    assert await connection.is_closed_by_peer()


async def test_peer_that_keeps_its_body_back_after_a_refusal_is_cut(wire: Wire) -> None:
    connection = await wire.connect()
    await connection.send(request_bytes("POST", "/nothing", headers=EXPECTING))
    assert (await connection.receive()).http_status == 404
    assert await connection.is_closed_by_peer()


@pytest.mark.parametrize("path", ["/nothing", "/v1/executions"])
async def test_token_comes_before_the_expectation(
    serve: Callable[..., Awaitable[Wire]], path: str
) -> None:
    wire = await serve(token_sha256=HASH)
    connection = await wire.connect()
    await connection.send(request_bytes("PUT", path, headers=EXPECTING))
    assert (await connection.receive()).http_status == 401


@pytest.mark.parametrize(("method", "path"), [("POST", "/nothing"), ("PUT", "/execute")])
async def test_a_peer_that_expects_and_hangs_up_is_no_error_of_the_daemon(
    wire: Wire, method: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A reset that arrives together with the request: the daemon answers a lost connection."""
    for _ in range(10):
        connection = await wire.connect()
        sock = connection.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await connection.send(request_bytes(method, path, headers=EXPECTING))
        connection.writer.transport.abort()
    assert (await wire.request("GET", "/")).http_status == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("expectation", ["foo", "100-continue, foo", "100-continue;q=1", "102"])
@pytest.mark.parametrize("path", ["/list", "/v1/health", "/v1/executions", "/nothing"])
async def test_unknown_expectation_is_417_and_names_the_only_one(
    wire: Wire, path: str, expectation: str
) -> None:
    answer = await wire.exchange("GET", path, headers={"Expect": expectation})
    assert answer.http_status == 417
    assert "Expect" in answer.json()["message"]
    assert "100-continue" in answer.json()["message"]


async def test_expectation_of_an_old_client_is_ignored(wire: Wire) -> None:
    body = b'{"command":"echo hi"}'
    request = request_bytes("POST", "/execute", body, JSON | {"Expect": "100-continue"})
    connection = await wire.connect()
    await connection.send(request.replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert (await connection.receive()).json()["stdout"] == "hi\n"


async def test_expectation_is_not_met_where_the_body_is_there_already(wire: Wire) -> None:
    answer = await wire.exchange(
        "POST", "/execute", b'{"command":"echo hi"}', JSON | {"Expect": "100-Continue"}
    )
    assert (answer.http_status, answer.json()["stdout"]) == (200, "hi\n")


async def test_foreign_origin_and_foreign_host_are_refused(wire: Wire) -> None:
    for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
        answer = await wire.request("POST", "/execute", b'{"command":"true"}', JSON | headers)
        assert answer.http_status == 403
        assert "Access-Control-Allow-Origin" not in answer.headers


async def test_connection_outlives_refused_requests(wire: Wire) -> None:
    connection = await wire.connect()
    refused, headers = multipart(b'name="file"; filename="../out"', b"x" * (MAX_UNREAD_BYTES // 2))
    await connection.send(request_bytes("POST", "/upload", refused, headers))
    assert (await connection.receive()).http_status == 403
    await connection.send(request_bytes("POST", "/execute", b"x" * 1000, JSON))
    assert (await connection.receive()).http_status == 422
    await connection.send(request_bytes("GET", "/nothing"))
    assert (await connection.receive()).http_status == 404
    await connection.send(request_bytes("GET", "/"))
    assert (await connection.receive()).http_status == 200


async def test_large_body_that_is_refused_ends_its_connection_after_the_answer(wire: Wire) -> None:
    connection = await wire.connect()
    start, headers = multipart(b'name="file"; filename="../out"', b"")
    await connection.send(
        request_bytes("POST", "/upload", headers=headers | {"Content-Length": str(1 << 30)})
        + start[:90]
    )
    answer = await connection.receive()
    assert (answer.http_status, answer.json()) == (403, {"message": "Access denied"})
    assert answer.headers["Connection"] == "close"


async def test_small_body_that_comes_after_its_refusal_leaves_the_connection_open(
    wire: Wire,
) -> None:
    connection = await wire.connect()
    await connection.send(request_bytes("POST", "/nothing", headers={"Content-Length": "10"}))
    answer = await connection.receive()
    assert (answer.http_status, answer.headers.get("Connection")) == (404, None)
    await connection.send(b"x" * 10 + request_bytes("GET", "/"))
    assert (await connection.receive()).http_status == 200


@pytest.mark.parametrize("framing", ["declared", "chunked"])
async def test_json_body_over_its_limit_is_413(
    serve: Callable[..., Awaitable[Wire]], framing: str
) -> None:
    wire = await serve(max_body_bytes=1000)
    body = json.dumps({"command": "x" * 1000}).encode()
    if framing == "declared":
        answer = await wire.request("POST", "/execute", body, JSON)
    else:
        chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        connection = await wire.connect()
        await connection.send(
            b"POST /execute HTTP/1.1\r\n"
            b"Host: localhost\r\n"
            b"Content-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n"
            b"\r\n" + chunks
        )
        answer = await connection.receive()
        await connection.close()
    assert answer.http_status == 413
    assert "1000 bytes" in answer.json()["message"]


@pytest.mark.parametrize("path", ["/execute", "/v1/executions", "/v1/fs/mkdir"])
async def test_body_that_is_compressed_is_refused_by_name(wire: Wire, path: str) -> None:
    body = gzip.compress(b'{"command": "true"}')
    answer = await wire.request("POST", path, body, JSON | {"Content-Encoding": "gzip"})
    assert answer.http_status == 400
    assert "Content-Encoding" in answer.json()["message"]


async def test_each_request_is_one_line_without_its_query(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "execd.api")
    await wire.request(
        "GET",
        "/list/a%20b?token=hidden",
        headers={"X-Request-ID": "abc", "X-Access-Token": "hidden"},
    )
    await wire.request("GET", "/")
    await wire.request("GET", "/metrics")
    (record,) = (record for record in caplog.records if record.name == "execd.api")
    fields = vars(record)
    assert (fields["method"], fields["path"], fields["http_status"]) == ("GET", "/list/a%20b", 404)
    assert fields["request_id"] == "abc"
    assert fields["sent_bytes"] > 100
    assert 0 < fields["request_seconds"] < 10
    assert "hidden" not in str(fields)


async def test_lines_of_probes_and_scrapes_have_the_level_debug_and_a_refused_scrape_info(
    serve: Callable[..., Awaitable[Wire]], caplog: pytest.LogCaptureFixture
) -> None:
    wire = await serve(token_sha256=HASH)
    caplog.set_level(logging.DEBUG, "execd.api")
    await wire.request("GET", "/healthz")
    await wire.request("GET", "/metrics", headers={"X-Access-Token": TOKEN})
    await wire.request("GET", "/metrics")
    lines = [record for record in caplog.records if record.name == "execd.api"]
    assert [(vars(line)["path"], vars(line)["http_status"], line.levelname) for line in lines] == [
        ("/healthz", 200, "DEBUG"),
        ("/metrics", 200, "DEBUG"),
        ("/metrics", 401, "INFO"),
    ]


async def test_fault_of_our_own_is_logged_whole_and_shown_as_an_id(
    wire: Wire, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The fault has to be put there: the root is taken away from under the files.
    monkeypatch.delattr(wire.engine.files, "_root")
    answer = await wire.request("GET", "/list")
    assert answer.http_status == 500
    (error_id,) = re.fullmatch("internal error ([0-9a-f]{16})", answer.json()["message"]).groups()
    (record,) = (record for record in caplog.records if record.exc_info)
    assert vars(record)["error_id"] == error_id
    assert "_root" in str(record.exc_info[1])
    assert "_root" not in answer.body.decode()


async def test_fault_outside_of_a_route_is_answered_logged_and_counted_once(
    own_wire: Wire, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("execd.api.app._send", fail)
    answer = await own_wire.exchange("GET", "/v1/metadata")
    assert (answer.http_status, answer.json()["code"]) == (500, "INTERNAL")
    (record,) = (record for record in caplog.records if record.exc_info)
    assert record.message == "fault of the server"
    assert Counter(own_wire.engine.counters.error_replies).total() == 1
    assert own_wire.engine.counters.error_replies["INTERNAL"] == 1


def test_the_routes_of_each_module_are_served() -> None:
    served = {route.handler.__module__ for route in PORT_8888.routes}
    folder = Path(execd.__file__).parent
    modules = {
        ".".join(path.relative_to(folder.parent).with_suffix("").parts)
        for path in (folder / "api").rglob("*.py")
        if "\nROUTES = " in path.read_text()
    }
    assert modules <= served
    assert len(modules) > 5
