"""The lines of ``/execute``, read as the SDKs read them: by lines, each as JSON."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.model import DisplayMessage, ExitReason, Result
from execd_e2b import cell_lines

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.sampled_from(
    ["\u2028", "\u2029", "\x85", "\r\n", "\x0b\x0c\x1c", "\n\n"]
)


def read(lines: bytes) -> list[Any]:
    """httpx splits lines as ``str.splitlines`` does."""
    return [json.loads(line) for line in lines.decode().splitlines()]


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


@given(text=TEXTS)
def test_text_never_breaks_a_line(text: str) -> None:
    line = cell_lines.output_line("stdout", text, "now")
    assert line.isascii()
    assert read(line * 2) == [{"type": "stdout", "text": text, "timestamp": "now"}] * 2


@given(bundle=st.dictionaries(TEXTS, TEXTS | st.integers() | st.lists(TEXTS), max_size=4))
def test_display_is_a_line_with_all_its_data(bundle: dict[str, Any]) -> None:
    message = DisplayMessage("display", {"data": raw(bundle), "metadata": raw({})})
    line = cell_lines.display_line(message)
    assert line is not None
    [shown] = read(line)
    assert shown.pop("type") == "result"
    assert shown.pop("is_main_result") is False
    extra = shown.pop("extra", {})
    names = {name: kind for kind, name in cell_lines.FIELDS.items()}
    assert {**{names[name]: data for name, data in shown.items()}, **extra} == bundle


def test_value_of_the_cell_is_the_main_result() -> None:
    fields = {"data": raw({"text/plain": "1", "x/y": 2}), "metadata": raw({})}
    line = cell_lines.display_line(DisplayMessage("result", fields))
    assert line is not None
    assert read(line) == [
        {"type": "result", "is_main_result": True, "text": "1", "extra": {"x/y": 2}}
    ]


def test_exception_has_its_traceback_as_one_text() -> None:
    fields = {"name": "E", "value": "v", "traceback": raw(["a\n", "b"])}
    line = cell_lines.display_line(DisplayMessage("error", fields))
    assert line is not None
    assert read(line) == [{"type": "error", "name": "E", "value": "v", "traceback": "a\nb"}]


def test_messages_without_a_line_have_none() -> None:
    assert cell_lines.display_line(DisplayMessage("clear_output", {"wait": False})) is None


@pytest.mark.parametrize(("message", "value"), [("why", "why"), ("", "the cell ended: timeout")])
def test_end_by_force_is_an_error_with_the_reason(message: str, value: str) -> None:
    result = Result(
        exit_code=None, term_signal=None, exit_reason=ExitReason.TIMEOUT, message=message
    )
    [error] = read(cell_lines.end_line(result))
    assert error == {
        "type": "error",
        "name": "UnexpectedEndOfExecution",
        "value": value,
        "traceback": "",
    }


def test_loss_is_a_line_of_its_own() -> None:
    [lost] = read(cell_lines.dropped_line("stderr", 10, 5))
    assert lost == {"type": "dropped", "stream": "stderr", "offset": 10, "size_bytes": 5}
