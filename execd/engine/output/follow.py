"""One reader's view of an execution: everything after a given event, then what comes, until the
end.

A reader is a loop of its own that asks the log: the pumps do not know it, so a slow one costs
nothing and delays nobody. It remembers how far it has got in each stream. If the index has merged
or trimmed events meanwhile, that tells it which bytes it still owes; bytes that the log itself has
lost become ``Dropped``.

Text. An event's bytes may end in the middle of a character. Its view then ends before that
character, and the next one begins with it: each border is moved back to the last one between
characters, by a look at the three bytes before it. So what an event looks like depends on the log
alone, and a reader that resumes gets the same cuts as the one that was cut off. When a stream ends
in the middle of a character, one more event of size 0 brings the rest.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from execd.engine.output.event_index import Kind
from execd.engine.output.head_tail import MAX_CHARACTER_BYTES, incomplete_tail_bytes
from execd.errors import Gone
from execd.model import DisplayMessage  # noqa: TC001  # msgspec reads the annotations at run time

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from execd.engine.output.log import OutputLog, StreamLog
    from execd.model import Stream

EVENTS_PER_LOOK = 64
# A hole that a reader fell behind by is filled in pieces of this size.
PIECE_BYTES = 256 * 1024

STREAM_OF: dict[Kind, Stream] = {Kind.STDOUT: "stdout", Kind.STDERR: "stderr"}


class StartedEvent(msgspec.Struct, frozen=True):
    sequence: int


class Output(msgspec.Struct, frozen=True):
    """``data`` are the bytes of the stream from ``offset`` on."""

    sequence: int
    stream: Stream
    offset: int
    data: bytes


class Dropped(msgspec.Struct, frozen=True):
    """The log has a hole of ``size_bytes`` at ``offset``."""

    sequence: int
    stream: Stream
    offset: int
    size_bytes: int


class ExitedEvent(msgspec.Struct, frozen=True):
    sequence: int


class Heartbeat(msgspec.Struct, frozen=True):
    """Nothing has come for as long as was asked. Not an event of the log."""


class DisplayEvent(msgspec.Struct, frozen=True):
    sequence: int
    rich: DisplayMessage


FollowedEvent = StartedEvent | Output | Dropped | DisplayEvent | ExitedEvent | Heartbeat


def follow(
    log: OutputLog, after: int, *, text: bool, heartbeat_seconds: float = 0.0
) -> AsyncGenerator[FollowedEvent, None]:
    """Events with a number above ``after``; ends after Exited. ``text``: cut at characters. Raises
    Gone, now and not later.

    ``heartbeat_seconds``: how long it may be silent; 0: for ever.

    A long event comes in pieces, of which the last has its number. The others have the number
    before: who is cut off between them resumes there, gets some bytes again, and knows them by
    their offset.
    """
    if after and not log.events.can_resume(after):
        raise Gone(
            f"event {after} cannot be resumed at any more: it was merged with others or trimmed"
        )
    reached: dict[Stream, int] = {}
    for kind, stream in STREAM_OF.items():
        begins = log.events.next_offset(kind, after) if after else 0
        reached[stream] = log.streams[stream].total_bytes if begins is None else begins
    return _follow(log, after, reached, text, heartbeat_seconds or None)


async def _follow(
    log: OutputLog,
    sequence: int,
    reached: dict[Stream, int],
    text: bool,
    heartbeat_seconds: float | None,
) -> AsyncGenerator[FollowedEvent, None]:
    while True:
        changed = log.changed()
        events = log.events.after(sequence, EVENTS_PER_LOOK)
        if not events:
            # Here and not around the generator: a task for each event is what 500 readers of one
            # program cannot afford.
            done, _ = await asyncio.wait((changed,), timeout=heartbeat_seconds)
            if not done:
                yield Heartbeat()
            continue
        for event in events:
            if event.kind is Kind.STARTED:
                yield StartedEvent(event.sequence)
            elif event.kind is Kind.EXITED:
                yield ExitedEvent(event.sequence)
                return
            elif event.kind is Kind.RICH:
                # else it was too much for the journal, which the result says
                if event.offset < len(log.rich):
                    yield DisplayEvent(event.sequence, log.rich[event.offset])
            else:
                stream = STREAM_OF[event.kind]
                end = event.offset + event.size_bytes
                final = event.size_bytes == 0
                numbers = sequence, event.sequence
                async for piece in _pieces(
                    log.streams[stream], stream, reached[stream], end, numbers, text, final
                ):
                    yield piece
                reached[stream] = end
            sequence = event.sequence


async def _pieces(
    log: StreamLog,
    stream: Stream,
    start: int,
    end: int,
    numbers: tuple[int, int],
    text: bool,
    final: bool,
) -> AsyncIterator[Output | Dropped]:
    """[start, end) of a stream, or rather of its characters, with holes where the log has them.

    ``numbers``: that of the pieces before the last, and the last one's.
    """
    if text:
        start = await _character_border(log, start)
        if not final:
            end = await _character_border(log, end)
    while start < end:
        hole_start, hole_end = log.head_end, log.memory.tail_start
        if hole_start <= start < hole_end:
            stop = min(end, hole_end)
            yield Dropped(numbers[stop == end], stream, start, stop - start)
            start = stop
            continue
        stop = min(end, start + PIECE_BYTES, hole_start if start < hole_start < hole_end else end)
        data = await log.read(start, stop)
        if data is None:  # the hole has grown meanwhile, or the file is gone: say what is lost
            if log.head_end > start and log.memory.tail_start > start:
                yield Dropped(numbers[stop == end], stream, start, stop - start)
                start = stop
            continue
        yield Output(numbers[stop == end], stream, start, data)
        start = stop


async def _character_border(log: StreamLog, offset: int) -> int:
    """The last border between characters at or before ``offset``."""
    begin = max(0, offset - (MAX_CHARACTER_BYTES - 1))
    before = await log.read(begin, offset)
    return offset - incomplete_tail_bytes(before) if before else offset
