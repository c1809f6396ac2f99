"""Encoders of events: server-sent events and NDJSON. Pure."""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Protocol

import msgspec

NO_WEIGHT = re.compile(r"q=0(\.0{0,3})?", re.IGNORECASE)


class WireEvent(NamedTuple):
    """One event on the wire. ``sequence``: its number, in order. ``fields``: its JSON."""

    sequence: int
    kind: str
    fields: dict[str, Any]


class Encoder(Protocol):
    content_type: str
    heartbeat: bytes

    def encode(self, event: WireEvent) -> bytes: ...


class ServerSentEvents:
    """https://html.spec.whatwg.org/multipage/server-sent-events.html: ``id``, ``event``, one
    ``data`` line, a blank line.

    One data line is always enough, since JSON has no raw line ends.
    """

    content_type = "text/event-stream"
    heartbeat = b": heartbeat\n\n"

    def encode(self, event: WireEvent) -> bytes:
        assert event.sequence >= 0
        assert "\n" not in event.kind
        data = msgspec.json.encode(event.fields)
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.sequence, event.kind.encode(), data)


class NewlineDelimitedJson:
    """One object per line: ``event`` and ``sequence`` first, then the fields. An empty line is a
    heartbeat."""

    content_type = "application/x-ndjson"
    heartbeat = b"\n"

    def encode(self, event: WireEvent) -> bytes:
        return (
            msgspec.json.encode({"event": event.kind, "sequence": event.sequence, **event.fields})
            + b"\n"
        )


def choose_encoder(accept: str) -> Encoder | None:
    """Return the encoder for an Accept header, or None for a plain reply."""
    if "/" not in accept or accept == "*/*":  # most clients
        return None
    kinds = [
        kind.strip().lower()
        for kind, *parameters in (part.split(";") for part in accept.split(","))
        if _is_acceptable(parameters)
    ]
    if ServerSentEvents.content_type in kinds:
        return ServerSentEvents()
    if NewlineDelimitedJson.content_type in kinds:
        return NewlineDelimitedJson()
    return None


def _is_acceptable(parameters: list[str]) -> bool:
    """Return False for a weight of 0, "not acceptable" (RFC 9110 §12.4.2)."""
    return not any(NO_WEIGHT.fullmatch(parameter.strip()) for parameter in parameters)
