"""A reader's view of an execution: the events after a given number, then new events, to the end.

Each reader is a loop over the log. The pumps do not know the readers, so a slow reader delays
nothing. A reader remembers the offset reached in each stream. If the index merged or trimmed events
meanwhile, the offset says which bytes the reader still has to get. Lost bytes become ``Dropped``.

Text. The bytes of an event may end inside a character. In a text view, each border between events
moves back to the last border between characters, which depends on the three bytes before the
border. So the cuts depend on the log alone, and a resuming reader gets the same cuts as the reader
before. When a stream ends inside a character, a last event of size 0 brings the rest.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from execd.engine.output.event_index import Event, Kind
from execd.engine.output.head_tail import MAX_CHARACTER_BYTES, incomplete_tail_bytes
from execd.engine.output.log import KIND_OF
from execd.errors import Gone, InvalidArgument, RangeNotSatisfiable
from execd.model import DisplayMessage  # noqa: TC001  # msgspec reads the annotations at run time

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    from execd.engine.output.log import Excerpt, OutputLog, StreamLog
    from execd.model import Stream

EVENTS_PER_READ = 64
# Where events were trimmed, a reader gets the missing bytes in parts of this size.
PART_BYTES = 256 * 1024

NOTHING_KNOWN: Mapping[Stream, int] = MappingProxyType({})
STREAM_OF = {kind: stream for stream, kind in KIND_OF.items()}


class ProgramStarted(msgspec.Struct, frozen=True):
    """The program runs."""

    sequence: int


class Output(msgspec.Struct, frozen=True):
    """Bytes of a stream, beginning at ``offset``."""

    sequence: int
    stream: Stream
    offset: int
    data: bytes


class Dropped(msgspec.Struct, frozen=True):
    """Lost bytes of the log: ``size_bytes`` bytes, beginning at ``offset``."""

    sequence: int
    stream: Stream
    offset: int
    size_bytes: int


class ExitedEvent(msgspec.Struct, frozen=True):
    """The execution is over. The last event."""

    sequence: int


class Heartbeat(msgspec.Struct, frozen=True):
    """No event came for ``heartbeat_seconds``. Not an event of the log, so without a number."""


class DisplayEvent(msgspec.Struct, frozen=True):
    """A display message of a cell."""

    sequence: int
    rich: DisplayMessage


FollowedEvent = ProgramStarted | Output | Dropped | DisplayEvent | ExitedEvent | Heartbeat


def follow(
    log: OutputLog,
    after: int,
    *,
    text: bool,
    heartbeat_seconds: float = 0.0,
    known: Mapping[Stream, int] = NOTHING_KNOWN,
) -> AsyncGenerator[FollowedEvent, None]:
    """Return the events with a number above ``after``. The iteration ends after ``ExitedEvent``.

    ``text``: cut output between characters. ``heartbeat_seconds``: time without an event until a
    ``Heartbeat``; 0: no heartbeats. ``known``: by stream, the offset up to which the reader has the
    bytes; those bytes are left out. Raises Gone and InvalidArgument in this call, not later in the
    iteration: Gone for a number that was merged or trimmed, InvalidArgument for a number that no
    event has had yet.

    An event may come in several parts: at a hole, or in the place of trimmed events. The last part
    has the event's number; the parts before have the number of the event before. A reader that is
    cut off in between resumes at the event before, gets some bytes again, and knows these bytes by
    their offset.
    """
    newest = log.events.last_sequence
    if after > newest:
        # Not a wait for that event: the reader would never see the events in between.
        raise InvalidArgument(
            f"after: there is no event {after} yet, the newest event is {newest}: give the number "
            "of the last event read, or 0",
            field="after",
            newest_event=newest,
        )
    if after and not log.events.can_resume(after):
        raise Gone(
            f"event {after} cannot be resumed at any more: it was merged with others or trimmed; "
            "read from after=0, or the output that is kept (…/stdout, …/stderr)"
        )
    reached: dict[Stream, int] = {}
    for kind, stream in STREAM_OF.items():
        begins = log.events.next_offset(kind, after) if after else 0
        next_offset = log.streams[stream].total_bytes if begins is None else begins
        reached[stream] = max(next_offset, known.get(stream, 0))
    return _follow(log, after, reached, text, heartbeat_seconds or None)


async def follow_stream(
    log: OutputLog, stream: Stream, offset: int, *, heartbeat_seconds: float = 0.0
) -> AsyncGenerator[FollowedEvent, None]:
    """Return the events for a reader of one stream: the start, the stream's bytes from ``offset``
    on, and the end.

    The index says which event has the offset, so no byte before the offset is read. A start that
    the index has trimmed is told too.
    """
    first = log.events.after(0, 1)
    has_started = bool(first) and first[0].kind is not Kind.EXITED
    if has_started:
        yield ProgramStarted(first[0].sequence)
    after = log.events.number_before(KIND_OF[stream], offset)
    reached = {stream: offset}
    async with aclosing(_follow(log, after, reached, False, heartbeat_seconds or None)) as followed:
        async for event in followed:
            if not (has_started and isinstance(event, ProgramStarted)):
                yield event


async def _follow(
    log: OutputLog,
    sequence: int,
    reached: dict[Stream, int],
    text: bool,
    heartbeat_seconds: float | None,
) -> AsyncGenerator[FollowedEvent, None]:
    """``reached``: the streams of the reader, and the offset of the first byte to send."""
    while True:
        changed = log.next_change()
        if sequence < (trimmed := log.events.trimmed_sequence):
            async for part in _trimmed_parts(log, sequence, trimmed, reached, text):
                yield part
            sequence = trimmed
            continue
        events = log.events.after(sequence, EVENTS_PER_READ)
        if not events:
            # The timeout is here and not around the generator: a task for each event is too
            # expensive for 500 readers of one program.
            done, _ = await asyncio.wait((changed,), timeout=heartbeat_seconds)
            if not done:
                yield Heartbeat()
            continue
        for event in _join_lost(log, events):
            if event.kind is Kind.STARTED:
                yield ProgramStarted(event.sequence)
            elif event.kind is Kind.EXITED:
                yield ExitedEvent(event.sequence)
                return
            elif event.kind is Kind.RICH:
                # The journal may have refused the messages of a restored log; the result says so.
                if event.offset < len(log.rich):
                    yield DisplayEvent(event.sequence, log.rich[event.offset])
            elif (stream := STREAM_OF[event.kind]) in reached:
                end = event.offset + event.size_bytes
                final = event.size_bytes == 0
                numbers = sequence, event.sequence
                async for part in _parts(
                    log.streams[stream], stream, reached[stream], end, numbers, text, final
                ):
                    yield part
                reached[stream] = max(reached[stream], end)
            sequence = event.sequence


async def _trimmed_parts(
    log: OutputLog, sequence: int, trimmed: int, reached: dict[Stream, int], text: bool
) -> AsyncIterator[Output | Dropped]:
    """Yield the bytes of trimmed events, stream by stream. Behind the number of a later event, a
    reader that is cut off would miss the bytes of the other stream. So all come before, and only
    the last part has a number to resume at."""
    last: Output | Dropped | None = None
    for stream in reached:
        begins = log.events.next_offset(KIND_OF[stream], trimmed)
        end = log.streams[stream].total_bytes if begins is None else begins
        numbers = sequence, trimmed
        async for part in _parts(
            log.streams[stream], stream, reached[stream], end, numbers, text, False
        ):
            if last is not None:
                yield msgspec.structs.replace(last, sequence=sequence)
            last = part
        reached[stream] = max(reached[stream], end)
    if last is not None:
        yield msgspec.structs.replace(last, sequence=trimmed)


def _join_lost(log: OutputLog, events: list[Event]) -> list[Event]:
    """Join neighbours whose bytes are lost: one ``Dropped`` tells of a flood, and not thousands."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else event
        end = event.offset + event.size_bytes
        is_lost = False
        if last.kind is event.kind in STREAM_OF and last.offset + last.size_bytes == event.offset:
            hole_start, hole_end = log.streams[STREAM_OF[event.kind]].hole(end)
            is_lost = hole_start <= last.offset < event.offset and end <= hole_end
        if is_lost:
            joined[-1] = Event(event.sequence, event.kind, last.offset, end - last.offset)
        else:
            joined.append(event)
    return joined


async def _parts(
    log: StreamLog,
    stream: Stream,
    start: int,
    end: int,
    numbers: tuple[int, int],
    text: bool,
    final: bool,
) -> AsyncIterator[Output | Dropped]:
    """Yield the bytes [start, end) of a stream, with ``Dropped`` for lost bytes.

    ``numbers``: the number of the parts before the last part, and the number of the last part.
    ``text`` moves both borders back to borders between characters; ``final`` keeps ``end``.
    """
    assert numbers[0] < numbers[1]
    if text:
        start = await _character_border(log, start)
        if not final:
            end = await _character_border(log, end)
    while start < end:
        hole_start, hole_end = log.hole(end)
        if hole_start <= start < hole_end:
            stop = min(end, hole_end)
            yield Dropped(numbers[stop == end], stream, start, stop - start)
            start = stop
            continue
        stop = min(end, start + PART_BYTES, hole_start if start < hole_start < hole_end else end)
        data = await log.read(start, stop)
        if data is None:  # the hole has grown since, or the file is gone
            hole_start, hole_end = log.hole(end)
            if min(hole_start, hole_end) > start:
                yield Dropped(numbers[stop == end], stream, start, stop - start)
                start = stop
            continue
        yield Output(numbers[stop == end], stream, start, data)
        start = stop


async def _character_border(log: StreamLog, offset: int) -> int:
    """Return the last border between characters at or before ``offset``."""
    begin = max(0, offset - (MAX_CHARACTER_BYTES - 1))
    before = await log.read(begin, offset)
    return offset - incomplete_tail_bytes(before) if before else offset


class OutputView:
    """What dialects read of an output. ``heartbeat_seconds``: the daemon's setting."""

    __slots__ = ("_heartbeat_seconds", "_log")

    def __init__(self, log: OutputLog, heartbeat_seconds: float) -> None:
        self._log = log
        self._heartbeat_seconds = heartbeat_seconds

    def total_bytes(self, stream: Stream) -> int:
        return self._log.streams[stream].total_bytes

    async def excerpt(self, stream: Stream, limit_bytes: int) -> Excerpt:
        """Return the part of a stream that fits into a reply."""
        return await self._log.streams[stream].excerpt(limit_bytes)

    async def refresh_size(self, stream: Stream) -> None:
        """Notice if the disk has lost a part of the stream, before a range is promised."""
        await self._log.streams[stream].refresh_size()

    async def read(self, stream: Stream, start: int, end: int) -> bytes:
        """Read bytes of a stream. Raises RangeNotSatisfiable if some of them were not kept."""
        log = self._log.streams[stream]
        data = await log.read(start, end)
        if data is None:
            head_end, tail_start = log.hole(end)
            raise RangeNotSatisfiable(
                f"{stream}: bytes {head_end} to {tail_start} were not kept",
                head_end=head_end,
                tail_start=tail_start,
            )
        return data

    def follow(
        self,
        after: int,
        *,
        text: bool,
        heartbeat_seconds: float | None = None,
        known: Mapping[Stream, int] = NOTHING_KNOWN,
    ) -> AsyncGenerator[FollowedEvent, None]:
        """Yield the events after event number ``after``, past and future ones; see ``follow``.

        ``heartbeat_seconds`` None: the daemon's setting."""
        if heartbeat_seconds is None:
            heartbeat_seconds = self._heartbeat_seconds
        return follow(self._log, after, text=text, heartbeat_seconds=heartbeat_seconds, known=known)

    def follow_stream(self, stream: Stream, offset: int) -> AsyncGenerator[FollowedEvent, None]:
        """Yield the start, the stream's bytes from ``offset`` on, and the end."""
        return follow_stream(self._log, stream, offset, heartbeat_seconds=self._heartbeat_seconds)
