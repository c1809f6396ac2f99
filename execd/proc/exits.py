"""Exit statuses: what wait4(2) says, decoded. Pure."""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

from execd.model import ExitReason, Limits


class Exit(NamedTuple):
    """Exactly one of the two is set."""

    exit_code: int | None
    term_signal: int | None


def decode(wait_status: int) -> Exit:
    """Decode a status that says "ended". Raises ValueError for "stopped" and "continued", which nobody asks for."""
    if os.WIFEXITED(wait_status):
        return Exit(os.WEXITSTATUS(wait_status), None)
    if os.WIFSIGNALED(wait_status):
        return Exit(None, os.WTERMSIG(wait_status))
    raise ValueError(f"wait status {wait_status:#x} does not say that the process ended")


def natural_reason(ended: Exit, limits: Limits, cpu_seconds: float) -> ExitReason:
    """Why a program ended that nobody killed on purpose.

    The kernel speaks through signals here: SIGXCPU at the soft CPU limit and SIGKILL a second later (setrlimit(2)), SIGXFSZ at
    the file size limit. Where a shell stood in between, it reports its child's signal as 128 + n, POSIX.1-2024 XCU 2.8.2.
    """
    number = ended.term_signal or (ended.exit_code or 0) - 128
    if limits.cpu_seconds is not None and (
        number == signal.SIGXCPU or (number == signal.SIGKILL and cpu_seconds >= limits.cpu_seconds)
    ):
        return ExitReason.CPU_LIMIT
    if limits.file_size_bytes is not None and number == signal.SIGXFSZ:
        return ExitReason.FILE_SIZE_LIMIT
    return ExitReason.SIGNALED if ended.term_signal else ExitReason.EXITED
