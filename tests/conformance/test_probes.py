"""Probes, routing and errors: the daemon's answers to any HTTP peer before any execution."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import httpx

    from .target import Target


def test_root_says_that_the_runtime_is_active(client: httpx.Client) -> None:
    response = client.get("/")
    assert response.status_code == 200
    body = response.json()
    assert body["status"] == "ok"
    assert body["message"] == "Sandbox Runtime is active."
    assert response.headers["server"] == f"execd/{body['version']}"


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/v1/health"])
def test_probe_answers_get_and_head_alike(client: httpx.Client, path: str) -> None:
    got, head = client.get(path), client.head(path)
    assert (got.status_code, head.status_code) == (200, 200)
    assert head.content == b""
    assert head.headers["content-type"] == got.headers["content-type"]


def test_health_tells_the_uptime(client: httpx.Client) -> None:
    body = client.get("/v1/health").json()
    assert body["status"] == "ok"
    assert type(body["uptime_seconds"]) is int
    assert body["uptime_seconds"] >= 0


def test_capabilities_are_a_json_object(client: httpx.Client) -> None:
    response = client.get("/v1/capabilities")
    assert response.status_code == 200
    assert isinstance(response.json(), dict)
    assert response.json()


@pytest.mark.parametrize("path", ["/nothing", "/nothing/here", "/execut"])
def test_unknown_route_is_404_in_the_dialect_s_shape(client: httpx.Client, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 404
    assert response.json() == {"detail": "Not Found"}
    response = client.get(f"/v1{path}")
    message = "path: no route of this daemon has this path"
    assert response.status_code == 404
    assert response.json() == {"code": "NOT_FOUND", "message": message}


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/execute", "POST"),
        ("PUT", "/execute", "POST"),
        ("GET", "/upload", "POST"),
        ("POST", "/list/x", "GET"),
        ("POST", "/exists/x", "GET"),
        ("DELETE", "/download/x", "GET"),
        ("POST", "/", "GET"),
    ],
)
def test_wrong_method_is_405_and_names_the_right_one(
    client: httpx.Client, method: str, path: str, allowed: str
) -> None:
    response = client.request(method, path)
    assert response.status_code == 405
    assert response.json() == {"detail": "Method Not Allowed"}
    assert allowed in re.split(r",\s*", response.headers["allow"])


def test_wrong_method_of_v1_is_405_and_names_the_right_ones(client: httpx.Client) -> None:
    response = client.put("/v1/executions")
    message = "method: this path allows GET, HEAD, POST"
    assert response.status_code == 405
    assert response.json() == {"code": "METHOD_NOT_ALLOWED", "message": message}
    assert response.headers["allow"] == "GET,HEAD,POST"


@pytest.mark.parametrize(
    ("path", "http_status"),
    [
        ("/list", 200),
        ("/list/", 200),
        ("/list/.", 200),
        ("/list//", 200),
        ("/list/%2E", 200),
        ("/exists", 200),
        ("/exists/", 200),
        ("/exists/.", 200),
        ("/download", 404),
        ("/download/", 404),
        ("/download/.", 404),
    ],
)
def test_base_dir_is_reached_by_every_spelling_without_a_redirect(
    target: Target, path: str, http_status: int
) -> None:
    answer = target.request("GET", path)
    assert answer.http_status == http_status
    assert answer.headers["location"] is None


def test_execute_with_a_trailing_slash_is_not_redirected(target: Target) -> None:
    answer = target.request(
        "POST",
        "/execute/",
        json.dumps({"command": "echo hi"}).encode(),
        {"Content-Type": "application/json"},
    )
    assert answer.http_status == 200
    assert answer.json()["stdout"] == "hi\n"


def test_request_id_is_echoed(client: httpx.Client) -> None:
    assert (
        client.get("/", headers={"X-Request-ID": "0123456789abcdef"}).headers["x-request-id"]
        == "0123456789abcdef"
    )


def test_request_id_is_made_when_absent(client: httpx.Client) -> None:
    first, second = (client.get("/").headers["x-request-id"] for _ in range(2))
    assert first
    assert first != second


def test_request_id_of_a_failed_request_is_echoed_too(client: httpx.Client) -> None:
    for method, path in (
        ("GET", "/nothing"),
        ("GET", "/execute"),
        ("POST", "/execute"),
        ("GET", "/download/none"),
    ):
        response = client.request(method, path, headers={"X-Request-ID": "cafe"})
        assert response.status_code >= 400
        assert response.headers["x-request-id"] == "cafe"


def test_foreign_origin_is_refused(client: httpx.Client) -> None:
    response = client.post(
        "/execute", json={"command": "echo hi"}, headers={"Origin": "https://evil.example"}
    )
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers


def test_a_second_origin_header_is_judged_too(target: Target) -> None:
    own = f"Origin: http://localhost:{target.address[1]}\r\n"
    for headers in (
        own + "Origin: https://evil.example\r\n",
        "Origin: https://evil.example\r\n" + own,
    ):
        with target.connect() as connection:
            connection.sendall(
                (
                    "GET /v1/metadata HTTP/1.1\r\n"
                    f"Host: localhost:{target.address[1]}\r\n"
                    f"{headers}\r\n"
                ).encode()
            )
            # 400: the parser of HTTP may refuse the repeated header first.
            assert connection.recv(1 << 16).split(b" ")[1] in (b"403", b"400")


def test_request_caused_by_another_site_is_refused(client: httpx.Client) -> None:
    crossing = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "no-cors",
        "Sec-Fetch-Dest": "image",
    }
    for path in ("/", "/list/.", "/v1/capabilities"):
        assert client.get(path, headers=crossing).status_code == 403
    assert (
        client.post(
            "/execute", json={"command": "true"}, headers={"Sec-Fetch-Site": "cross-site"}
        ).status_code
        == 403
    )


def test_link_on_another_site_leads_to_pages_without_data_only(client: httpx.Client) -> None:
    link = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    assert client.get("/", headers=link).status_code == 200
    assert client.get("/list/.", headers=link).status_code == 403


def test_bytes_that_are_not_http_get_400_and_do_no_harm(
    target: Target, client: httpx.Client
) -> None:
    with target.connect() as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert connection.recv(1 << 16).split(b"\r\n")[0].split()[1] == b"400"
    assert client.get("/").status_code == 200


def test_pipelined_requests_are_answered_in_order(target: Target) -> None:
    def post(word: str) -> bytes:
        body = json.dumps({"command": f"echo {word}"}).encode()
        return (
            b"POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)
        ) + body

    with target.connect() as connection:
        connection.sendall(
            post("first")
            + post("second")
            + b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        received = b""
        while data := connection.recv(1 << 16):
            received += data
    assert received.count(b"HTTP/1.1 200") == 3
    assert received.index(b"first") < received.index(b"second") < received.index(b"Sandbox Runtime")


def test_expect_100_continue_is_honoured(target: Target) -> None:
    body = b'{"command": "echo hi"}'
    with target.connect() as connection:
        connection.sendall(
            b"POST /execute HTTP/1.1\r\n"
            b"Host: localhost\r\n"
            b"Connection: close\r\n"
            b"Content-Type: application/json\r\n"
            b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        received = b""
        while data := connection.recv(1 << 16):
            received += data
    assert b"hi\\n" in received


def test_connection_is_kept_alive_between_requests(target: Target) -> None:
    with target.connect() as connection:
        for _ in range(3):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            received = b""
            while b"Sandbox Runtime is active." not in received or not received.endswith(b"}"):
                data = connection.recv(1 << 16)
                assert data, "the connection was closed"
                received += data
