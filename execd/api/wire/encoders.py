"""Server-sent events and NDJSON: from an event to bytes. Pure."""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Protocol

import msgspec

NO_WEIGHT = re.compile(r"q=0(\.0{0,3})?", re.IGNORECASE)


class WireEvent(NamedTuple):
    """One event as it goes out: ``sequence`` orders and names it, ``fields`` are its JSON."""

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

    JSON has no raw line ends, so one data line always does.
    """

    content_type = "text/event-stream"
    heartbeat = b": heartbeat\n\n"

    def encode(self, event: WireEvent) -> bytes:
        data = msgspec.json.encode(event.fields)
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.sequence, event.kind.encode(), data)


class NewlineDelimitedJson:
    """One object a line: ``event`` and ``sequence`` first, then the fields. An empty line is a
    heartbeat."""

    content_type = "application/x-ndjson"
    heartbeat = b"\n"

    def encode(self, event: WireEvent) -> bytes:
        return (
            msgspec.json.encode({"event": event.kind, "sequence": event.sequence, **event.fields})
            + b"\n"
        )


def choose_encoder(accept: str) -> Encoder | None:
    """The stream that an Accept header asks for; None if it asks for a plain reply."""
    if "/" not in accept or accept == "*/*":  # as most clients have it
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
    """RFC 9110 §12.4.2: a weight of 0 means "not acceptable"."""
    return not any(NO_WEIGHT.fullmatch(parameter.strip()) for parameter in parameters)
