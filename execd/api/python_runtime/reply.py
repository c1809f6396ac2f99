"""The replies, as the python-runtime names the fields. The reply of POST /execute has the outcome
of a command, and some fields of execd."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from execd.api.wire import output_text
from execd.api.wire.output_text import OmittedOutput
from execd.api.wire.replies import replace_surrogates
from execd.model import RESET_EXIT_CODE, STREAMS, ExitReason, Result

if TYPE_CHECKING:
    from execd.engine.executions.execution import Execution

TIMEOUT_EXIT_CODE = 124  # as timeout(1)
SPAWN_FAILED_EXIT_CODE = 1


class UploadReply(msgspec.Struct, frozen=True, kw_only=True):
    """A file was written."""

    message: str
    """A sentence with the name of the file."""


class ListedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a directory."""

    name: str
    """The name in the directory."""
    size: int
    """Size in bytes."""
    type: Literal["file", "directory"]
    """Everything except directories is a file. Links are followed."""
    mod_time: float
    """Time of the last change of the content, in seconds since 1970."""


class ExistsReply(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a path exists."""

    path: str
    """The path of the request."""
    exists: bool
    """Whether a file or a directory has the path."""


class BodyFault(msgspec.Struct, frozen=True, kw_only=True):
    """A field that breaks a rule, in the words of pydantic."""

    type: str
    """The name of the rule."""
    loc: list[str | int]
    """The place of the field."""
    msg: str
    """The rule in words."""
    input: Any
    """The value that breaks the rule."""
    ctx: dict[str, Any] | UnsetType = UNSET
    """The parameters of the rule. Absent: there are none."""


class FaultsReply(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a body that break rules."""

    detail: list[BodyFault]
    """The fields."""


class ExecuteTruncation(msgspec.Struct, frozen=True, kw_only=True):
    """The streams that lost their middles. A stream that is whole is absent."""

    stdout: OmittedOutput | UnsetType = UNSET
    """The missing bytes of stdout."""
    stderr: OmittedOutput | UnsetType = UNSET
    """The missing bytes of stderr."""


class ExecuteReply(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a command."""

    stdout: str
    """The output, as text."""
    stderr: str
    """The output, as text. If execd ended the command, the last line has the reason."""
    exit_code: int
    """The code of the program; 124 after a timeout; minus the signal; 1 if the program could not
    start."""
    timed_out: bool
    """Whether the time was over."""
    truncated: ExecuteTruncation | None
    """What the reply does not have; null: nothing is missing."""
    duration_seconds: float
    """Time from the start of the program to the end."""
    exit_reason: ExitReason
    """How the command ended."""
    execution_id: str
    """The name under `/v1/executions`."""


async def make_reply(execution: Execution, limit_bytes: int) -> ExecuteReply:
    """Wait for the end and return the reply's fields. Each stream gets ``limit_bytes`` of its
    output; ``truncated`` counts the omitted bytes."""
    result = await execution.wait()
    texts: dict[str, str] = {}
    cuts: dict[str, OmittedOutput] = {}
    view = execution.view
    for stream in STREAMS:
        if not view.total_bytes(stream):
            texts[stream] = ""
            continue
        text, cut = output_text.render(await view.excerpt(stream, limit_bytes))
        texts[stream] = text
        if cut is not None:
            cuts[stream] = OmittedOutput(**msgspec.structs.asdict(cut))
    return ExecuteReply(
        stdout=texts["stdout"],
        stderr=append_reason(texts["stderr"], result, execution.command.timeout_seconds),
        exit_code=exit_code(result),
        timed_out=result.timed_out,
        truncated=ExecuteTruncation(**cuts) if cuts else None,
        duration_seconds=result.duration_seconds,
        exit_reason=result.exit_reason,
        execution_id=execution.id,
    )


def exit_code(result: Result) -> int:
    """Return the program's exit code, or 124 after a timeout, 137 after a reset, or minus the
    signal as Python's subprocess does. Never null: a command that was ended before it ran gets
    KILL's number."""
    assert result.exit_code is None or result.term_signal is None
    if result.timed_out:
        return TIMEOUT_EXIT_CODE
    if result.exit_code is not None:
        return result.exit_code
    if result.exit_reason is ExitReason.RESET:
        return RESET_EXIT_CODE
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
            line = f"Command timed out after {timeout_seconds:g} seconds"
        case ExitReason.SPAWN_FAILED:
            line = f"Failed to execute command: {result.message}"
        case reason:
            line = f"Command ended by execd: {reason}"
            line += f" ({result.message})" if result.message else ""
    return output_text.append_line(stderr, replace_surrogates(line))
