"""The Connect protocol with JSON bodies: frames, errors, and the headers with durations. Pure.

https://connectrpc.com/docs/protocol. A unary call is a POST with a JSON message. A stream is a
sequence of frames: a byte of flags, the length as four bytes (big-endian), the message. The last
frame of a reply has the flag END, and tells the error if there is one. The HTTP status of a stream
is 200 even then.
"""

from __future__ import annotations

import base64
import binascii
import struct
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from execd.engine.engine_api import Conflict, InvalidArgument, NotSupported, PayloadTooLarge

if TYPE_CHECKING:
    from execd.engine.engine_api import ErrorCode, ExecdError

UNARY_TYPE = "application/json"
STREAM_TYPE = "application/connect+json"
COMPRESSED, END = 1, 2
MAX_TIMEOUT_DIGITS = 10
"""Digits of Connect-Timeout-Ms, by the protocol."""
KEEPALIVE_SECONDS = 90
"""The interval of keepalives without a header, as in envd."""

ConnectCode = Literal[
    "canceled",
    "unknown",
    "invalid_argument",
    "deadline_exceeded",
    "not_found",
    "already_exists",
    "permission_denied",
    "resource_exhausted",
    "failed_precondition",
    "out_of_range",
    "unimplemented",
    "internal",
    "unavailable",
    "unauthenticated",
]

CODES: dict[ErrorCode, ConnectCode] = {
    "INVALID_ARGUMENT": "invalid_argument",
    "UNAUTHENTICATED": "unauthenticated",
    "PERMISSION_DENIED": "permission_denied",
    "NOT_FOUND": "not_found",
    "REQUEST_TIMEOUT": "deadline_exceeded",
    "CONFLICT": "failed_precondition",
    "SESSION_BUSY": "failed_precondition",
    "GONE": "not_found",
    "PRECONDITION_FAILED": "failed_precondition",
    "PAYLOAD_TOO_LARGE": "resource_exhausted",
    "RANGE_NOT_SATISFIABLE": "out_of_range",
    "EXPECTATION_FAILED": "invalid_argument",
    "IDEMPOTENCY_MISMATCH": "invalid_argument",
    "RESOURCE_EXHAUSTED": "resource_exhausted",
    "HEADERS_TOO_LARGE": "invalid_argument",
    "INTERNAL": "internal",
    "NOT_SUPPORTED": "unimplemented",
    "UNAVAILABLE": "unavailable",
    "NO_SPACE": "resource_exhausted",
    "READ_ONLY": "permission_denied",
}
HTTP_STATUS: dict[ConnectCode, int] = {
    "canceled": 499,
    "unknown": 500,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "out_of_range": 400,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "unauthenticated": 401,
}
"""Of a unary reply: https://connectrpc.com/docs/protocol#error-codes."""

_HEAD = struct.Struct(">BI")


class AlreadyExists(Conflict):
    """The directory is there already; the E2B SDK tells this conflict from others."""


def code_of(error: ExecdError) -> ConnectCode:
    return "already_exists" if isinstance(error, AlreadyExists) else CODES[error.code]


def error_fields(code: ConnectCode, message: str) -> dict[str, str]:
    """Return the body of an error, without lone surrogates."""
    return {"code": code, "message": message.encode("utf-8", "replace").decode()}


def frame(message: Any, flags: int = 0) -> bytes:
    """Return the frame of a message, which is encoded as JSON."""
    assert flags in (0, END)
    body = msgspec.json.encode(message)
    return _HEAD.pack(flags, len(body)) + body


def end_frame(error: ExecdError | None = None) -> bytes:
    """Return the last frame of a stream."""
    if error is None:
        return frame({}, END)
    return frame({"error": error_fields(code_of(error), error.message)}, END)


class ConnectDecoder:
    """Bytes of a request in, messages out. Raises InvalidArgument, NotSupported (compression),
    PayloadTooLarge; the decoder is unusable afterwards."""

    def __init__(self, max_message_bytes: int) -> None:
        assert max_message_bytes > 0
        self._max_message_bytes = max_message_bytes
        self._buffer = bytearray()

    @property
    def held_bytes(self) -> int:
        """The bytes of a message that is not whole yet."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the messages that the chunk completes."""
        self._buffer += chunk
        found: list[bytes] = []
        at = 0
        while len(self._buffer) - at >= _HEAD.size:
            flags, size_bytes = _HEAD.unpack_from(self._buffer, at)
            self._check(flags, size_bytes)
            start = at + _HEAD.size
            if len(self._buffer) - start < size_bytes:
                break
            found.append(bytes(self._buffer[start : start + size_bytes]))
            at = start + size_bytes
        assert at <= len(self._buffer)
        del self._buffer[:at]
        return found

    def finish(self) -> None:
        """The body is over. Raises InvalidArgument in the middle of a frame."""
        if self._buffer:
            raise InvalidArgument("body: ends in the middle of a frame", field="body")

    def _check(self, flags: int, size_bytes: int) -> None:
        if flags & COMPRESSED:
            raise NotSupported("body: a compressed frame; send frames without compression")
        if flags:
            raise InvalidArgument(f"body: a frame of a request has no flags {flags}", field="body")
        if size_bytes > self._max_message_bytes:
            raise PayloadTooLarge(
                f"a message has more than {self._max_message_bytes} bytes (max_body_bytes)"
            )


def only_message(body: bytes, max_message_bytes: int) -> bytes:
    """Return the message of a request with a single frame. Raises the errors of ConnectDecoder."""
    decoder = ConnectDecoder(max_message_bytes)
    messages = decoder.feed(body)
    decoder.finish()
    if len(messages) != 1:
        raise InvalidArgument(
            f"body: {len(messages)} messages, and this call takes one frame", field="body"
        )
    return messages[0]


def parse_timeout(header: str | None) -> float | None:
    """Return the seconds of Connect-Timeout-Ms; None without a limit. Raises InvalidArgument."""
    if header is None:
        return None
    text = header.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_TIMEOUT_DIGITS):
        raise InvalidArgument(
            f"Connect-Timeout-Ms: a number of milliseconds with at most {MAX_TIMEOUT_DIGITS} "
            "digits; leave the header out for no limit",
            field="Connect-Timeout-Ms",
        )
    return int(text) / 1000


def parse_keepalive(header: str | None) -> float:
    """Return the seconds of Keepalive-Ping-Interval. Without a usable number: KEEPALIVE_SECONDS,
    as in envd."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit() and len(text) <= MAX_TIMEOUT_DIGITS and int(text) > 0:
        return float(text)
    return KEEPALIVE_SECONDS


def encode_bytes(data: bytes) -> str:
    return base64.b64encode(data).decode()


def decode_bytes(text: str, field: str) -> bytes:
    """Decode the form of bytes in ProtoJSON: base64, standard or for URLs, with or without padding.
    Raises InvalidArgument."""
    standard = text.rstrip("=").translate({ord("-"): "+", ord("_"): "/"})
    try:
        return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument(f"{field}: not base64", field=field) from None
