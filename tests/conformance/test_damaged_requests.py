"""Raw bytes that are nearly a request, or nearly a message of a WebSocket."""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket
import struct
import time
from typing import TYPE_CHECKING

from hypothesis import example, given

from tests.fuzz.damage import damaged
from tests.profiles import examples

from ..patience import patience
from .target import READ_SECONDS, request_bytes, wait_until

if TYPE_CHECKING:
    from .target import Target

FORM = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="damaged"\r\n\r\nx\r\n--b--\r\n'
)
JSON = {"Content-Type": "application/json"}
REQUESTS = [
    request_bytes("GET", "/v1/files/?limit=3", headers={"Range": "bytes=0-5", "Accept": "*/*"}),
    request_bytes("POST", "/execute", b'{"command": "true"}', JSON),
    request_bytes("PUT", "/v1/files/damaged?append=true", b"content"),
    request_bytes("POST", "/upload", FORM, {"Content-Type": "multipart/form-data; boundary=b"}),
    request_bytes("POST", "/v1/code", b'{"code": "1"}', {**JSON, "Idempotency-Key": "damaged"}),
    b"POST /execute HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'13\r\n{"command": "true"}\r\n0\r\n\r\n',
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2,
    b"PUT /v1/files/damaged HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
    b"Content-Length: 1\r\n\r\nx",
]


def frame(opcode: int, payload: bytes, *, is_last: bool = True) -> bytes:
    """A frame of a client (RFC 6455 §5.2). The mask is zero, so the payload stays legible."""
    is_short = len(payload) <= 125
    length = bytes([0x80 | (len(payload) if is_short else 126)])
    if not is_short:
        length += struct.pack(">H", len(payload))
    return bytes([0x80 * is_last | opcode]) + length + b"\0" * 4 + payload


TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9
MESSAGES = [
    frame(TEXT, b'{"type":"resize","cols":80,"rows":24}') + frame(BINARY, b"typed\r"),
    frame(TEXT, b'{"type":"signal",', is_last=False) + frame(0, b'"signal":"SIGWINCH"}'),
    frame(PING, b"ping") + frame(BINARY, b"x" * 300) + frame(CLOSE, struct.pack(">H", 1000)),
    frame(TEXT, b'{"type":"eof"}'),
]


def exchange(target: Target, opening: bytes, rest: bytes | None = None) -> bytes:
    """All that comes back until the daemon closes the connection. ``rest`` is sent after the first
    bytes of the reply to ``opening``; then the sending half is closed."""
    received = b""
    with socket.create_connection(target.address, READ_SECONDS) as connection:
        try:
            connection.sendall(opening)
            if rest is not None:
                received += connection.recv(65536)
                connection.sendall(rest)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                received += piece
        except (ConnectionResetError, BrokenPipeError):
            pass  # refused before everything was sent
    return received


@examples(3)
@given(opening=damaged(REQUESTS))
@example(opening=request_bytes("PUT", "/v1/files/damaged?%ff=true", b"content"))
def test_damaged_request_is_answered_or_cut_and_is_no_fault_of_the_daemon(
    target: Target, opening: bytes
) -> None:
    received = exchange(target, opening)
    if received:
        version, http_status = received.split(b" ", 2)[:2]
        assert version in (b"HTTP/1.1", b"HTTP/1.0")
        assert http_status != b"500", received
    assert target.request("GET", "/").http_status == 200


def attach(path: str) -> bytes:
    """The handshake of a viewer."""
    return request_bytes(
        "GET",
        f"{path}/attach",
        headers={
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        },
    ).replace(b"Connection: close", b"Connection: Upgrade")


def type_and_read(target: Target, path: str, typed: bytes) -> None:
    """Type as a new viewer, and read until the program has echoed the text."""
    received = b""
    began = time.monotonic()
    with socket.create_connection(target.address, READ_SECONDS) as connection:
        connection.sendall(attach(path) + frame(BINARY, typed))
        while typed not in received:
            piece = connection.recv(65536)  # heartbeats come for as long as the program lives
            assert piece, received
            patience.check(began, READ_SECONDS, received)
            received += piece


ECHO = "stty raw -echo; trap '' HUP INT QUIT TERM USR1 USR2 ALRM PIPE TSTP; echo ready; exec cat"
"""An echo that typed control characters and common signals neither end nor stop. A damaged message
may be another valid message: an end of file, another signal. TSTP: gVisor's terminal sends the
signals of Ctrl-C, Ctrl-\\ and Ctrl-Z in raw mode too."""


@given(message=damaged(MESSAGES))
@example(message=frame(BINARY, b"\x03\x1c\x1a\x04"))
def test_damaged_message_of_a_viewer_ends_no_more_than_the_viewing(
    target: Target, message: bytes
) -> None:
    body = json.dumps({"command": ECHO, "pty": {"cols": 80, "rows": 24}, "detach": True})
    execution = target.request("POST", "/v1/executions", body.encode(), JSON).json()["id"]
    path = f"/v1/executions/{execution}"
    wait_until(
        lambda: b"ready" in target.request("GET", f"{path}/stdout").content,
        READ_SECONDS,
        "the terminal is raw",
    )
    received = exchange(target, attach(path), message)
    assert received.startswith(b"HTTP/1.1 101 "), received
    type_and_read(target, path, secrets.token_hex(8).encode())
    assert target.request("GET", path).json()["state"] == "RUNNING"
    kill = target.request("POST", f"{path}/kill", b'{"grace_seconds": 0}', JSON)
    assert kill.json()["exit_reason"] == "canceled"
    assert target.request("DELETE", path).http_status == 204
