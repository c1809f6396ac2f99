from __future__ import annotations

import functools
import itertools
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from execd.engine.output.head_tail import HeadTail, incomplete_tail_bytes

CHUNKS = st.lists(st.binary(max_size=30), max_size=20)


@given(CHUNKS, st.integers(0, 25), st.integers(0, 25))
@example([b"x" * 25, b"y" * 25], 0, 25)
@example([b"x" * 25, b"y" * 25], 25, 0)
@example([b"x", b"y"], 0, 0)
def test_head_and_tail_hold_the_first_and_the_newest_bytes(
    chunks: list[bytes], head_bytes: int, tail_bytes: int
) -> None:
    """Against the plain bytes, at every step and for every range."""
    log, model = HeadTail(head_bytes, tail_bytes), b""
    for chunk in chunks:
        log.append(chunk)
        model += chunk
        assert log.total_bytes == len(model)
        assert log.head_end == min(head_bytes, len(model))
        assert log.tail_start == max(log.head_end, len(model) - tail_bytes)
        assert log.memory_bytes <= head_bytes + 2 * tail_bytes
    whole = len(model) <= head_bytes + tail_bytes
    for offset in range(len(model) + 1):
        for end in range(offset, len(model) + 1):
            here = whole or end <= log.head_end or offset >= log.tail_start
            assert log.read(offset, end) == (model[offset:end] if here else None)


@pytest.mark.parametrize(("offset", "end"), [(-1, 0), (0, 4), (3, 2), (4, 4)])
def test_a_range_outside_the_stream_is_the_callers_mistake(offset: int, end: int) -> None:
    log = HeadTail(10, 10)
    log.append(b"abc")
    with pytest.raises(ValueError, match="outside"):
        log.read(offset, end)


def test_a_flood_costs_no_more_memory_than_head_and_twice_the_tail() -> None:
    log = HeadTail(128 * 1024, 128 * 1024)
    chunk = b"y\n" * 32 * 1024
    tracemalloc.start()
    try:
        for _ in range(3200):
            log.append(chunk)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert log.total_bytes == 200 << 20
    assert peak_bytes < 1 << 20


UTF8_PIECES = st.sampled_from(
    [
        b"a",
        "é".encode(),
        "€".encode(),
        "😀".encode(),
        b"\x80",
        b"\xc3",
        b"\xe2\x82",
        b"\xf0\x9f\x98",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xe0\x80",
        b"\xf4\x90\x80\x80",
        b"\xc0\xaf",
        b"\xf8\x88\x80\x80\x80",
        b"\0",
        b"\r\n",
    ]
)
NEARLY_UTF8 = st.lists(UTF8_PIECES, max_size=8).map(b"".join) | st.binary(max_size=20)


@functools.cache
def may_become_a_character(beginning: bytes) -> bool:
    """Try all endings. A surrogate counts: Python's decoders wait for the last byte before
    reporting the surrogate as an error."""
    candidates = [range(0xC2, 0xF5), *[(0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF)] * 3]
    for length in range(len(beginning) + 1, 5):
        for end in itertools.product(*candidates[len(beginning) : length]):
            try:
                text = (beginning + bytes(end)).decode("utf-8", "surrogatepass")
            except UnicodeDecodeError:
                continue
            if len(text) == 1:
                return True
    return False


def incomplete_by_trying(data: bytes) -> int:
    return next(
        (
            n
            for n in (3, 2, 1)
            if n <= len(data) and data[-n] >= 0xC0 and may_become_a_character(data[-n:])
        ),
        0,
    )


@given(NEARLY_UTF8)
@example(b"\xe0\x80")
@example(b"\xed\xa0")
@example(b"\xf0\x80")
@example(b"\xf4\x90\x80")
@example(b"\xe2\x82")
@example(b"\xf0\x9f\x98")
@example(b"\xc1")
@example(b"\xf5")
def test_the_incomplete_tail_is_what_could_still_become_a_character(data: bytes) -> None:
    assert incomplete_tail_bytes(data) == incomplete_by_trying(data)


def test_the_incomplete_tail_is_right_for_every_pair_of_bytes() -> None:
    for pair in itertools.product(range(256), repeat=2):
        assert incomplete_tail_bytes(bytes(pair)) == incomplete_by_trying(bytes(pair)), bytes(pair)


@given(st.lists(st.binary(max_size=20)), st.integers(0, 30))
def test_the_newest_bytes_are_there_as_far_as_the_memory_reaches(
    chunks: list[bytes], size_bytes: int
) -> None:
    kept, everything = HeadTail(8, 8), b"".join(chunks)
    for chunk in chunks:
        kept.append(chunk)
    if size_bytes <= 8 or len(everything) <= 16:
        assert kept.newest(size_bytes) == everything[max(0, len(everything) - size_bytes) :]
    else:
        assert everything.endswith(kept.newest(size_bytes))
