"""The order of things in one execution: started, output of either stream, rich events, exited; each with a sequence number. Pure.

Numbers begin at 1 and are never given twice, so that a reader can say "after 17". The index is bounded: when it is full, older
neighbours of the same stream become one event under the last one's number, and what is too much even then is trimmed from the
front. A number that an event has swallowed, or that is trimmed, is not a place to resume at any more.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from enum import IntEnum
from typing import NamedTuple

MERGED_BYTES = 256 * 1024


class Kind(IntEnum):
    STDOUT = 0
    STDERR = 1
    STARTED = 2
    EXITED = 3
    RICH = 4


class Event(NamedTuple):
    """For output: ``size_bytes`` bytes of the stream from ``offset`` on arrived. The size may be 0: see ``follow``.

    For RICH, ``offset`` is its place among the log's rich events.
    """

    sequence: int
    kind: Kind
    offset: int
    size_bytes: int


class EventIndex:
    """Keeps about the newest ``max_events``, in 21 bytes each."""

    def __init__(self, max_events: int) -> None:
        self._max_events = max_events
        self._trimmed = 0
        self._kinds = array("B")
        self._offsets = array("Q")
        self._sizes = array("I")
        self._sequences = array("Q")

    @property
    def last_sequence(self) -> int:
        return self._sequences[-1] if self._sequences else self._trimmed

    def begin_after(self, sequence: int) -> None:
        """Before the first event: numbers up to this one are somebody else's, and not a place to resume at."""
        assert not self._sequences
        self._trimmed = sequence

    def append(self, kind: Kind, offset: int = 0, size_bytes: int = 0) -> int:
        """The new event's number."""
        sequence = self.last_sequence + 1
        self._add(Event(sequence, kind, offset, size_bytes))
        if len(self._kinds) > 2 * self._max_events:
            self._compact()
        return sequence

    def after(self, sequence: int, max_events: int) -> list[Event]:
        """The next events with higher numbers, the first of which may have swallowed some."""
        start = bisect_right(self._sequences, sequence)
        return [self._at(position) for position in range(start, min(start + max_events, len(self._kinds)))]

    def can_resume(self, sequence: int) -> bool:
        """Whether the event after this one begins where this one ended."""
        if sequence > self.last_sequence or sequence < self._trimmed:
            return False
        return sequence == self._trimmed or self._sequences[bisect_right(self._sequences, sequence) - 1] == sequence

    def next_offset(self, kind: Kind, sequence: int) -> int | None:
        """Where the next output of this stream begins; None if there is none yet."""
        for position in range(bisect_right(self._sequences, sequence), len(self._kinds)):
            if self._kinds[position] == kind:
                return self._offsets[position]
        return None

    def _at(self, position: int) -> Event:
        return Event(self._sequences[position], Kind(self._kinds[position]), self._offsets[position], self._sizes[position])

    def _add(self, event: Event) -> None:
        self._kinds.append(event.kind)
        self._offsets.append(event.offset)
        self._sizes.append(event.size_bytes)
        self._sequences.append(event.sequence)

    def _compact(self) -> None:
        """Merge the older half; then trim down to ``max_events`` if that was not enough."""
        old = [self._at(position) for position in range(len(self._kinds))]
        middle = len(old) - self._max_events // 2
        merged: list[Event] = []
        for event in old[:middle]:
            last = merged[-1] if merged else None
            if (
                last is not None
                and last.kind == event.kind
                and event.kind in (Kind.STDOUT, Kind.STDERR)
                and last.size_bytes + event.size_bytes <= MERGED_BYTES
            ):
                merged[-1] = Event(event.sequence, event.kind, last.offset, last.size_bytes + event.size_bytes)
            else:
                merged.append(event)
        kept = merged + old[middle:]
        surplus = max(0, len(kept) - self._max_events)
        if surplus:
            self._trimmed = kept[surplus - 1].sequence
        for column in (self._kinds, self._offsets, self._sizes, self._sequences):
            del column[:]
        for event in kept[surplus:]:
            self._add(event)
