"""The order of things in one execution: started, output of either stream, rich events, exited; each
with a sequence number. Pure.

Numbers begin at 1 and are never given twice, so that a reader can say "after 17". The index is
bounded: when it is full, older neighbours of the same stream become one event under the last one's
number, and what is too much even then is trimmed from the front. A number that an event has
swallowed, or that is trimmed, is not a place to resume at any more.

Packed, an index goes into the journal, and into memory once its execution is over: of numbers and
offsets only what does not follow from the events before is written down, and that is nothing but
zeros, as a rule.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_right
from enum import IntEnum
from itertools import accumulate, chain, compress, islice
from operator import add, sub
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MERGED_BYTES = 256 * 1024
EVENT_BYTES = sum(array(code).itemsize for code in "BQIQ")


class Kind(IntEnum):
    STDOUT = 0
    STDERR = 1
    STARTED = 2
    EXITED = 3
    RICH = 4


class Event(NamedTuple):
    """For output: ``size_bytes`` bytes of the stream from ``offset`` on arrived. The size may be 0:
    see ``follow``.

    For RICH, ``offset`` is its place among the log's rich events.
    """

    sequence: int
    kind: Kind
    offset: int
    size_bytes: int


class EventIndex:
    """Keeps about the newest ``max_events``, in EVENT_BYTES each."""

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

    @property
    def memory_bytes(self) -> int:
        return EVENT_BYTES * len(self._kinds)

    def pack(self) -> bytes:
        """All of it, for ``unpack``. By columns, and no loop of our own: thousands of events must
        not keep the event loop waiting."""
        steps = map(sub, self._sequences, [self._trimmed, *self._sequences])
        jumps: list[int] = []
        for kind in Kind:
            offsets, sizes = self._of_kind(kind, self._offsets), self._of_kind(kind, self._sizes)
            jumps.extend(map(sub, offsets, [0, *map(add, offsets, sizes)]))
        facts = array("q", [self._max_events, self._trimmed, len(self._kinds), *steps, *jumps])
        return zlib.compress(
            facts.tobytes() + self._sizes.tobytes() + self._kinds.tobytes(), level=1
        )

    @classmethod
    def unpack(cls, packed: bytes) -> EventIndex:
        """``packed`` is what ``pack`` returned."""
        facts, sizes, kinds = array("q"), array("I"), array("B")
        data = zlib.decompress(packed)
        facts.frombytes(data[: 3 * facts.itemsize])
        max_events, trimmed, count = facts
        sizes_at = (3 + 2 * count) * facts.itemsize
        kinds_at = sizes_at + count * sizes.itemsize
        facts.frombytes(data[3 * facts.itemsize : sizes_at])
        sizes.frombytes(data[sizes_at:kinds_at])
        kinds.frombytes(data[kinds_at:])
        index = cls(max_events)
        index._trimmed, index._kinds, index._sizes = trimmed, kinds, sizes
        index._sequences.extend(islice(accumulate(facts[3 : 3 + count], initial=trimmed), 1, None))
        jumps = iter(facts[3 + count :])
        of_kind: list[Iterator[int]] = []
        for kind in Kind:
            own = islice(jumps, kinds.count(kind))
            of_kind.append(accumulate(map(add, list(own), chain([0], index._of_kind(kind, sizes)))))
        index._offsets.extend(next(of_kind[kind]) for kind in kinds)
        return index

    def _of_kind(self, kind: Kind, column: array[int]) -> list[int]:
        return list(compress(column, map(int(kind).__eq__, self._kinds)))

    def begin_after(self, sequence: int) -> None:
        """Before the first event: numbers up to this one are somebody else's, and not a place to
        resume at."""
        assert not self._sequences
        self._trimmed = sequence

    def append(self, kind: Kind, offset: int = 0, size_bytes: int = 0) -> int:
        """The new event's number."""
        sequence = self.last_sequence + 1
        self._kinds.append(kind)
        self._offsets.append(offset)
        self._sizes.append(size_bytes)
        self._sequences.append(sequence)
        if len(self._kinds) > 2 * self._max_events:
            self._compact()
        return sequence

    def after(self, sequence: int, max_events: int) -> list[Event]:
        """The next events with higher numbers, the first of which may have swallowed some."""
        start = bisect_right(self._sequences, sequence)
        return [
            self._at(position)
            for position in range(start, min(start + max_events, len(self._kinds)))
        ]

    def can_resume(self, sequence: int) -> bool:
        """Whether the event after this one begins where this one ended."""
        if sequence > self.last_sequence or sequence < self._trimmed:
            return False
        return (
            sequence == self._trimmed
            or self._sequences[bisect_right(self._sequences, sequence) - 1] == sequence
        )

    def next_offset(self, kind: Kind, sequence: int) -> int | None:
        """Where the next output of this stream begins; None if there is none yet."""
        for position in range(bisect_right(self._sequences, sequence), len(self._kinds)):
            if self._kinds[position] == kind:
                return self._offsets[position]
        return None

    def _at(self, position: int) -> Event:
        return Event(
            self._sequences[position],
            Kind(self._kinds[position]),
            self._offsets[position],
            self._sizes[position],
        )

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
                merged[-1] = Event(
                    event.sequence, event.kind, last.offset, last.size_bytes + event.size_bytes
                )
            else:
                merged.append(event)
        kept = merged + old[middle:]
        surplus = max(0, len(kept) - self._max_events)
        if surplus:
            self._trimmed = kept[surplus - 1].sequence
        newest = kept[surplus:]
        self._kinds = array("B", [event.kind for event in newest])
        self._offsets = array("Q", [event.offset for event in newest])
        self._sizes = array("I", [event.size_bytes for event in newest])
        self._sequences = array("Q", [event.sequence for event in newest])
