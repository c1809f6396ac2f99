from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from execd.engine.output.event_index import MERGED_BYTES, EventIndex, Kind

OUTPUT = st.tuples(st.sampled_from([Kind.STDOUT, Kind.STDERR]), st.integers(1, MERGED_BYTES))


def filled(sizes: list[tuple[Kind, int]], max_events: int) -> tuple[EventIndex, dict[Kind, int]]:
    index, totals = EventIndex(max_events), {Kind.STDOUT: 0, Kind.STDERR: 0}
    for number, (kind, size) in enumerate(sizes, start=1):
        assert index.append(kind, totals[kind], size) == number
        totals[kind] += size
    return index, totals


@given(st.lists(OUTPUT, max_size=80), st.integers(2, 12))
def test_numbers_rise_and_nothing_of_the_newest_is_lost(
    sizes: list[tuple[Kind, int]], max_events: int
) -> None:
    index, _ = filled(sizes, max_events)
    events = index.after(0, 10_000)
    assert index.last_sequence == len(sizes)
    assert [event.sequence for event in events] == sorted({event.sequence for event in events})
    # The index keeps the newest half as written.
    newest = sizes[max(0, len(sizes) - max_events // 2) :]
    assert [
        (event.kind, event.size_bytes) for event in events[len(events) - len(newest) :]
    ] == newest
    assert len(events) <= 2 * max_events


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


@given(st.lists(OUTPUT, min_size=1, max_size=80), st.integers(2, 12))
def test_a_number_can_be_resumed_only_where_an_event_ends(
    sizes: list[tuple[Kind, int]], max_events: int
) -> None:
    index, _ = filled(sizes, max_events)
    kept = {event.sequence for event in index.after(0, 10_000)}
    for sequence in range(1, len(sizes) + 3):
        if sequence > len(sizes):
            assert not index.can_resume(sequence)
        elif index.can_resume(sequence):
            assert sequence in kept or sequence < min(kept), "the events after it are whole"
            rest = index.after(sequence, 10_000)
            assert sum(event.size_bytes for event in rest) == sum(
                size for _, size in sizes[sequence:]
            )
        else:
            assert sequence not in kept


def test_a_long_log_of_one_stream_is_merged_and_not_trimmed() -> None:
    index, _ = filled([(Kind.STDOUT, 10)] * 1000, 8)
    events = index.after(0, 1000)
    assert events[0].offset == 0
    assert sum(event.size_bytes for event in events) == 10_000
    assert index.can_resume(1000)
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
