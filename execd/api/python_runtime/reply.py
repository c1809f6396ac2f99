"""The reply of POST /execute: what came of a command, in the python-runtime's words and some of our
own."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from execd.api.wire import output_text
from execd.api.wire.replies import replace_surrogates
from execd.model import STREAMS, ExitReason, Result

if TYPE_CHECKING:
    from execd.engine.executions.execution import Execution

TIMEOUT_EXIT_CODE = 124  # timeout(1)'s
SPAWN_FAILED_EXIT_CODE = 1


async def make_reply(execution: Execution, limit_bytes: int) -> dict[str, Any]:
    """Waits for the end. Each stream gets ``limit_bytes`` of its output; ``truncated`` tells what
    is left out."""
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
    """Always a number: the program's own, 124 after a timeout, minus the signal as Python's
    subprocess has it; for what was ended before it ran, as if KILL had ended it."""
    if result.timed_out:
        return TIMEOUT_EXIT_CODE
    if result.exit_code is not None:
        return result.exit_code
    if result.exit_reason is ExitReason.SPAWN_FAILED:
        return SPAWN_FAILED_EXIT_CODE
    return -(result.term_signal or signal.SIGKILL)  # as if killed, for what was ended before it ran


def append_reason(stderr: str, result: Result, timeout_seconds: float) -> str:
    """``stderr``, and a line on why the command ended, if it was not its own doing: many callers
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
