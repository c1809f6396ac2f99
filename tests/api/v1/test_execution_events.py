"""Long events in parts."""

from __future__ import annotations

import base64
import random
from typing import TYPE_CHECKING, Any

from execd.api.v1.execution_events import OutputEvent, in_parts
from execd.api.wire.encoders import ServerSentEvents, WireEvent
from execd_client.events import Assembler

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


async def following(events: list[WireEvent], after: int) -> AsyncGenerator[WireEvent | None, None]:
    for event in events:
        if event.sequence > after:
            yield event


def drawn_events(numbers: random.Random) -> list[WireEvent]:
    events, offset = [], 0
    for sequence in range(1, numbers.randrange(3, 12)):
        if numbers.random() < 0.6:
            content = numbers.randbytes(numbers.randrange(1, 16384))
            fields = OutputEvent(
                offset=offset, size_bytes=len(content), base64=base64.b64encode(content).decode()
            )
            events.append(WireEvent(sequence, "stdout", fields))
            offset += len(content)
        else:
            events.append(WireEvent(sequence, "display", {"n": "x" * numbers.randrange(60_000)}))
    return [*events, WireEvent(len(events) + 1, "exited", {"n": "y" * numbers.randrange(60_000)})]


async def test_long_events_among_output_arrive_over_connections_that_end_early() -> None:
    for seed in range(100):
        numbers = random.Random(seed)
        events, assembler, found = drawn_events(numbers), Assembler(), list[Any]()
        while not found or found[-1].kind != "exited":
            after, part_offset = assembler.progress
            left = numbers.randrange(30_000, 65_536)
            parts = in_parts(following(events, after), after, part_offset)
            async for event in parts:
                assert event is not None
                encoded = ServerSentEvents().encode(event)
                left -= len(encoded)
                if left < 0:
                    break
                number, kind, data = (
                    line.partition(b": ")[2].decode() for line in encoded.splitlines()[:3]
                )
                found += assembler.take(kind, number, data)
            await parts.aclose()
            assert assembler.progress > (after, part_offset), f"seed {seed} makes no progress"
        told = [(event.sequence, event.fields) for event in found if event.kind != "stdout"]
        assert told == [
            (event.sequence, event.fields) for event in events if event.kind != "stdout"
        ]
        output = [base64.b64decode(each.fields.base64) for each in events if each.kind == "stdout"]
        assert b"".join(event.data for event in found) == b"".join(output), seed
