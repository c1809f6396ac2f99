from __future__ import annotations

import errno
import os
import signal

import pytest

from execd.engine.executions import exit_status
from execd.engine.executions.exit_status import Exit
from execd.engine.output.head_tail import HeadTail
from execd.model import ExitReason, Limits

NO_LIMITS = Limits()


def stderr_of(words: bytes) -> HeadTail:
    stderr = HeadTail(1024, 1024)
    stderr.append(words)
    return stderr


def ended_by(action: str) -> int:
    """Run ``action`` in a real process. Return the wait status."""
    # Python ignores two signals. A shell inherits the ignored signals and cannot undo the ignoring.
    pid = os.posix_spawn(
        "/bin/sh", ["sh", "-c", action], {}, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
    )
    return os.waitpid(pid, 0)[1]


@pytest.mark.parametrize("exit_code", [0, 1, 2, 42, 126, 127, 128, 130, 137, 255])
def test_an_exit_code_is_what_the_program_passed_to_exit(exit_code: int) -> None:
    assert exit_status.decode(ended_by(f"exit {exit_code}")) == Exit(exit_code, None)


@pytest.mark.parametrize(
    "name", ["TERM", "KILL", "HUP", "SEGV", "ABRT", "PIPE", "USR1", "XCPU", "XFSZ"]
)
def test_a_signal_is_what_ended_the_program(name: str) -> None:
    number = signal.Signals[f"SIG{name}"]
    assert exit_status.decode(ended_by(f"ulimit -c 0; kill -{name} $$")) == Exit(None, number)


def test_a_core_dump_does_not_change_the_signal() -> None:
    assert exit_status.decode(signal.SIGSEGV | 0x80) == Exit(None, signal.SIGSEGV)


def test_every_exit_code_is_decoded() -> None:
    for exit_code in range(256):
        assert exit_status.decode(exit_code << 8) == Exit(exit_code, None)


@pytest.mark.parametrize(
    ("wait_status", "exit_code", "words"),
    [
        (0, 0, b""),
        (7 << 8, 7, b""),
        (signal.SIGKILL, 137, b"Killed\n"),
        (signal.SIGTERM, 143, b"Terminated\n"),
        (signal.SIGINT, 130, b""),
        (signal.SIGPIPE, 141, b""),
        (signal.SIGSEGV | 0x80, 139, b"Segmentation fault (core dumped)\n"),
        (32, 160, b"Unknown signal 32\n"),
        (64, 192, b"Real-time signal 30\n"),
    ],
)
def test_dash_reports_a_signal_by_an_exit_code_and_a_line(
    wait_status: int, exit_code: int, words: bytes
) -> None:
    """tests/engine/executions/test_direct_exec_beside_shells.py asks dash itself."""
    reported = exit_status.as_reported_by_dash(wait_status)
    assert reported == (exit_code << 8, words)
    assert exit_status.decode(reported[0]) == Exit(exit_code, None)


@pytest.mark.parametrize("wait_status", [0x137F, 0xFFFF])
def test_stopped_and_continued_are_not_ends(wait_status: int) -> None:
    with pytest.raises(ValueError, match="does not say that the process ended"):
        exit_status.decode(wait_status)


@pytest.mark.parametrize(
    ("ended", "limits", "cpu_seconds", "reason"),
    [
        (Exit(0, None), NO_LIMITS, 0.0, ExitReason.EXITED),
        (Exit(1, None), NO_LIMITS, 0.0, ExitReason.EXITED),
        (Exit(137, None), NO_LIMITS, 0.0, ExitReason.EXITED),
        (Exit(152, None), NO_LIMITS, 9.0, ExitReason.EXITED),
        (Exit(None, signal.SIGKILL), NO_LIMITS, 9.0, ExitReason.SIGNALED),
        (Exit(None, signal.SIGXCPU), NO_LIMITS, 9.0, ExitReason.SIGNALED),
        (Exit(None, signal.SIGXFSZ), NO_LIMITS, 9.0, ExitReason.SIGNALED),
        (Exit(None, signal.SIGXCPU), Limits(cpu_seconds=1), 1.0, ExitReason.CPU_LIMIT),
        (Exit(None, signal.SIGXCPU), Limits(cpu_seconds=1), 0.97, ExitReason.CPU_LIMIT),
        (Exit(152, None), Limits(cpu_seconds=1), 1.0, ExitReason.CPU_LIMIT),
        (Exit(152, None), Limits(cpu_seconds=100), 0.001, ExitReason.EXITED),
        (Exit(None, signal.SIGXCPU), Limits(cpu_seconds=100), 0.001, ExitReason.SIGNALED),
        (Exit(None, signal.SIGKILL), Limits(cpu_seconds=1), 2.0, ExitReason.CPU_LIMIT),
        (Exit(137, None), Limits(cpu_seconds=1), 2.0, ExitReason.CPU_LIMIT),
        (Exit(None, signal.SIGKILL), Limits(cpu_seconds=5), 2.0, ExitReason.SIGNALED),
        (Exit(137, None), Limits(cpu_seconds=5), 2.0, ExitReason.EXITED),
        (Exit(0, None), Limits(cpu_seconds=1), 2.0, ExitReason.EXITED),
        (Exit(None, signal.SIGXFSZ), Limits(file_size_bytes=1), 0.0, ExitReason.FILE_SIZE_LIMIT),
        (Exit(128 + signal.SIGXFSZ, None), Limits(file_size_bytes=1), 0.0, ExitReason.EXITED),
        (Exit(None, signal.SIGXFSZ), Limits(cpu_seconds=1), 0.0, ExitReason.SIGNALED),
        (
            Exit(128 + signal.SIGTERM, None),
            Limits(cpu_seconds=1, file_size_bytes=1),
            0.0,
            ExitReason.EXITED,
        ),
    ],
)
def test_the_reason_is_a_limit_only_where_there_was_one_and_it_was_met(
    ended: Exit, limits: Limits, cpu_seconds: float, reason: ExitReason
) -> None:
    assert exit_status.natural_reason(ended, limits, cpu_seconds, stderr_of(b"")) is reason


@pytest.mark.parametrize(
    ("last_words", "reason"),
    [
        (b"File size limit exceeded\n", ExitReason.FILE_SIZE_LIMIT),
        (
            b"sh: line 1: 7 File size limit exceeded(core dumped) head > f\n",
            ExitReason.FILE_SIZE_LIMIT,
        ),
        (b"zsh: file size limit exceeded  head\n", ExitReason.FILE_SIZE_LIMIT),
        (b"Terminated\n", ExitReason.EXITED),
        (b"", ExitReason.EXITED),
    ],
)
def test_a_shells_code_is_the_file_size_limit_if_the_shell_said_so(
    last_words: bytes, reason: ExitReason
) -> None:
    def natural_reason(exit_code: int, limits: Limits) -> ExitReason:
        return exit_status.natural_reason(Exit(exit_code, None), limits, 0.0, stderr_of(last_words))

    assert natural_reason(153, Limits(file_size_bytes=1)) is reason
    assert natural_reason(153, NO_LIMITS) is ExitReason.EXITED
    assert natural_reason(1, Limits(file_size_bytes=1)) is ExitReason.EXITED


@pytest.mark.parametrize(
    ("step", "error", "code"),
    [
        ("exec", errno.ENOENT, 127),
        ("exec", errno.ENOTDIR, 127),
        ("exec", errno.ELOOP, 127),
        ("exec", errno.ENAMETOOLONG, 127),
        ("exec", errno.EACCES, 126),
        ("exec", errno.ENOEXEC, 126),
        ("exec", errno.EISDIR, 126),
        ("exec", errno.E2BIG, 126),
        ("cwd", errno.ENOENT, 125),
        ("cwd", errno.EACCES, 125),
        ("fork", errno.EAGAIN, 125),
        ("request", 0, 125),
    ],
)
def test_a_program_that_could_not_be_started_has_the_code_that_env_gives(
    step: str, error: int, code: int
) -> None:
    assert exit_status.code_of_failed_start(step, error) == code
