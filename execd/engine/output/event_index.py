"""The order of events in one execution: started, output, display messages, exited. Pure.

Each event has a sequence number. Numbers begin at 1 and are never given twice, so a reader can ask
for the events after number 17. An output event takes a number for each PIECE_BYTES, and readers see
its pieces as events: a connection that ends every few pieces still makes progress.

The index is bounded. A full index merges neighbouring output events of the same stream in its older
half; the merged event has all their numbers. If that frees too little, the index gives up the order
of small events: for up to PIECE_BYTES, first the events of one stream, then those of the other. If
that frees too little, too, the oldest events are trimmed. A reader cannot resume at a trimmed
number, nor at a merged number that is no piece's now.

Pieces are cut from the end of their event: behind the number of the n-th last piece come n - 1
pieces. A number may have been another piece's before a merge. At most n - 1 pieces came behind that
piece too, each of at most PIECE_BYTES. So a reader of that time gets some bytes again, and knows
these bytes by their offset; it misses none.

The packed form goes into the journal, and a long index keeps this form when the execution is over.
``pack`` stores the differences from the expected next number and offset. Almost all differences of
offsets are zero, so the result compresses well.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left, bisect_right
from enum import IntEnum
from itertools import accumulate, chain, compress, islice
from operator import add, sub
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE_BYTES = 16 * 1024
MERGED_BYTES = 256 * 1024
EVENT_BYTES = sum(array(code).itemsize for code in "BQIQ")


class Kind(IntEnum):
    STDOUT = 0
    STDERR = 1
    STARTED = 2
    EXITED = 3
    RICH = 4


OUTPUTS = (Kind.STDOUT, Kind.STDERR)


class Event(NamedTuple):
    """One event. For output, ``size_bytes`` bytes of the stream arrived, which begin at ``offset``.

    An output event of size 0 ends a stream inside a character: see ``follow``. For RICH, ``offset``
    is the position among the log's display messages.
    """

    sequence: int
    kind: Kind
    offset: int
    size_bytes: int


class EventIndex:
    """The newest events: between ``max_events`` and twice as many, of EVENT_BYTES each."""

    __slots__ = ("_kinds", "_max_events", "_offsets", "_sequences", "_sizes", "_trimmed")

    def __init__(self, max_events: int) -> None:
        self._max_events = max_events
        self._trimmed = 0
        """Number of the last trimmed event."""
        self._kinds = array("B")
        self._offsets = array("Q")
        self._sizes = array("I")
        self._sequences = array("Q")

    @property
    def last_sequence(self) -> int:
        """The number of the newest event. 0: no event yet."""
        return self._sequences[-1] if self._sequences else self._trimmed

    @property
    def trimmed_sequence(self) -> int:
        """The number of the last trimmed event. 0: no event was trimmed."""
        return self._trimmed

    @property
    def memory_bytes(self) -> int:
        """Memory of the columns, in bytes."""
        return EVENT_BYTES * len(self._kinds)

    def pack(self) -> bytes:
        """Pack the index for ``unpack``.

        Works on whole columns without a Python loop: an index has thousands of events, and a loop
        would block the event loop.
        """
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
        """Restore an index from the bytes of ``pack``.

        Raises ValueError for other bytes: a daemon of another version may have written the journal.
        """
        facts, sizes, kinds = array("q"), array("I"), array("B")
        try:
            data = zlib.decompress(packed)
        except zlib.error as error:
            raise ValueError(f"not a packed index: {error}") from None
        facts.frombytes(data[: 3 * facts.itemsize])
        max_events, trimmed, count = facts
        sizes_at = (3 + 2 * count) * facts.itemsize
        kinds_at = sizes_at + count * sizes.itemsize
        if min(facts) < 0 or len(data) != kinds_at + count * kinds.itemsize:
            raise ValueError("not a packed index: wrong length")
        facts.frombytes(data[3 * facts.itemsize : sizes_at])
        sizes.frombytes(data[sizes_at:kinds_at])
        kinds.frombytes(data[kinds_at:])
        if min(facts[3 : 3 + count], default=1) < 1 or max(kinds, default=0) > max(Kind):
            raise ValueError("not a packed index: wrong number or kind")
        index = cls(max_events)
        index._trimmed, index._kinds, index._sizes = trimmed, kinds, sizes
        jumps = iter(facts[3 + count :])
        of_kind: list[Iterator[int]] = []
        for kind in Kind:
            own = islice(jumps, kinds.count(kind))
            of_kind.append(accumulate(map(add, list(own), chain([0], index._of_kind(kind, sizes)))))
        try:
            index._sequences.extend(
                islice(accumulate(facts[3 : 3 + count], initial=trimmed), 1, None)
            )
            index._offsets.extend(next(of_kind[kind]) for kind in kinds)
        except OverflowError as error:
            raise ValueError(f"not a packed index: {error}") from None
        return index

    def _of_kind(self, kind: Kind, column: array[int]) -> list[int]:
        """Select the entries of a column for events of one kind."""
        return list(compress(column, map(int(kind).__eq__, self._kinds)))

    def begin_after(self, sequence: int) -> None:
        """Number the first event ``sequence + 1``.

        For an index whose former numbers are lost: readers cannot resume at numbers up to
        ``sequence``.
        """
        assert not self._sequences, "before the first event only"
        self._trimmed = sequence

    def append(self, kind: Kind, offset: int = 0, size_bytes: int = 0) -> int:
        """Append an event and return its number: the last of its pieces' numbers."""
        assert offset >= 0
        assert size_bytes >= 0
        n_pieces = _n_pieces(kind, size_bytes) if size_bytes else 1
        sequence = (self._sequences[-1] if self._sequences else self._trimmed) + n_pieces
        self._kinds.append(kind)
        self._offsets.append(offset)
        self._sizes.append(size_bytes)
        self._sequences.append(sequence)
        if len(self._kinds) > 2 * self._max_events:
            self._compact()
        return sequence

    def after(self, sequence: int, max_events: int) -> list[Event]:
        """Return the next events above ``sequence``, long ones in pieces."""
        found: list[Event] = []
        for position in range(bisect_right(self._sequences, sequence), len(self._kinds)):
            if self._sizes[position] <= PIECE_BYTES:
                found.append(self._at(position))
            else:
                found += self._pieces(position, sequence, max_events - len(found))
            if len(found) >= max_events:
                break
        return found

    def _pieces(self, position: int, sequence: int, max_pieces: int) -> list[Event]:
        """Return the pieces of an event above ``sequence``."""
        last, kind, offset, size_bytes = self._at(position)
        first = last - _n_pieces(kind, size_bytes) + 1
        found = []
        for number in range(max(sequence + 1, first), last + 1)[:max_pieces]:
            stop = offset + size_bytes - (last - number) * PIECE_BYTES
            # A display is one piece, however long.
            start = offset if number == first else stop - PIECE_BYTES
            found.append(Event(number, kind, start, stop - start))
        return found

    def can_resume(self, sequence: int) -> bool:
        """Whether the event after ``sequence`` begins where the event ``sequence`` ended."""
        if sequence > self.last_sequence or sequence < self._trimmed:
            return False
        if sequence == self._trimmed:
            return True
        position = bisect_left(self._sequences, sequence)
        n_pieces = _n_pieces(self._kinds[position], self._sizes[position])
        return sequence > self._sequences[position] - n_pieces

    def next_offset(self, kind: Kind, sequence: int) -> int | None:
        """Return the offset of the next event of ``kind`` after ``sequence``. None: no event."""
        for position in range(bisect_right(self._sequences, sequence), len(self._kinds)):
            if self._kinds[position] == kind:
                return self._pieces(position, sequence, 1)[0].offset
        return None

    def number_before(self, kind: Kind, offset: int) -> int:
        """Return the number of the event before the first event of ``kind`` that has bytes past
        ``offset``.

        If no event has such bytes, the number of the last event of ``kind``. 0: no event is before.
        """
        positions = list(compress(range(len(self._kinds)), map(int(kind).__eq__, self._kinds)))
        at = bisect_right(
            positions, offset, key=lambda position: self._offsets[position] + self._sizes[position]
        )
        position = positions[at] if at < len(positions) else max(positions, default=-1) + 1
        return self._sequences[position - 1] if position else self._trimmed

    def _at(self, position: int) -> Event:
        return Event(
            self._sequences[position],
            Kind(self._kinds[position]),
            self._offsets[position],
            self._sizes[position],
        )

    def _compact(self) -> None:
        """Merge the older half; then trim to ``max_events`` if more events are left. See the
        module's text."""
        old = [self._at(position) for position in range(len(self._kinds))]
        middle = len(old) - self._max_events // 2
        merged: list[Event] = []
        for event in old[:middle]:
            last = merged[-1] if merged else None
            if (
                last is not None
                and last.kind == event.kind
                and event.kind in OUTPUTS
                and last.size_bytes + event.size_bytes <= MERGED_BYTES
            ):
                merged[-1] = Event(
                    event.sequence, event.kind, last.offset, last.size_bytes + event.size_bytes
                )
            else:
                merged.append(event)
        if len(merged) + len(old) - middle > self._max_events:
            merged = _sort_by_stream(merged)
        kept = merged + old[middle:]
        assert kept[-1].sequence == self.last_sequence, "the newest number is kept"
        surplus = max(0, len(kept) - self._max_events)
        if surplus:
            self._trimmed = kept[surplus - 1].sequence
        newest = kept[surplus:]
        self._kinds = array("B", [event.kind for event in newest])
        self._offsets = array("Q", [event.offset for event in newest])
        self._sizes = array("I", [event.size_bytes for event in newest])
        self._sequences = array("Q", [event.sequence for event in newest])


def _n_pieces(kind: int, size_bytes: int) -> int:
    return max(1, -(-size_bytes // PIECE_BYTES)) if kind in OUTPUTS else 1


def _sort_by_stream(events: list[Event]) -> list[Event]:
    """Merge small events over the events of the other stream in between.

    The stream of the last event comes second, with the number of that event. The first stream gets
    the number before, at which every reader had all bytes of the first stream.
    """
    found: list[Event] = []
    merged: dict[Kind, Event] = {}

    def flush() -> None:
        *first, last = sorted(merged.values())
        found.extend(event._replace(sequence=last.sequence - 1) for event in first)
        found.append(last)
        merged.clear()

    for event in events:
        before = merged.get(event.kind)
        size_bytes = event.size_bytes + (before.size_bytes if before else 0)
        if event.kind not in OUTPUTS or size_bytes > PIECE_BYTES:
            if merged:
                flush()
            before, size_bytes = None, event.size_bytes
        if event.kind in OUTPUTS and size_bytes <= PIECE_BYTES:
            offset = before.offset if before else event.offset
            merged[event.kind] = Event(event.sequence, event.kind, offset, size_bytes)
        else:
            found.append(event)
    if merged:
        flush()
    return found
