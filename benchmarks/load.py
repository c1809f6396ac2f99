"""The load generator: a separate process that speaks just enough HTTP/1.1, so that the server and
not the client limits the figures.

    python -m benchmarks.load PORT SCENARIO

An HTTP library would cost the client more than either server costs. Requests are made once, down to
the bytes; responses are read to their Content-Length. Prints a line of JSON: milliseconds, requests
per second, MB per second.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SEQUENTIAL_PROBES = 2000
SEQUENTIAL_COMMANDS = 300
CROWD = 32
BACKGROUND = 16
CROWD_SECONDS = 3.0
MIXED_CROWD_SECONDS = 8.0
PROBE_PAUSE_SECONDS = 0.01
FILE_BYTES = 1 << 30
STREAM_BYTES = 1 << 25
CHUNK = bytes(1 << 20)

PROBE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
PROBE_ONCE = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def command_request(command: str) -> bytes:
    body = json.dumps({"command": command}).encode()
    head = (
        "POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: "
    )
    return b"%b%d\r\n\r\n%b" % (head.encode(), len(body), body)


COMMAND = command_request("true")
SCRIPT = (
    "import argparse, collections, json, pathlib, re, tempfile; "
    "print(json.dumps(len(re.findall('a', 'banana'))))"
)
MIX = ["true", "ls", "seq 200 | sort -n | tail -1", "python3 script.py"]
"""Commands as agents send them: nothing, a look, a pipeline, a script."""


def content_length(head: bytes) -> int:
    """Of a response that must be a 200; the benchmark would count any error as work."""
    assert head.startswith(b"HTTP/1.1 200"), head
    lowered = head.lower()
    at = lowered.index(b"content-length:") + len(b"content-length:")
    return int(lowered[at : lowered.index(b"\r\n", at)])


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=120)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def exchange(connection: socket.socket, request: bytes) -> None:
    connection.sendall(request)
    received = connection.recv(65536)
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    missing = content_length(head + b"\r\n") - len(body)
    while missing > 0:
        missing -= len(connection.recv(65536))


class Connection(asyncio.Protocol):
    """Sends the requests in turn, again and again; ``on_answer`` is told how long each answer took,
    in seconds."""

    def __init__(self, requests: list[bytes], on_answer: Callable[[float], None]) -> None:
        self.requests, self.on_answer = itertools.cycle(requests), on_answer
        self.received = b""
        self.sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.send()

    def send(self) -> None:
        self.sent_at = time.perf_counter()
        self.transport.write(next(self.requests))

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, separator, body = self.received.partition(b"\r\n\r\n")
        if not separator or len(body) < content_length(head + b"\r\n"):
            return
        self.received = b""
        self.on_answer(time.perf_counter() - self.sent_at)
        self.send()


def quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "p50_ms": statistics.median(ordered) * 1000,
        "p95_ms": ordered[int(len(ordered) * 0.95)] * 1000,
        "p99_ms": ordered[int(len(ordered) * 0.99)] * 1000,
    }


def command_count() -> int:
    """The number of commands in the scenario "command", including the uncounted first commands."""
    return SEQUENTIAL_COMMANDS + SEQUENTIAL_COMMANDS // 10


def sequential(port: int, request: bytes, count: int) -> dict[str, float]:
    with connect(port) as connection:
        for _ in range(count // 10):
            exchange(connection, request)
        taken = []
        for _ in range(count):
            started = time.perf_counter()
            exchange(connection, request)
            taken.append(time.perf_counter() - started)
    return quantiles(taken)


async def crowd(port: int) -> dict[str, float]:
    """Commands per second on keep-alive connections that are never idle."""
    taken: list[float] = []
    transports = await _open(port, COMMAND, taken, CROWD)
    # the figure excludes the first answers and the making of connections
    await asyncio.sleep(0.5)
    taken.clear()
    await asyncio.sleep(CROWD_SECONDS)
    rate = len(taken) / CROWD_SECONDS
    for transport in transports:
        transport.abort()
    return {"per_second": rate} | quantiles(taken)


async def probes_under_load(port: int) -> dict[str, float]:
    """GET / on a connection while more connections run command after command."""
    commands: list[float] = []
    probes: list[float] = []
    transports = await _open(port, COMMAND, commands, BACKGROUND)
    transports += await _open(port, PROBE, probes, 1)
    await asyncio.sleep(0.5)
    probes.clear()
    await asyncio.sleep(CROWD_SECONDS)
    for transport in transports:
        transport.abort()
    return quantiles(probes)


async def mixed_crowd(port: int) -> dict[str, float]:
    """Different commands on CROWD connections, and ``GET /`` from another process, on a new
    connection each time."""
    with connect(port) as connection:
        exchange(connection, command_request(f"echo {shlex.quote(SCRIPT)} > script.py"))
    loop = asyncio.get_running_loop()
    requests = [command_request(command) for command in MIX]
    taken: list[float] = []
    transports = []
    for number in range(CROWD):
        first = number % len(MIX)
        order = requests[first:] + requests[:first]
        make = functools.partial(Connection, order, taken.append)
        transports.append((await loop.create_connection(make, "127.0.0.1", port))[0])
    await asyncio.sleep(1.0)
    taken.clear()
    prober = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.load", str(port), "prober"), stdout=subprocess.PIPE
    )
    began = time.perf_counter()
    probes, _ = await prober.communicate()
    rate = len(taken) / (time.perf_counter() - began)
    for transport in transports:
        transport.abort()
    found = {f"probe_{name}": value for name, value in json.loads(probes).items()}
    return found | {"per_second": rate} | quantiles(taken)


def prober(port: int) -> dict[str, float]:
    """``GET /`` like kubelet's probe, but more often."""
    with contextlib.suppress(OSError):
        os.nice(-15)
    taken = []
    end = time.perf_counter() + MIXED_CROWD_SECONDS
    while time.perf_counter() < end:
        began = time.perf_counter()
        with connect(port) as connection:
            exchange(connection, PROBE_ONCE)
        taken.append(time.perf_counter() - began)
        time.sleep(PROBE_PAUSE_SECONDS)
    return quantiles(taken) | {"max_ms": max(taken) * 1000}


async def _open(
    port: int, request: bytes, taken: list[float], count: int
) -> list[asyncio.Transport]:
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: Connection([request], taken.append), "127.0.0.1", port)
        for _ in range(count)
    ]
    return [transport for transport, _ in made]


def stream(port: int) -> dict[str, float]:
    """A program's output as server-sent events; the MB are the program's."""
    command = f"yes {'0123456789' * 7} | head -c {STREAM_BYTES}"
    body = json.dumps({"command": command}).encode()
    head = (
        "POST /v1/executions HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n"
        "Connection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    received, end = 0, b""
    with connect(port) as connection:
        started = time.perf_counter()
        connection.sendall(head.encode() + body)
        while data := connection.recv(1 << 20):
            received += len(data)
            end = (end + data)[-1024:]
        seconds = time.perf_counter() - started
    assert received > STREAM_BYTES, f"only {received} bytes came"
    assert b'"total_bytes":%d,' % STREAM_BYTES in end, end  # in the event that reports the end
    return {"mb_per_second": STREAM_BYTES / 1e6 / seconds}


def upload(port: int, size: int = FILE_BYTES) -> dict[str, float]:
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="large.bin"\r\n\r\n'
    tail = b"\r\n--b--\r\n"
    length = len(head) + size + len(tail)
    with connect(port) as connection:
        started = time.perf_counter()
        connection.sendall(
            b"POST /upload HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (length, head)
        )
        for _ in range(size // len(CHUNK)):
            connection.sendall(CHUNK)
        exchange(connection, tail)
        return {"mb_per_second": size / 1e6 / (time.perf_counter() - started)}


def download(port: int, size: int = FILE_BYTES) -> dict[str, float]:
    buffer = bytearray(1 << 20)
    with connect(port) as connection:
        started = time.perf_counter()
        connection.sendall(b"GET /download/large.bin HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while b"\r\n\r\n" not in received:
            received += connection.recv(65536)
        head, _, body = received.partition(b"\r\n\r\n")
        missing = content_length(head + b"\r\n") - len(body)
        assert missing + len(body) == size
        while missing:
            count = connection.recv_into(buffer)
            assert count, "the connection was closed"
            missing -= count
        return {"mb_per_second": size / 1e6 / (time.perf_counter() - started)}


def run(port: int, scenario: str) -> dict[str, float]:
    match scenario:
        case "probe":
            return sequential(port, PROBE, SEQUENTIAL_PROBES)
        case "command":
            return sequential(port, COMMAND, SEQUENTIAL_COMMANDS)
        case "crowd":
            return asyncio.run(crowd(port))
        case "loaded-probe":
            return asyncio.run(probes_under_load(port))
        case "mixed-crowd":
            return asyncio.run(mixed_crowd(port))
        case "prober":
            return prober(port)
        case "stream":
            return stream(port)
        case "upload":
            return upload(port)
        case "download":
            return download(port)
    raise SystemExit(f"no such scenario: {scenario}")


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), sys.argv[2])))
