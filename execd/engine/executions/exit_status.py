"""What wait4(2) and the warden tell of an end, decoded. Pure."""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING, NamedTuple

from execd.model import (
    NO_EXIT_CODE,
    NOT_EXECUTABLE_EXIT_CODE,
    NOT_FOUND_EXIT_CODE,
    SIGNAL_EXIT_CODE,
    ExitReason,
    Limits,
    Usage,
)

if TYPE_CHECKING:
    from execd.engine.output.head_tail import HeadTail
    from execd.proc.messages import Exited, Measured

# execve(2): no file has the name of the program, or of its interpreter. Any other error is of a
# file that is there: no permission, a directory, an unknown format.
NOT_FOUND_ERRORS = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG))
# The kernel applies the limit to what the ticks of its clock have sampled, and reports what was
# used: far less, on a busy machine.
XCPU_TOLERANCE = 0.5
XFSZ_WORDS = b"file size limit exceeded"
LAST_WORDS_BYTES = 1024


class Exit(NamedTuple):
    """Exactly one field is set."""

    exit_code: int | None
    term_signal: int | None


def usage(counted: Exited | Measured, output_bytes: int) -> Usage:
    """Return what a program or a cell has used. ``output_bytes``: of both streams."""
    return Usage(
        user_seconds=round(counted.user_seconds, 6),
        system_seconds=round(counted.system_seconds, 6),
        max_rss_bytes=counted.max_rss_bytes or None,
        peak_tree_bytes=counted.peak_tree_bytes or None,
        # Scans count the processes, and no scan has seen the tree if there is no peak.
        processes=counted.processes if counted.peak_tree_bytes else None,
        output_bytes=output_bytes,
    )


def decode(wait_status: int) -> Exit:
    """Decode the status of a process that has ended. Raises ValueError for "stopped" and
    "continued", which the warden does not ask for."""
    if os.WIFEXITED(wait_status):
        return Exit(os.WEXITSTATUS(wait_status), None)
    if os.WIFSIGNALED(wait_status):
        return Exit(None, os.WTERMSIG(wait_status))
    raise ValueError(f"wait status {wait_status:#x} does not say that the process ended")


def as_reported_by_dash(wait_status: int) -> tuple[int, bytes]:
    """Return the wait status of a dash whose last command has ended with ``wait_status``, and what
    dash writes to standard error: the name of a signal, but of SIGINT and SIGPIPE nothing.

    The names are those of strsignal(3), in the C library of dash and of this process.
    """
    if not os.WIFSIGNALED(wait_status):
        return wait_status, b""
    number = os.WTERMSIG(wait_status)
    status = (SIGNAL_EXIT_CODE + number) << 8
    if number in (signal.SIGINT, signal.SIGPIPE):
        return status, b""
    name = signal.strsignal(number) or f"Unknown signal {number}"
    return status, f"{name}{' (core dumped)' if os.WCOREDUMP(wait_status) else ''}\n".encode()


def code_of_failed_start(step: str, error: int) -> int:
    """Return the exit code of a program that could not be started, as env(1) and timeout(1) report.

    ``step``: a name of ``spawn.STEP_NAMES``. ``error``: an errno, or 0 where no system call failed.
    """
    if step != "exec":
        return NO_EXIT_CODE
    return NOT_FOUND_EXIT_CODE if error in NOT_FOUND_ERRORS else NOT_EXECUTABLE_EXIT_CODE


def natural_reason(ended: Exit, limits: Limits, cpu_seconds: float, stderr: HeadTail) -> ExitReason:
    """Return why a program ended without a kill by execd. ``cpu_seconds``: of the program and its
    awaited children. ``stderr``: its standard error.

    The kernel reports limits by signals: SIGXCPU at the soft CPU limit and SIGKILL a second later
    (setrlimit(2)), SIGXFSZ at the file size limit. A shell in between reports its child's signal as
    128 + n (POSIX.1-2024 XCU 2.8.2), but any program may exit with the same code. So a code counts
    as the CPU limit only together with the CPU time. Nothing accounts for file sizes, so a code
    counts as the file size limit only together with the words that each shell writes when the
    signal ends its child (strsignal(3)).
    """
    number = ended.term_signal or (ended.exit_code or 0) - 128
    if limits.cpu_seconds is not None and (
        (number == signal.SIGXCPU and cpu_seconds >= limits.cpu_seconds * XCPU_TOLERANCE)
        or (number == signal.SIGKILL and cpu_seconds >= limits.cpu_seconds)
    ):
        return ExitReason.CPU_LIMIT
    if (
        limits.file_size_bytes is not None
        and number == signal.SIGXFSZ
        and (ended.term_signal is not None or XFSZ_WORDS in stderr.newest(LAST_WORDS_BYTES).lower())
    ):
        return ExitReason.FILE_SIZE_LIMIT
    return ExitReason.SIGNALED if ended.term_signal else ExitReason.EXITED
