"""The protocols in which a subject takes commands, each as the peer's own clients speak it.

A dialect makes the bytes of a command and of a probe, and reads a reply. Commands run in a shell:
of the server's choice where the protocol has a command line (python_runtime, OpenSandbox), else
the shell that the peer's own client names.
"""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.wires import Grpc, Http11, Wire

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Dialect:
    name: str
    wire: Callable[[], Wire]
    payload: Callable[[str], bytes]
    """Of a command line."""
    is_success: Callable[[bytes], bool]
    """Whether the reply reports exit code 0. Every reply of a measurement is asked."""
    output: Callable[[bytes], bytes]
    """Standard output in a successful reply."""
    probe_path: str
    """Of the health route, by HTTP/1.1."""


def http_request(
    method: str,
    path: str,
    body: bytes = b"",
    content_type: str = "application/json",
    *,
    more: str = "",
) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{more}"
    if method != "GET":
        head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def _runtime_payload(command: str) -> bytes:
    return http_request("POST", "/execute", json.dumps({"command": command}).encode())


def _runtime_success(reply: bytes) -> bool:
    return b'"exit_code":0' in reply


def _runtime_output(reply: bytes) -> bytes:
    return str(json.loads(reply)["stdout"]).encode()


def _length_delimited(number: int, value: bytes) -> bytes:
    """A field of a protobuf message, of wire type 2."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """The value, and where the next field begins."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _sandboxd_payload(command: str) -> bytes:
    """ExecuteRequest of process.v1.ProcessService: config = 1, of which command = 1."""
    words = (b"/bin/sh", b"-c", command.encode())
    return _length_delimited(1, b"".join(_length_delimited(1, word) for word in words))


def _sandboxd_success(reply: bytes) -> bool:
    """ExecuteResponse: exit_code = 1, stdout = 2, stderr = 3. The exit code 0 is absent, and any
    other comes first, because both serializers write fields by their numbers."""
    return not reply.startswith(b"\x08")


def _sandboxd_output(reply: bytes) -> bytes:
    at, output = 0, b""
    while at < len(reply):
        key, at = _read_varint(reply, at)
        value, at = _read_varint(reply, at)
        if key & 7 == 2:
            output = reply[at : at + value] if key >> 3 == 2 else output
            at += value
    return output


def _opensandbox_payload(command: str) -> bytes:
    body = json.dumps({"command": command}).encode()
    return http_request("POST", "/command", body, more="Accept: text/event-stream\r\n")


def _opensandbox_success(reply: bytes) -> bool:
    return b'"execution_complete"' in reply


def _opensandbox_output(reply: bytes) -> bytes:
    """Each event is a line of bare JSON."""
    found = b""
    for line in reply.splitlines():
        if b'"stdout"' in line:
            found += json.loads(line)["text"].encode()
    return found


def _e2b_payload(command: str) -> bytes:
    """Without the login shell of E2B's clients: the profile of the machine would be measured."""
    process = {"cmd": "/bin/sh", "args": ["-c", command]}
    body = _connect_message(json.dumps({"process": process, "stdin": False}).encode())
    more = "Connect-Protocol-Version: 1\r\n"
    path = "/process.Process/Start"
    return http_request("POST", path, body, "application/connect+json", more=more)


def _connect_message(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


def _e2b_success(reply: bytes) -> bool:
    return b'"exit status 0"' in reply


def _e2b_output(reply: bytes) -> bytes:
    """The messages of a Connect stream: a byte of flags and four of length before each."""
    found, at = b"", 0
    while at < len(reply):
        size = int.from_bytes(reply[at + 1 : at + 5], "big")
        event = json.loads(reply[at + 5 : at + 5 + size]).get("event", {})
        found += base64.b64decode(event.get("data", {}).get("stdout", ""))
        at += 5 + size
    return found


_EXECUTE = "/process.v1.ProcessService/Execute"
DIALECTS = {
    each.name: each
    for each in (
        Dialect("python_runtime", Http11, _runtime_payload, _runtime_success, _runtime_output, "/"),
        Dialect(
            "sandboxd",
            lambda: Grpc(_EXECUTE),
            _sandboxd_payload,
            _sandboxd_success,
            _sandboxd_output,
            "/v1/health",
        ),
        Dialect(
            "opensandbox",
            Http11,
            _opensandbox_payload,
            _opensandbox_success,
            _opensandbox_output,
            "/ping",
        ),
        Dialect("e2b", Http11, _e2b_payload, _e2b_success, _e2b_output, "/health"),
    )
}
