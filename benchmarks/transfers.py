"""Large transfers on one connection: a program's output as events, an upload, a download. Blocking
sockets and nothing else, so that the server and not the client limits the figures."""

from __future__ import annotations

import json
import socket
import time

FILE_BYTES = 1 << 30
STREAM_BYTES = 1 << 25
CHUNK = bytes(1 << 20)


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
