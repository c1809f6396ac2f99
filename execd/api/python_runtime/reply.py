"""The reply of POST /execute: the outcome of a command, in the fields of the python-runtime and
some fields of execd."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from execd.api.wire import output_text
from execd.api.wire.replies import replace_surrogates
from execd.model import STREAMS, ExitReason, Result

if TYPE_CHECKING:
    from execd.engine.executions.execution import Execution

TIMEOUT_EXIT_CODE = 124  # as timeout(1)
SPAWN_FAILED_EXIT_CODE = 1


async def make_reply(execution: Execution, limit_bytes: int) -> dict[str, Any]:
    """Wait for the end and return the reply's fields. Each stream gets ``limit_bytes`` of its
    output; ``truncated`` counts the omitted bytes."""
    result = await execution.wait()
    texts, cuts = {}, {}
    for stream in STREAMS:
        text, cut = output_text.render(await execution.excerpt(stream, limit_bytes))
        texts[stream] = text
        if cut is not None:
            cuts[stream] = cut
    return {
        "stdout": texts["stdout"],
        "stderr": append_reason(texts["stderr"], result, execution.command.timeout_seconds),
        "exit_code": exit_code(result),
        "timed_out": result.timed_out,
        "truncated": cuts or None,
        "duration_seconds": result.duration_seconds,
        "exit_reason": result.exit_reason,
        "execution_id": execution.id,
    }


def exit_code(result: Result) -> int:
    """Return the program's exit code, or 124 after a timeout, or minus the signal as Python's
    subprocess does. Never null: a command that was ended before it ran gets KILL's number."""
    assert result.exit_code is None or result.term_signal is None
    if result.timed_out:
        return TIMEOUT_EXIT_CODE
    if result.exit_code is not None:
        return result.exit_code
    if result.exit_reason is ExitReason.SPAWN_FAILED:
        return SPAWN_FAILED_EXIT_CODE
    return -(result.term_signal or signal.SIGKILL)  # ended before it ran


def append_reason(stderr: str, result: Result, timeout_seconds: float) -> str:
    """Append a line with the reason to ``stderr``, unless the command ended by itself. Many callers
    show nothing else."""
    match result.exit_reason:
        case ExitReason.EXITED | ExitReason.SIGNALED:
            return stderr
        case ExitReason.TIMEOUT:
            return output_text.append_line(
                stderr, f"Command timed out after {timeout_seconds:g} seconds"
            )
        case ExitReason.SPAWN_FAILED:
            return output_text.append_line(
                stderr, f"Failed to execute command: {replace_surrogates(result.message)}"
            )
        case reason:
            return output_text.append_line(
                stderr, f"Command ended by execd: {replace_surrogates(result.message) or reason}"
            )
