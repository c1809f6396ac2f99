from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.engine.output.event_index import (
    EVENT_BYTES,
    MERGED_BYTES,
    PIECE_BYTES,
    EventIndex,
    Kind,
)

OUTPUT = st.tuples(st.sampled_from([Kind.STDOUT, Kind.STDERR]), st.integers(1, MERGED_BYTES))


def filled(sizes: list[tuple[Kind, int]], max_events: int) -> tuple[EventIndex, dict[Kind, int]]:
    index, totals = EventIndex(max_events), {Kind.STDOUT: 0, Kind.STDERR: 0}
    number = 0
    for kind, size in sizes:
        number += -(-size // PIECE_BYTES)
        assert index.append(kind, totals[kind], size) == number
        totals[kind] += size
    return index, totals


@given(st.lists(OUTPUT, max_size=80), st.integers(2, 12))
def test_numbers_rise_and_nothing_of_the_newest_is_lost(
    sizes: list[tuple[Kind, int]], max_events: int
) -> None:
    index, totals = filled(sizes, max_events)
    events = index.after(0, 10_000)
    assert [event.sequence for event in events] == sorted({event.sequence for event in events})
    assert all(event.size_bytes <= PIECE_BYTES for event in events)
    # The index keeps the newest half as written: all ends of these events are ends of pieces.
    ends = {(event.kind, event.offset + event.size_bytes) for event in events}
    for kind, size in reversed(sizes[max(0, len(sizes) - max_events // 2) :]):
        assert (kind, totals[kind]) in ends
        totals[kind] -= size
    assert index.memory_bytes <= 2 * max_events * EVENT_BYTES


@given(st.lists(OUTPUT, max_size=80), st.integers(2, 12))
def test_each_stream_is_without_a_gap_from_where_it_is_known_to_its_end(
    sizes: list[tuple[Kind, int]], max_events: int
) -> None:
    index, totals = filled(sizes, max_events)
    for kind, total in totals.items():
        known = [event for event in index.after(0, 10_000) if event.kind is kind]
        for event, following in itertools.pairwise(known):
            assert event.offset + event.size_bytes == following.offset
        if known:
            assert known[-1].offset + known[-1].size_bytes == total


def received_at(index: EventIndex, totals: dict[Kind, int]) -> dict[int, dict[Kind, int]]:
    """By number: the bytes that a reader has who read from the oldest event to this number."""
    reached = {
        kind: total if (first := index.next_offset(kind, 0)) is None else first
        for kind, total in totals.items()
    }
    found = {}
    for event in index.after(0, 10_000):
        reached[event.kind] = event.offset + event.size_bytes
        found[event.sequence] = dict(reached)
    return found


SMALL_OR_LONG = st.tuples(
    st.sampled_from([Kind.STDOUT, Kind.STDERR]),
    st.integers(1, 40) | st.integers(PIECE_BYTES - 1, 5 * PIECE_BYTES),
)


@given(st.lists(SMALL_OR_LONG, min_size=1, max_size=60), st.integers(2, 12))
def test_a_reader_goes_on_behind_each_piece_whenever_the_reader_got_the_piece(
    sizes: list[tuple[Kind, int]], max_events: int
) -> None:
    """Whoever resumes at a number got the number before or after any merge: no byte is missed.
    A reader of the newest pieces gets no byte twice."""
    index, totals = EventIndex(max_events), {Kind.STDOUT: 0, Kind.STDERR: 0}
    least: dict[int, dict[Kind, int]] = {}
    for kind, size in sizes:
        index.append(kind, totals[kind], size)
        totals[kind] += size
        for number, received in received_at(index, totals).items():
            before = least.setdefault(number, received)
            least[number] = {kind: min(received[kind], before[kind]) for kind in totals}
    newest = received_at(index, totals)
    for number, received in least.items():
        if not index.can_resume(number):
            assert number not in newest
            continue
        for kind, total in totals.items():
            begin = index.next_offset(kind, number)
            begin = total if begin is None else begin
            assert begin <= received[kind]
            if number in newest:
                assert begin == newest[number][kind]
    assert not index.can_resume(index.last_sequence + 1)


@pytest.mark.parametrize(
    ("sizes_bytes", "expected"),
    [
        ((MERGED_BYTES - 1, 1), [MERGED_BYTES]),
        ((1, MERGED_BYTES - 1), [MERGED_BYTES]),
        ((MERGED_BYTES, 1), [MERGED_BYTES, 1]),
        ((1, MERGED_BYTES), [1, MERGED_BYTES]),
    ],
)
def test_events_are_merged_up_to_the_bound_and_not_above(
    sizes_bytes: tuple[int, int], expected: list[int]
) -> None:
    # Room for six events: the thirteenth causes the merge of the oldest ten.
    index, _ = filled([*((Kind.STDOUT, size) for size in sizes_bytes), *[(Kind.STDERR, 1)] * 11], 6)
    found = index.after(0, 40)
    pieces = [event.size_bytes for event in found if event.kind is Kind.STDOUT]
    expected_pieces: list[int] = []
    for size in expected:
        expected_pieces += [PIECE_BYTES] * (size // PIECE_BYTES) or [size]
    assert pieces == expected_pieces
    assert [event.size_bytes for event in found if event.kind is Kind.STDERR] == [8, 1, 1, 1]


def test_events_of_more_bytes_than_a_column_holds_are_kept_apart() -> None:
    half = 1 << 31
    index, _ = filled([(Kind.STDOUT, half)] * 9, 4)
    n_pieces = half // PIECE_BYTES
    assert index.trimmed_sequence
    assert [index.after(number * n_pieces, 1)[0].offset for number in range(5, 9)] == [
        number * half for number in range(5, 9)
    ]


@pytest.mark.parametrize("begin", [0, 1 << 40])
def test_after_a_trim_a_reader_resumes_from_the_last_trimmed_number_on(begin: int) -> None:
    index = EventIndex(2)
    index.begin_after(begin)
    for position in range(5):
        index.append(Kind.RICH, position)
    assert [event.sequence - begin for event in index.after(0, 10)] == [4, 5]
    assert [number for number in range(7) if index.can_resume(begin + number)] == [3, 4, 5]


def test_a_display_is_one_piece_however_long() -> None:
    index = EventIndex(100)
    index.append(Kind.STDOUT, 0, 3 * PIECE_BYTES)
    assert index.append(Kind.RICH, 7, 5 * PIECE_BYTES) == 4
    [*_, display] = index.after(0, 100)
    assert display == (4, Kind.RICH, 7, 5 * PIECE_BYTES)
    assert index.can_resume(3)


def test_a_long_log_of_one_stream_is_merged_and_not_trimmed() -> None:
    index, _ = filled([(Kind.STDOUT, 10)] * 1000, 8)
    events = index.after(0, 1000)
    assert events[0].offset == 0
    assert sum(event.size_bytes for event in events) == 10_000
    assert index.can_resume(1000)
    assert not index.can_resume(1)


def test_a_long_log_of_two_streams_loses_their_order_before_it_is_trimmed() -> None:
    index, totals = filled([(Kind.STDOUT, 10), (Kind.STDERR, 7)] * 1000, 8)
    assert not index.trimmed_sequence
    for kind, total in totals.items():
        assert sum(event.size_bytes for event in index.after(0, 100) if event.kind is kind) == total
    assert not index.can_resume(1)


def test_started_and_exited_are_never_merged() -> None:
    index = EventIndex(2)
    index.append(Kind.STARTED)
    for number in range(20):
        index.append(Kind.STDOUT, number, 1)
    index.append(Kind.EXITED)
    assert [event.kind for event in index.after(0, 100)][-1] is Kind.EXITED


def test_the_next_output_of_a_stream_is_found_from_any_number() -> None:
    index, _ = filled([(Kind.STDOUT, 5), (Kind.STDERR, 7), (Kind.STDOUT, 11)], 100)
    assert index.next_offset(Kind.STDOUT, 0) == 0
    assert index.next_offset(Kind.STDOUT, 1) == 5
    assert index.next_offset(Kind.STDERR, 2) is None


ANY_EVENT = st.tuples(st.sampled_from(Kind), st.integers(0, 2**60), st.integers(0, 2**32 - 1))


@given(st.lists(ANY_EVENT, max_size=60), st.integers(2, 12), st.integers(0, 2**40))
def test_a_packed_index_says_the_same_when_unpacked(
    events: list[tuple[Kind, int, int]], max_events: int, begin: int
) -> None:
    index = EventIndex(max_events)
    index.begin_after(begin)
    for kind, offset, size in events:
        index.append(kind, offset, size)
    again = EventIndex.unpack(index.pack())
    assert again.after(0, 10_000) == index.after(0, 10_000)
    numbers = range(begin, begin + len(events) + 2)
    assert [again.can_resume(number) for number in numbers] == [
        index.can_resume(number) for number in numbers
    ]
    assert again.append(Kind.EXITED) == index.append(Kind.EXITED)
    assert again.pack() == index.pack()


def test_a_packed_index_is_small() -> None:
    index, _ = filled([(Kind.STDOUT, 80), (Kind.STDERR, 7)] * 2000, 4096)
    assert len(index.pack()) < index.memory_bytes / 100


@given(
    st.lists(st.tuples(st.sampled_from(Kind), st.integers(0, 5)), max_size=30), st.integers(0, 40)
)
def test_number_before_an_offset_has_all_bytes_past_the_offset_after_it(
    appended: list[tuple[Kind, int]], offset: int
) -> None:
    index = EventIndex(8)
    reached = dict.fromkeys(Kind, 0)
    for kind, size_bytes in appended:
        index.append(kind, reached[kind], size_bytes)
        reached[kind] += size_bytes
    number = index.number_before(Kind.STDOUT, offset)
    later = index.after(number, 100)
    assert all(
        event in later
        for event in index.after(0, 100)
        if event.kind is Kind.STDOUT and event.offset + event.size_bytes > offset
    )
    ends = [event.offset + event.size_bytes for event in later if event.kind is Kind.STDOUT]
    assert all(end > offset for end in ends)
