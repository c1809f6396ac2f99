from __future__ import annotations

import re
from datetime import datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.api.v1.execution_reply import outcome_fields, program_fields
from execd.api.v1.execution_request import LimitsRequest
from execd.api.v1.execution_types import LimitsReply
from execd.api.wire.output_text import render
from execd.engine.executions.limits import LIMIT_NAMES
from execd.engine.output.log import Excerpt
from execd.model import ExitReason, Program, Result, rfc3339


def made(*argv: str, display: str) -> Program:
    return Program(argv=argv, display=display)


def result(
    exit_code: int | None = 0,
    term_signal: int | None = None,
    reason: ExitReason = ExitReason.EXITED,
) -> Result:
    return Result(exit_code=exit_code, term_signal=term_signal, exit_reason=reason)


FAILED_START = result(None, None, ExitReason.SPAWN_FAILED)


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (result(0), 0),
        (result(255), 255),
        (result(None, 9, ExitReason.SIGNALED), 137),
        (result(None, 15, ExitReason.TIMEOUT), 143),
        (result(None, 34, ExitReason.SIGNALED), 162),
        (result(None, None, ExitReason.INIT_KILLED), 125),
        (result(None, None, ExitReason.DAEMON_RESTARTED), 125),
        (msgspec.structs.replace(FAILED_START, stand_in_exit_code=127), 127),
    ],
)
def test_exit_code_is_the_programs_or_128_and_its_signal_or_a_stand_in(
    ended: Result, expected: int
) -> None:
    assert outcome_fields(ended, has_ended=True)["exit_code"] == expected


def test_nothing_but_a_code_is_claimed_of_an_end_that_nobody_knows() -> None:
    expected = {**outcome_fields(None, has_ended=False), "exit_code": 125, "survivors": None}
    assert outcome_fields(None, has_ended=True) == expected


def test_nothing_is_claimed_of_what_has_not_ended() -> None:
    assert outcome_fields(None, has_ended=False) == {
        "duration_seconds": None,
        "exit_code": None,
        "signal": None,
        "exit_reason": None,
        "message": None,
        "usage": None,
        "killed": None,
        "timed_out": False,
        "survivors": [],
    }


@pytest.mark.parametrize("reason", list(ExitReason))
def test_outcome_has_the_same_fields_whatever_the_reason(reason: ExitReason) -> None:
    fields = outcome_fields(result(None, 9, reason), has_ended=True)
    assert fields.keys() == outcome_fields(None, has_ended=False).keys()
    assert (fields["exit_reason"], fields["signal"], fields["exit_code"]) == (
        reason,
        "SIGKILL",
        137,
    )
    assert fields["timed_out"] == (reason in (ExitReason.TIMEOUT, ExitReason.NO_OUTPUT_TIMEOUT))


def test_program_is_shown_as_the_caller_put_it() -> None:
    assert program_fields(made("/bin/sh", "-c", "ls -l", display="ls -l")) == {"command": "ls -l"}
    assert program_fields(made("ls", "-l", display="ls -l")) == {"argv": ["ls", "-l"]}
    assert program_fields(made("/bin/sh", "-c", ". /proc/self/fd/3", display="x" * 200_000)) == {
        "command": "x" * 200_000
    }
    assert program_fields(made(display="ls -l")) == {"command": "ls -l"}


@given(st.floats(0, 4e9))
def test_time_is_utc_to_the_millisecond(seconds: float) -> None:
    text = rfc3339(seconds)
    assert text is not None
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
    assert abs(datetime.fromisoformat(text).timestamp() - seconds) <= 0.001


def test_time_that_is_not_known_is_null() -> None:
    assert rfc3339(None) is None


def test_character_that_may_yet_be_completed_is_not_shown_as_broken() -> None:
    half = Excerpt("aé".encode()[:2], b"", None)
    assert render(half, ended=False) == ("a", None)
    assert render(half) == ("a\ufffd", None)


def test_a_reply_tells_each_limit_of_requests() -> None:
    asked = set(LimitsRequest.__struct_fields__)
    assert (
        set(LimitsReply.__struct_fields__)
        == asked | {"timeout_seconds"}
        == {
            *LIMIT_NAMES,
            "timeout_seconds",
        }
    )
