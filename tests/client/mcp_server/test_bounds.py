"""What fits into an answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd_client.mcp_server import bounds
from execd_client.models import StreamTruncation


@given(st.text(min_size=1), st.integers(0, 200))
def test_a_cut_never_divides_a_character(text: str, place: int) -> None:
    content = text.encode()
    start = bounds.character_start(content, min(place, len(content)))
    assert content[:start].decode() + content[start:].decode() == text


def test_short_output_is_shown_whole() -> None:
    assert bounds.output("stdout", b"hi\n", None, "job") == "stdout:\nhi"
    assert bounds.output("stderr", b"", None, "job") == ""


def test_a_reply_that_lacks_bytes_names_the_first_missing_byte() -> None:
    lacking = StreamTruncation(total_bytes=100, head_bytes=5, omitted_bytes=90, url="")
    shown = bounds.output("stdout", b"headtail", lacking, "job")
    assert "[90 bytes of stdout are left out here" in shown
    assert "start_byte=5 " in shown


@given(st.lists(st.text(alphabet="ab\né"), max_size=20), st.integers(1, 9), st.integers(1, 9))
def test_lines_are_the_same_however_the_file_is_cut(
    pieces: list[str], start_line: int, max_lines: int
) -> None:
    content = "".join(pieces)
    whole, parts = bounds.Part(start_line, max_lines), bounds.Part(start_line, max_lines)
    whole.take(content.encode())
    for piece in pieces:
        parts.take(piece.encode())
    assert parts.text("f") == whole.text("f")
    wanted = content.split("\n")[start_line - 1 : start_line - 1 + max_lines]
    if wanted and any(wanted):
        assert whole.text("f").startswith(wanted[0])


def test_a_line_over_the_limit_is_cut_and_the_rest_is_a_command() -> None:
    part = bounds.Part(1, 10)
    part.take(b"x" * (bounds.FILE_BYTES + 10) + b"\nend\n")
    shown = part.text("long")
    assert f"`sed -n 1p long | cut -b {bounds.FILE_BYTES + 1}-`" in shown
    assert shown.endswith("the next line is start_line=2]")


@pytest.mark.parametrize(("number", "last"), [(200, "199"), (201, "[1 more are left out: ask]")])
def test_lists_are_bounded(number: int, last: str) -> None:
    assert bounds.lines([str(n) for n in range(number)], "ask").splitlines()[-1] == last
