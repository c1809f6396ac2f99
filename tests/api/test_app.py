from __future__ import annotations

import gzip
import hashlib
import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import execd
from execd.api.app import MAX_REQUEST_ID_LENGTH, MAX_UNREAD_BYTES, request_id, routes
from tests.api.conftest import JSON, multipart, request_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.api.conftest import Wire

TOKEN = "open-sesame"
HASH = hashlib.sha256(TOKEN.encode()).hexdigest()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/nothing", {"detail": "Not Found"}),
        ("/v2/nothing", {"detail": "Not Found"}),
        ("/v1/nothing", {"code": "NOT_FOUND", "message": "Not Found"}),
    ],
)
async def test_unknown_route_is_404_in_its_dialect(wire: Wire, path: str, body: object) -> None:
    answer = await wire.request("GET", path)
    assert (answer.http_status, answer.json()) == (404, body)


@pytest.mark.parametrize(
    ("method", "path", "allowed", "body"),
    [
        ("GET", "/execute", {"POST"}, {"detail": "Method Not Allowed"}),
        ("OPTIONS", "/upload", {"POST"}, {"detail": "Method Not Allowed"}),
        ("POST", "/list/x", {"GET", "HEAD"}, {"detail": "Method Not Allowed"}),
        ("DELETE", "/", {"GET", "HEAD"}, {"detail": "Method Not Allowed"}),
        (
            "PUT",
            "/v1/health",
            {"GET", "HEAD"},
            {"code": "METHOD_NOT_ALLOWED", "message": "Method Not Allowed"},
        ),
    ],
)
async def test_wrong_method_is_405_and_names_the_right_ones(
    wire: Wire, method: str, path: str, allowed: set[str], body: object
) -> None:
    answer = await wire.request(method, path)
    assert (answer.http_status, answer.json()) == (405, body)
    assert set(answer.headers["Allow"].split(",")) == allowed


@pytest.mark.parametrize(
    "target",
    [
        "/list",
        "/list/",
        "/list//",
        "/list/.",
        "/list/%2E",
        "/exists",
        "/exists/",
        "http://localhost/list/.",
    ],
)
async def test_no_spelling_is_redirected(wire: Wire, target: str) -> None:
    assert (await wire.request("GET", target)).http_status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Length: abc\r\n\r\n",
        b"GET /list/. HTTP/1.1\r\nHost: localhost\r\nbroken header\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_refused_like_any_bad_request(wire: Wire, sent: bytes) -> None:
    connection = await wire.connect()
    await connection.send(sent)
    answer = await connection.receive()
    assert (answer.http_status, answer.headers["Content-Type"]) == (400, "application/json")
    assert answer.json().keys() == {"code", "message"}
    assert answer.json()["code"] == "INVALID_ARGUMENT"
    assert answer.headers["Server"].startswith("execd/")
    assert await connection.is_closed_by_peer()


async def test_request_id_is_echoed_whatever_the_answer(wire: Wire) -> None:
    for method, target in (
        ("GET", "/"),
        ("GET", "/nothing"),
        ("GET", "/execute"),
        ("POST", "/execute"),
        ("GET", "/download/x"),
    ):
        answer = await wire.request(method, target, headers={"X-Request-ID": "0123456789abcdef"})
        assert answer.headers["X-Request-ID"] == "0123456789abcdef"


async def test_request_id_is_made_when_absent(wire: Wire) -> None:
    made = {(await wire.request("GET", "/")).headers["X-Request-ID"] for _ in range(3)}
    assert len(made) == 3


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
        assert (await wire.request("GET", target)).http_status == 200
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


async def test_body_without_a_token_is_not_asked_for(serve: Callable[..., Awaitable[Wire]]) -> None:
    wire = await serve(token_sha256=HASH)
    connection = await wire.connect()
    await connection.send(
        request_bytes(
            "POST", "/upload", headers={"Expect": "100-continue", "Content-Length": "1000000000"}
        )
    )
    answer = await connection.receive()
    assert (answer.http_status, answer.headers["Connection"]) == (401, "close")


async def test_expectation_is_met_once_the_request_may_go_on(wire: Wire) -> None:
    connection = await wire.connect()
    body = b'{"command":"echo hi"}'
    await connection.send(
        request_bytes(
            "POST",
            "/execute",
            headers=JSON | {"Expect": "100-continue", "Content-Length": str(len(body))},
        )
    )
    assert (await connection.receive()).http_status == 100
    await connection.send(body)
    assert (await connection.receive()).json()["stdout"] == "hi\n"


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


async def test_body_that_breaks_its_own_encoding_is_the_callers_fault(wire: Wire) -> None:
    connection = await wire.connect()
    await connection.send(
        b"POST /execute HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    await connection.send(b"xyz\r\n")
    assert (await connection.receive()).http_status == 400


@pytest.mark.parametrize("path", ["/execute", "/v1/executions", "/v1/fs/mkdir"])
async def test_body_that_is_compressed_is_refused_by_name(wire: Wire, path: str) -> None:
    body = gzip.compress(b'{"command": "true"}')
    answer = await wire.request("POST", path, body, JSON | {"Content-Encoding": "gzip"})
    assert answer.http_status == 400
    assert "Content-Encoding" in answer.json()["message"]


async def test_what_is_no_http_is_400_and_harms_nobody_else(wire: Wire) -> None:
    connection = await wire.connect()
    await connection.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nbroken header\x00: secret\r\n\r\n")
    assert (await connection.receive()).http_status == 400
    await connection.close()
    assert (await wire.request("GET", "/")).http_status == 200


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
    (record,) = (record for record in caplog.records if record.name == "execd.api")
    fields = vars(record)
    assert (fields["method"], fields["path"], fields["http_status"]) == ("GET", "/list/a%20b", 404)
    assert fields["request_id"] == "abc"
    assert fields["sent_bytes"] > 100
    assert 0 < fields["duration_seconds"] < 10
    assert "hidden" not in str(fields)


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


def test_the_routes_of_each_module_are_served() -> None:
    served = {route.handler.__module__ for route in routes()}
    folder = Path(execd.__file__).parent
    modules = {
        ".".join(path.relative_to(folder.parent).with_suffix("").parts)
        for path in (folder / "api").rglob("*.py")
        if path.stem != "app" and "\ndef routes(" in path.read_text()
    }
    assert modules <= served
    assert len(modules) > 5
