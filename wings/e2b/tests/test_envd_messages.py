"""Requests and events of ``process.Process``."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.errors import InvalidArgument, NotSupported
from execd.model import ExitReason, Result
from execd_e2b.envd_messages import (
    OWN_ENDS,
    Pty,
    Selector,
    Size,
    data_event,
    dropped_event,
    end_event,
    signal_number,
    start_event,
    terminal_size,
)


def end(**fields: object) -> dict[str, object]:
    asked = {"exit_code": None, "term_signal": None, "exit_reason": ExitReason.EXITED, **fields}
    found: dict[str, object] = end_event(Result(**asked))["event"]["end"]  # type: ignore[arg-type]
    return found


@given(exit_code=st.integers(0, 255), reason=st.sampled_from(ExitReason))
def test_sdk_reads_the_exit_code_of_every_end(exit_code: int, reason: ExitReason) -> None:
    told = end(exit_code=exit_code, exit_reason=reason, message="why")
    assert told.get("exitCode", 0) == exit_code
    assert (told["exited"], told["status"]) == (True, f"exit status {exit_code}")
    is_plain = exit_code == 0 and reason in OWN_ENDS
    assert ("error" in told) is not is_plain
    if reason not in OWN_ENDS:
        assert told["error"] == f"exit status {exit_code} (why)"


@given(number=st.sampled_from(list(signal.Signals)))
def test_signal_is_minus_one_in_words(number: signal.Signals) -> None:
    told = end(term_signal=int(number), exit_reason=ExitReason.SIGNALED)
    assert told["exitCode"] == -1
    assert str(told["status"]).startswith("signal: ")
    assert told["error"] == told["status"]
    assert "exited" not in told


@pytest.mark.parametrize(
    ("number", "words"), [(9, "killed"), (15, "terminated"), (11, "segmentation fault")]
)
def test_words_of_signals_are_those_of_go(number: int, words: str) -> None:
    assert end(term_signal=number)["status"] == f"signal: {words}"


def test_program_that_never_ran_is_no_success() -> None:
    told = end(exit_reason=ExitReason.SPAWN_FAILED, stand_in_exit_code=127, message="no program")
    assert (told["exitCode"], told["error"]) == (127, "exit status 127 (no program)")


def test_start_has_the_pid_if_there_is_one() -> None:
    assert start_event(7, "x") == {"event": {"start": {"executionId": "x", "pid": 7}}}
    assert start_event(None, "x") == {"event": {"start": {"executionId": "x"}}}


def test_output_is_base64_and_a_loss_is_told() -> None:
    assert data_event("pty", b"\xff") == {"event": {"data": {"pty": "/w=="}}}
    lost = {"stream": "stdout", "offset": 1, "sizeBytes": 2}
    assert dropped_event("stdout", 1, 2) == {"event": {"dropped": lost}}


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        (Selector(pid=7), (7, None)),
        (Selector(pid="7"), (7, None)),
        (Selector(tag="t"), (None, "t")),
        (Selector(tag=""), (None, "")),
    ],
)
def test_selector_names_the_pid_or_the_tag(
    selector: Selector, names: tuple[int | None, str | None]
) -> None:
    assert selector.names() == names


def test_selector_without_either_is_refused() -> None:
    for selector in (Selector(), Selector(pid="x")):
        with pytest.raises(InvalidArgument, match="pid or the tag"):
            selector.names()


@pytest.mark.parametrize("asked", ["SIGNAL_SIGTERM", 15])
def test_signals_go_by_name_and_number(asked: str | int) -> None:
    assert signal_number(asked) == signal.SIGTERM


@pytest.mark.parametrize("asked", ["SIGINT", 2, 0, "9"])
def test_other_signals_are_not_supported(asked: str | int) -> None:
    with pytest.raises(NotSupported, match="SIGNAL_SIGKILL"):
        signal_number(asked)


def test_size_of_a_terminal_is_checked() -> None:
    assert terminal_size(Pty(size=Size(cols=1, rows=65535))) == (1, 65535)
    assert terminal_size(Pty(size=None)) == (0, 0)
    for size in (Size(cols=-1, rows=1), Size(cols=1, rows=65536)):
        with pytest.raises(InvalidArgument, match=r"pty\.size"):
            terminal_size(Pty(size=size))
