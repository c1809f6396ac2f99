"""Encoders of events: server-sent events and NDJSON. Pure."""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Protocol

import msgspec

_LINE_SEPARATORS = (
    ("\u0085".encode(), rb"\u0085"),
    ("\u2028".encode(), rb"\u2028"),
    ("\u2029".encode(), rb"\u2029"),
    (b"\n", b" "),
    (b"\r", b" "),
)
WEIGHT = re.compile(r"q=(?P<weight>0(\.[0-9]{0,3})?|1(\.0{0,3})?)")


class WireEvent(NamedTuple):
    """One event on the wire. ``sequence``: its number, in order. ``fields``: a struct, or another
    value that is a JSON object."""

    sequence: int
    kind: str
    fields: Any


class Encoder(Protocol):
    content_type: str
    charset: str | None

    @property
    def heartbeat(self) -> bytes:
        """What is sent while no event comes."""

    def encode(self, event: WireEvent) -> bytes: ...


class ServerSentEvents:
    """https://html.spec.whatwg.org/multipage/server-sent-events.html: ``id``, ``event``, one
    ``data`` line, a blank line.

    One data line is always enough (``one_line``).
    """

    content_type = "text/event-stream"
    # Without a charset, requests reads text/* as Latin-1: the text comes out wrong, and the byte
    # 0x85 of a character becomes a line end.
    charset: str | None = "utf-8"
    # Without a blank line: httpx-sse takes a blank line after a comment for an event without data.
    heartbeat = b": heartbeat\n"

    def encode(self, event: WireEvent) -> bytes:
        assert event.sequence >= 0
        assert "\n" not in event.kind
        data = one_line(msgspec.json.encode(event.fields))
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.sequence, event.kind.encode(), data)


class NewlineDelimitedJson:
    """One object per line: ``event`` and ``sequence`` first, then the fields. An empty line is a
    heartbeat."""

    content_type = "application/x-ndjson"
    charset: str | None = None  # RFC 8259: JSON is UTF-8, and has no parameter
    heartbeat = b"\n"

    def encode(self, event: WireEvent) -> bytes:
        assert event.sequence >= 0
        assert event.kind.isidentifier(), "the name needs no escapes"
        fields = msgspec.json.encode(event.fields)
        assert fields.startswith(b"{"), "fields are an object"
        head = b'{"event":"%b","sequence":%d' % (event.kind.encode(), event.sequence)
        return one_line(head + (b"}" if fields == b"{}" else b"," + fields[1:])) + b"\n"


def one_line(encoded: bytes) -> bytes:
    """Return the JSON without any character at which a reader may end a line.

    Readers split with ``str.splitlines``, which also ends lines at U+0085, U+2028 and U+2029 and at
    control characters. JSON allows the first three in strings, and msgspec leaves them; JSON allows
    no raw control character in a string. A line end between tokens is possible in JSON that the
    code of a cell made. UTF-8 synchronizes itself, so the bytes are found nowhere else.
    """
    for separator, escape in _LINE_SEPARATORS:
        if separator in encoded:
            encoded = encoded.replace(separator, escape)
    return encoded


def choose_encoder(accept: str) -> Encoder | None:
    """Return the encoder for an Accept header, or None for a plain reply.

    RFC 9110 §12.5.1: the highest weight counts, and a weight of 0 refuses. Of equal weights a type
    named in full comes before a wildcard, then the stream before the plain reply: a client that
    names both can read both. A client that accepts none of the three gets the plain reply.
    """
    if "/" not in accept or accept == "*/*":  # most clients
        return None
    ranges = _parse_accept(accept)
    plain = _preference(ranges, "application/json")
    stream, encoder = max(
        ((_preference(ranges, one.content_type), one) for one in ENCODERS), key=lambda pair: pair[0]
    )
    is_named = stream.specificity == NAMED
    is_streamed = stream.weight > 0 and (stream > plain or (is_named and stream == plain))
    return encoder if is_streamed else None


def choose_stream_encoder(accept: str) -> Encoder:
    """Return the encoder for a route that always streams. A client that accepts neither form gets
    server-sent events."""
    ranges = _parse_accept(accept)
    return max(ENCODERS, key=lambda one: _preference(ranges, one.content_type))


ENCODERS: tuple[Encoder, ...] = (ServerSentEvents(), NewlineDelimitedJson())
"""Of equal preferences the first counts."""


NAMED = 2


class _Preference(NamedTuple):
    weight: float
    specificity: int
    """NAMED: in full; 1: "type/*"; 0: "*/*", or refused, or not at all."""


def _parse_accept(accept: str) -> dict[str, float]:
    """Return the media ranges and their weights."""
    ranges: dict[str, float] = {}
    for part in accept.lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        weights = [match for one in parameters if (match := WEIGHT.fullmatch(one))]
        ranges[kind] = float(weights[0]["weight"]) if weights else 1.0
    return ranges


def _preference(ranges: dict[str, float], content_type: str) -> _Preference:
    """RFC 9110 §12.5.1: the most specific range counts."""
    family = content_type.partition("/")[0]
    for specificity, kind in ((NAMED, content_type), (1, f"{family}/*"), (0, "*/*")):
        if kind in ranges:
            weight = ranges[kind]
            return _Preference(weight, specificity if weight else 0)
    return _Preference(0.0, 0)
