"""Random event streams as the daemon's encoders write them. The seed and the number of a stream
decide everything in the stream, so a server and a judge in two processes make the same streams."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from execd.api.wire.encoders import (
    Encoder,
    NewlineDelimitedJson,
    ServerSentEvents,
    WireEvent,
)

SSE, NDJSON = ServerSentEvents.content_type, NewlineDelimitedJson.content_type

# str.splitlines ends a line at each of the first eleven, and Node's readline at three of these.
LINE_ENDS = [
    *("\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"),
    *("\n\n", "\r\n\r\n", "data: x\n\n", "id: 9\nevent: exited\n\n", ": heartbeat\n\n"),
]
# The UTF-8 of "Å", "…" and "腅" has the byte 0x85, a line end in Latin-1; U+FEFF begins a stream.
OTHERS = [*'a :"\\/{}[]0\0\x1f\x7f', "data", "Å", "…", "腅", "\ufeff", "\ufffd", "😀", "e\u0301"]
KINDS = ["started", "stdout", "stderr", "dropped", "display", "result", "error", "exited"]
NAMES = ["text", "data", "offset", "text/html", "a\u2028b", "\x85", "\r", ""]
LARGE_CHARACTERS = 100_000


def random_text(numbers: random.Random) -> str:
    text = "".join(numbers.choices(LINE_ENDS + OTHERS, k=numbers.randrange(20)))
    # Sometimes longer than a reader's buffer.
    return text * (LARGE_CHARACTERS // (len(text) or 1)) if numbers.random() < 0.0005 else text


def random_value(numbers: random.Random, depth: int = 0) -> Any:
    kind = numbers.randrange(3 if depth == 2 else 5)
    if kind <= 1:
        return random_text(numbers)
    if kind == 2:
        return numbers.choice([None, True, 0, -1, 2**53 - 1, 0.000001])
    inner = [random_value(numbers, depth + 1) for _ in range(numbers.randrange(3))]
    return inner if kind == 3 else dict(zip(NAMES, inner, strict=False))


def random_events(seed: int, number: int) -> list[WireEvent | None]:
    """Return the events of one stream. None stands for a heartbeat."""
    numbers = random.Random(f"{seed} {number}")
    found: list[WireEvent | None] = []
    sequence = 0
    for _ in range(numbers.randrange(6)):
        if numbers.random() < 0.2:
            found.append(None)
            continue
        sequence += numbers.choice([1, 1, 1, 1000])
        names = numbers.sample(NAMES, k=numbers.randrange(1, 4))
        fields = {name: random_value(numbers) for name in names}
        found.append(WireEvent(sequence, numbers.choice(KINDS), fields))
    return found


def encoder_for(content_type: str) -> Encoder:
    return ServerSentEvents() if content_type == SSE else NewlineDelimitedJson()


def encode(events: list[WireEvent | None], content_type: str, numbers: random.Random) -> bytes:
    """Encode as the daemon does. Some values have line ends between their tokens, as JSON that the
    code of a cell made."""
    encoder = encoder_for(content_type)
    encoded = []
    for event in events:
        if event is None:
            encoded.append(encoder.heartbeat)
            continue
        fields = event.fields
        if numbers.random() < 0.1:
            fields = {
                name: msgspec.Raw(b"\r\n" + msgspec.json.encode(value) + b"\n")
                for name, value in fields.items()
            }
        encoded.append(encoder.encode(event._replace(fields=fields)))
    return b"".join(encoded)


def in_pieces(data: bytes, numbers: random.Random) -> list[bytes]:
    """Cut the data anywhere, within characters too."""
    borders = sorted(numbers.choices(range(len(data) + 1), k=numbers.randrange(5)))
    ends = zip([0, *borders], [*borders, len(data)], strict=True)
    return [data[start:end] for start, end in ends if end > start]


def as_read(events: list[WireEvent | None]) -> list[dict[str, Any]]:
    """Return what a reader must find."""
    return [
        {"sequence": event.sequence, "event": event.kind, "fields": event.fields}
        for event in events
        if event is not None
    ]
