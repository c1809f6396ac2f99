"""HTTP/1.1 and gRPC as bytes in and bytes out, without sockets: just enough for a load generator.

A library of HTTP would cost the client more than a server costs, and the client would limit the
figures. So a request is made once, down to the bytes, and a reply is read to its end and no deeper.
"""

from __future__ import annotations

import struct
from typing import Protocol


class UnexpectedReply(Exception):
    """A reply that the benchmark would wrongly count as work."""


class Wire(Protocol):
    """One connection: what to send, and where a reply ends."""

    def opening(self) -> bytes:
        """The bytes at the start of the connection."""

    def request(self, payload: bytes) -> bytes:
        """The bytes of the next request."""

    def receive(self, data: bytes) -> tuple[bytes, bytes | None]:
        """Take received bytes. Return the bytes to send at once, and the body of the reply if the
        reply is complete. Raise UnexpectedReply for a failed request."""


class Http11:
    """One request at a time on a connection that stays open (RFC 9112)."""

    def __init__(self) -> None:
        self._received = b""

    def opening(self) -> bytes:
        return b""

    def request(self, payload: bytes) -> bytes:
        return payload

    def receive(self, data: bytes) -> tuple[bytes, bytes | None]:
        self._received += data
        head, separator, rest = self._received.partition(b"\r\n\r\n")
        body = _body(head, rest) if separator else None
        if body is not None:
            self._received = b""
        return b"", body


_GOOD = tuple(b"HTTP/1.1 %d" % code for code in (200, 201, 204, 206))


def _body(head: bytes, rest: bytes) -> bytes | None:
    """The body, or None while bytes are missing."""
    if not head.startswith(_GOOD):
        raise UnexpectedReply(head.decode(errors="replace"))
    if head.startswith(b"HTTP/1.1 204"):
        return b""
    lowered = head.lower() + b"\r\n"
    _, is_sized, value = lowered.partition(b"\r\ncontent-length:")
    if is_sized:
        return rest if len(rest) >= int(value[: value.index(b"\r")]) else None
    if b"\r\ntransfer-encoding: chunked\r\n" not in lowered:
        raise UnexpectedReply(head.decode(errors="replace"))
    return joined_chunks(rest) if rest.endswith(b"0\r\n\r\n") else None


def joined_chunks(rest: bytes) -> bytes | None:
    """The content of a chunked body without trailers, or None while bytes are missing."""
    pieces: list[bytes] = []
    at = 0
    while (line_end := rest.find(b"\r\n", at)) >= 0:
        size = int(rest[at:line_end].partition(b";")[0], 16)
        at = line_end + 2
        if size == 0:
            return b"".join(pieces)
        pieces.append(rest[at : at + size])
        at += size + 2
    return None


_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM = _ACK = 1
_END_HEADERS = 4
_LARGEST_WINDOW, _DEFAULT_WINDOW = (1 << 31) - 1, (1 << 16) - 1
_INITIAL_WINDOW_SIZE = 4


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2 (RFC 9113, section 4.1)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _field(name: str, value: str) -> bytes:
    """A literal header field without indexing and without Huffman coding (RFC 7541, 6.2.2)."""
    assert len(name) < 127
    assert len(value) < 127
    return bytes((0, len(name))) + name.encode() + bytes((len(value),)) + value.encode()


class Grpc:
    """Unary calls of one method, one call at a time (gRPC over HTTP/2). The windows for replies are
    as large as HTTP/2 allows, so that flow control never delays a server."""

    def __init__(self, path: str) -> None:
        self._head = b"".join(
            _field(name, value)
            for name, value in (
                (":method", "POST"),
                (":scheme", "http"),
                (":path", path),
                (":authority", "localhost"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
            )
        )
        self._stream = -1
        self._received = b""
        self._message = b""

    def opening(self) -> bytes:
        settings = struct.pack(">HI", _INITIAL_WINDOW_SIZE, _LARGEST_WINDOW)
        update = struct.pack(">I", _LARGEST_WINDOW - _DEFAULT_WINDOW)
        return (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + frame(_SETTINGS, 0, 0, settings)
            + frame(_WINDOW_UPDATE, 0, 0, update)
        )

    def request(self, payload: bytes) -> bytes:
        self._stream += 2
        self._message = b""
        message = struct.pack(">BI", 0, len(payload)) + payload
        return frame(_HEADERS, _END_HEADERS, self._stream, self._head) + frame(
            _DATA, _END_STREAM, self._stream, message
        )

    def receive(self, data: bytes) -> tuple[bytes, bytes | None]:
        self._received += data
        answers, reply = b"", None
        while (taken := self._next_frame()) is not None:
            kind, flags, payload = taken
            if kind == _DATA:
                self._message += payload
            elif kind == _PING and not flags & _ACK:
                answers += frame(_PING, _ACK, 0, payload)
            elif kind == _SETTINGS and not flags & _ACK:
                answers += frame(_SETTINGS, _ACK, 0, b"")
            elif kind in (_RST_STREAM, _GOAWAY):
                raise UnexpectedReply(f"frame of type {kind}: {payload!r}")
            if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                reply = self._complete_message()
        return answers, reply

    def _next_frame(self) -> tuple[int, int, bytes] | None:
        if len(self._received) < 9:
            return None
        end = 9 + int.from_bytes(self._received[:3], "big")
        if len(self._received) < end:
            return None
        kind, flags, payload = self._received[3], self._received[4], self._received[9:end]
        self._received = self._received[end:]
        return kind, flags, payload

    def _complete_message(self) -> bytes:
        """A failed call ends without a message: its trailers come alone."""
        if len(self._message) < 5:
            raise UnexpectedReply("the call ended without a message")
        assert len(self._message) == 5 + int.from_bytes(self._message[1:5], "big")
        return self._message[5:]
