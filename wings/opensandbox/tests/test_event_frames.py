"""The frames of a stream."""

from __future__ import annotations

import itertools
import json
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.model import ExitReason, Result
from execd_opensandbox.event_frames import (
    MAX_LINE_BYTES,
    EventFrames,
    command_error,
    complete_frame,
    end_frames,
    frame,
    ping_frame,
)
from wings.opensandbox.tests.conftest import decode_frames

if TYPE_CHECKING:
    from execd.model import Stream

NOW = 1795672222632
OUTPUT = st.lists(
    st.sampled_from(["a", "é", "\u2028", "\x85", "\x00", '"', "\\", "😀", "\n", "\r", "\r\n"]),
    max_size=40,
).map("".join)
PIECES = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=30)))


def texts_of(pieces: list[tuple[Stream, bytes]], *, strips: bool = False) -> dict[str, list[str]]:
    """The texts of the events, by stream."""
    frames = EventFrames(strips=strips)
    body = b"".join(frames.output(stream, data, NOW) for stream, data in pieces) + frames.rest(NOW)
    found: dict[str, list[str]] = {"stdout": [], "stderr": []}
    for event in decode_frames(body) if body else []:
        assert event["timestamp"] == NOW
        found[event["type"]].append(event["text"])
    return found


def cut(data: bytes, places: list[int]) -> list[tuple[Stream, bytes]]:
    borders = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [("stdout", data[a:b]) for a, b in itertools.pairwise(borders)]


@given(OUTPUT, st.lists(st.integers(0, 1000), max_size=5))
def test_texts_together_are_the_output_wherever_the_output_is_cut(
    text: str, places: list[int]
) -> None:
    found = texts_of(cut(text.encode(), places))["stdout"]
    assert "".join(found) == text
    assert found == [line for line in re.split(r"(?<=\n)|(?<=\r)(?!\n)", text) if line]


@given(PIECES)
def test_streams_do_not_mix(pieces: list[tuple[Stream, bytes]]) -> None:
    found = texts_of(pieces)
    for stream in "stdout", "stderr":
        alone = [piece for piece in pieces if piece[0] == stream]
        assert found[stream] == texts_of(alone)[stream]


@given(OUTPUT, st.lists(st.integers(0, 1000), max_size=5))
def test_stripped_texts_have_no_line_end_and_a_blank_line_is_one(
    text: str, places: list[int]
) -> None:
    kept = texts_of(cut(text.encode(), places))["stdout"]
    stripped = texts_of(cut(text.encode(), places), strips=True)["stdout"]
    assert stripped == [line.rstrip("\r\n") or "\n" for line in kept]


def test_output_that_is_not_utf_8_gets_replacement_characters() -> None:
    assert texts_of([("stdout", b"a\xffb\n")])["stdout"] == ["a\ufffdb\n"]


def test_long_line_comes_in_events_that_are_cut_between_characters() -> None:
    text = "x" + "é" * MAX_LINE_BYTES
    found = texts_of([("stdout", text.encode())])["stdout"]
    assert "".join(found) == text
    assert len(found) > 1
    assert max(len(one.encode()) for one in found) <= MAX_LINE_BYTES


def test_frame_is_bare_json_with_the_fields_in_the_order_of_opensandbox() -> None:
    assert ping_frame(NOW) == b'{"type":"ping","text":"pong","timestamp":%d}\n\n' % NOW
    complete = b'{"type":"execution_complete","execution_time":4006,"timestamp":%d}\n\n' % NOW
    assert complete_frame(4.006, NOW) == complete
    init = b'{"type":"init","text":"0dc2","timestamp":%d}\n\n' % NOW
    assert frame("init", NOW, text="0dc2") == init


def test_time_of_zero_is_left_out_as_opensandbox_leaves_it_out() -> None:
    assert complete_frame(0.0, NOW) == b'{"type":"execution_complete","timestamp":%d}\n\n' % NOW


def ended(**fields: Any) -> Result:
    return Result(**{"exit_code": None, "term_signal": None, **fields})


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (
            ended(exit_code=3, exit_reason=ExitReason.EXITED),
            {"ename": "CommandExecError", "evalue": "3", "traceback": ["exit status 3"]},
        ),
        (
            ended(term_signal=signal.SIGKILL, exit_reason=ExitReason.SIGNALED),
            {"ename": "CommandExecError", "evalue": "-1", "traceback": ["signal: killed"]},
        ),
        (
            ended(term_signal=15, exit_reason=ExitReason.TIMEOUT, message="0.5 s were over"),
            {
                "ename": "CommandTimeout",
                "evalue": "-1",
                "traceback": ["signal: terminated", "0.5 s were over"],
            },
        ),
        (
            ended(exit_code=0, exit_reason=ExitReason.TIMEOUT, message="0.5 s were over"),
            {
                "ename": "CommandTimeout",
                "evalue": "-1",
                "traceback": ["exit status 0", "0.5 s were over"],
            },
        ),
        (
            ended(exit_reason=ExitReason.SPAWN_FAILED, message="no such cwd"),
            {"ename": "CommandExecError", "evalue": "125", "traceback": ["no such cwd"]},
        ),
        (
            ended(exit_reason=ExitReason.INIT_KILLED),
            {"ename": "CommandInitKilled", "evalue": "125", "traceback": ["CommandInitKilled"]},
        ),
    ],
)
def test_error_has_the_exit_code_and_the_reason(result: Result, error: dict[str, Any]) -> None:
    assert command_error(result) == error


BY_ITSELF = (ExitReason.SIGNALED, ExitReason.SPAWN_FAILED)
"""Ends in which a program has no exit code."""


@pytest.mark.parametrize(
    ("reason", "exit_code"),
    [
        (reason, code)
        for reason in ExitReason
        for code in (None, 0, 1)
        if not (reason in BY_ITSELF and code is not None)
    ],
)
def test_last_event_is_complete_or_an_error_and_success_is_exit_code_0_alone(
    reason: ExitReason, exit_code: int | None
) -> None:
    [last] = end_frames(ended(exit_code=exit_code, exit_reason=reason), NOW)
    event = json.loads(last)
    succeeded = reason is ExitReason.EXITED and exit_code == 0
    assert event["type"] == ("execution_complete" if succeeded else "error")
    if not succeeded:
        assert int(event["error"]["evalue"]) != 0
