from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.api.wire.output_text import append_line, render
from execd.engine.output.log import Excerpt
from execd.model import Truncation


def excerpt(whole: bytes, head_bytes: int, tail_bytes: int) -> Excerpt:
    omitted = len(whole) - head_bytes - tail_bytes
    return Excerpt(
        whole[:head_bytes],
        whole[len(whole) - tail_bytes :],
        Truncation(total_bytes=len(whole), head_bytes=head_bytes, omitted_bytes=omitted),
    )


def test_whole_output_is_decoded_and_nothing_else() -> None:
    assert render(Excerpt(b"a\r\nb\rc\xff\xe2\x82", b"", None)) == ("a\r\nb\rc\ufffd\ufffd", None)


def test_cut_gets_a_line_of_its_own() -> None:
    text, cut = render(excerpt(b"head......tail", 4, 4))
    assert text == "head\n[execd: 6 bytes omitted]\ntail"
    assert cut == Truncation(total_bytes=14, head_bytes=4, omitted_bytes=6)


def test_cut_at_a_line_end_adds_no_empty_line() -> None:
    assert render(excerpt(b"head\n.....tail", 5, 4))[0] == "head\n[execd: 5 bytes omitted]\ntail"


@pytest.mark.parametrize("character", ["é", "€", "🐍"])
def test_character_that_the_cut_goes_through_is_left_out_and_counted(character: str) -> None:
    whole = character.encode() * 40
    for head_bytes in range(1, 9):
        for tail_bytes in range(1, 9):
            text, cut = render(excerpt(whole, head_bytes, tail_bytes))
            assert cut is not None
            head, _, tail = text.partition(f"\n[execd: {cut.omitted_bytes} bytes omitted]\n")
            if cut.head_bytes == 0:
                tail = text.removeprefix(f"[execd: {cut.omitted_bytes} bytes omitted]\n")
                head = ""
            assert set(head + tail) <= {character}
            assert whole.startswith(head.encode())
            assert len(head.encode()) == cut.head_bytes
            assert len(tail.encode()) == cut.total_bytes - cut.head_bytes - cut.omitted_bytes


@given(st.binary(min_size=2, max_size=60), st.data())
def test_numbers_always_add_up(whole: bytes, data: st.DataObject) -> None:
    head_bytes = data.draw(st.integers(0, len(whole) - 1))
    tail_bytes = data.draw(st.integers(0, len(whole) - 1 - head_bytes))
    text, cut = render(excerpt(whole, head_bytes, tail_bytes))
    assert cut is not None
    assert 0 <= cut.head_bytes <= head_bytes
    assert head_bytes - cut.head_bytes <= 3
    assert cut.omitted_bytes + cut.head_bytes <= len(whole)
    assert text.encode().startswith(whole[: cut.head_bytes].decode("utf-8", "replace").encode())


@pytest.mark.parametrize(
    ("text", "joined"), [("", "x"), ("a", "a\nx"), ("a\n", "a\nx"), ("a\n\n", "a\n\nx")]
)
def test_line_is_joined_with_one_line_end(text: str, joined: str) -> None:
    assert append_line(text, "x") == joined
