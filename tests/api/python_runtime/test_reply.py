from __future__ import annotations

import signal

import pytest

from execd.api.python_runtime.reply import append_reason, exit_code
from execd.model import ExitReason, Result


def result(
    reason: ExitReason, code: int | None = None, term_signal: int | None = None, message: str = ""
) -> Result:
    return Result(exit_code=code, term_signal=term_signal, exit_reason=reason, message=message)


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (result(ExitReason.EXITED, 3), 3),
        (result(ExitReason.EXITED, 137), 137),
        (result(ExitReason.SIGNALED, None, signal.SIGKILL), -9),
        (result(ExitReason.SIGNALED, None, signal.SIGTERM), -15),
        (result(ExitReason.TIMEOUT, None, signal.SIGTERM), 124),
        (result(ExitReason.TIMEOUT, 0), 124),
        (result(ExitReason.SPAWN_FAILED), 1),
        (result(ExitReason.INIT_KILLED, None, signal.SIGKILL), -9),
        (result(ExitReason.CANCELED), -9),
    ],
)
def test_exit_code_is_always_a_number(ended: Result, code: int) -> None:
    assert exit_code(ended) == code


@pytest.mark.parametrize("reason", list(ExitReason))
def test_every_reason_that_is_not_the_programs_own_is_told_on_stderr(reason: ExitReason) -> None:
    text = append_reason("trouble", result(reason, 1), 5)
    if reason in (ExitReason.EXITED, ExitReason.SIGNALED):
        assert text == "trouble"
    else:
        assert text.startswith("trouble\n")
        assert len(text.splitlines()) == 2


@pytest.mark.parametrize(
    ("seconds", "shown"), [(5.0, "5"), (0.25, "0.25"), (300.0, "300"), (1e7, "1e+07")]
)
def test_timeout_is_told_in_the_known_words(seconds: float, shown: str) -> None:
    assert (
        append_reason("", result(ExitReason.TIMEOUT), seconds)
        == f"Command timed out after {shown} seconds"
    )


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("the tree used 3 MiB of 2 MiB", "memory_limit (the tree used 3 MiB of 2 MiB)"),
        ("", "memory_limit"),
    ],
)
def test_reason_of_an_end_is_told_with_its_message(message: str, told: str) -> None:
    ended = result(ExitReason.MEMORY_LIMIT, message=message)
    assert append_reason("", ended, 5) == f"Command ended by execd: {told}"


def test_failed_spawn_is_told_in_the_known_words() -> None:
    ended = result(ExitReason.SPAWN_FAILED, message="embedded null byte")
    assert append_reason("", ended, 5) == "Failed to execute command: embedded null byte"
