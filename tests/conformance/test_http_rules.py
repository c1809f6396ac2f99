"""HTTP itself, as bare sockets see the daemon: expectations, framing, malformed requests,
half-closed connections."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from typing import TYPE_CHECKING

import pytest

from .target import request_bytes

if TYPE_CHECKING:
    import httpx

    from .target import Target

GIB = 1 << 30


def receive_all(target: Target, sent: bytes) -> bytes:
    """Send the bytes and return all that comes back until the daemon closes the connection."""
    received = b""
    with target.connect() as connection:
        connection.sendall(sent)
        while data := connection.recv(1 << 16):
            received += data
            if is_whole(received):
                # Otherwise the daemon waits 10 s for the rest of a body.
                with contextlib.suppress(OSError):  # the daemon was first
                    connection.shutdown(socket.SHUT_WR)
    return received


def is_whole(answer: bytes) -> bool:
    """Whether the answer has come with the body. `100 Continue` has no length, and is not whole."""
    head, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\ncontent-length: *(\d+)", head)
    return length is not None and len(body) >= int(length[1])


@pytest.mark.parametrize(
    ("method", "path", "http_status"),
    [
        ("POST", "/nothing", b"404"),
        ("POST", "/v1/sessions/none/input", b"404"),
        ("POST", "/v1/executions/none/input", b"404"),
        ("PUT", "/v1/executions", b"405"),
        ("PUT", "/v1/files/refused-early", b"412"),
        ("POST", "/v1/executions", b"413"),
        ("POST", "/execute", b"413"),
    ],
)
def test_a_refusal_that_needs_no_body_comes_instead_of_100_continue(
    target: Target, method: str, path: str, http_status: bytes
) -> None:
    head = request_bytes(method, path, headers={"Expect": "100-continue", "If-Match": '"no"'})
    head = head.replace(b"Content-Length: 0", b"Content-Length: %d" % GIB)
    received = receive_all(target, head)
    assert received.split(b" ")[1] == http_status
    assert b"100 Continue" not in received


HOST = b"Host: localhost\r\n"


@pytest.mark.parametrize(
    ("sent", "http_status", "rule"),
    [
        (b"GET / HTTP/1.1\r\n" + HOST * 2 + b"\r\n", 400, "Host: given more than once"),
        (b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n", 400, "%20"),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A: " + b"a" * 9000 + b"\r\n\r\n", 431, "8190"),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 431, "request line"),
        (
            b"PUT /v1/files/coded HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n"
            + HOST
            + b"\r\n0\r\n\r\n",
            501,
            "Transfer-Encoding",
        ),
    ],
)
def test_a_malformed_request_is_refused_with_the_rule_that_it_breaks(
    target: Target, sent: bytes, http_status: int, rule: str
) -> None:
    head, body = receive_all(target, sent.replace(HOST, HOST + b"Connection: close\r\n", 1)).split(
        b"\r\n\r\n", 1
    )
    assert int(head.split(b" ")[1]) == http_status
    assert b"x-request-id: " in head.lower()
    assert rule in json.loads(body)["message"]


def test_slashes_that_a_base_url_adds_make_no_difference(target: Target) -> None:
    for path in ("//list/", "//v1/health", "/v1//health", "//"):
        assert target.request("GET", path).http_status == 200
    for path in ("//list/../../etc", "//download/..//etc/passwd"):
        assert target.request("GET", path).http_status == 403


def receive_half_closed(target: Target, sent: bytes) -> bytes:
    received = b""
    with target.connect() as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        while data := connection.recv(1 << 16):
            received += data
    return received


def test_caller_that_ends_its_sending_half_still_gets_the_reply(target: Target) -> None:
    for method, path, body, http_status in (
        ("GET", "/", b"", b"200"),
        ("GET", "/list/.", b"", b"200"),
        ("PUT", "/v1/files/half-closed", b"content", b"204"),
        ("GET", "/v1/files/half-closed", b"", b"200"),
        ("GET", "/v1/executions", b"", b"200"),
    ):
        received = receive_half_closed(target, request_bytes(method, path, body))
        assert received.split(b" ", 2)[1] == http_status


def test_half_close_on_a_route_that_runs_something_is_leaving(
    target: Target, client: httpx.Client
) -> None:
    body = json.dumps({"command": "sleep 60"})
    with target.connect() as connection:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        connection.sendall(request_bytes("POST", "/v1/executions", body.encode(), headers))
        head = connection.recv(1 << 16)
        assert head.startswith(b"HTTP/1.1 200")
        location = re.search(rb"(?i)location: (\S+)", head)
        assert location is not None
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass  # until the daemon closes, long before the end of the program
    ended = client.get(location[1].decode(), params={"wait_seconds": 25}).json()
    assert ended["exit_reason"] == "client_disconnected"


def test_unknown_expectation_is_417_and_names_the_only_one(target: Target) -> None:
    for method, path in (("GET", "/v1/health"), ("POST", "/v1/executions"), ("GET", "/nothing")):
        answer = target.request(method, path, headers={"Expect": "foo"})
        assert answer.http_status == 417
        assert "100-continue" in answer.json()["message"]
