"""The replies, as the python-runtime names the fields. The reply of POST /execute has the outcome
of a command, and some fields of execd."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from execd.api.wire import output_text
from execd.api.wire.output_text import OmittedOutput
from execd.api.wire.replies import replace_surrogates
from execd.model import STREAMS, ExitReason, Result

if TYPE_CHECKING:
    from execd.engine.executions.execution import Execution

TIMEOUT_EXIT_CODE = 124  # as timeout(1)
SPAWN_FAILED_EXIT_CODE = 1


class UploadReply(msgspec.Struct, frozen=True, kw_only=True):
    """A file was written."""

    message: Annotated[str, Meta(description="A sentence with the name of the file.")]


class ListedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a directory."""

    name: Annotated[str, Meta(description="The name in the directory.")]
    size: Annotated[int, Meta(description="Size in bytes.")]
    type: Annotated[
        Literal["file", "directory"],
        Meta(description="Everything except directories is a file. Links are followed."),
    ]
    mod_time: Annotated[
        float, Meta(description="Time of the last change of the content, in seconds since 1970.")
    ]


class ExistsReply(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a path exists."""

    path: Annotated[str, Meta(description="The path of the request.")]
    exists: Annotated[bool, Meta(description="Whether a file or a directory has the path.")]


class BodyFault(msgspec.Struct, frozen=True, kw_only=True):
    """A field that breaks a rule, in the words of pydantic."""

    type: Annotated[str, Meta(description="The name of the rule.")]
    loc: Annotated[list[str | int], Meta(description="The place of the field.")]
    msg: Annotated[str, Meta(description="The rule in words.")]
    input: Annotated[Any, Meta(description="The value that breaks the rule.")]
    ctx: Annotated[
        dict[str, Any] | UnsetType,
        Meta(description="The parameters of the rule. Absent: there are none."),
    ] = UNSET


class FaultsReply(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a body that break rules."""

    detail: Annotated[list[BodyFault], Meta(description="The fields.")]


class ExecuteTruncation(msgspec.Struct, frozen=True, kw_only=True):
    """The streams that lost their middles. A stream that is whole is absent."""

    stdout: Annotated[
        OmittedOutput | UnsetType, Meta(description="The missing bytes of stdout.")
    ] = UNSET
    stderr: Annotated[
        OmittedOutput | UnsetType, Meta(description="The missing bytes of stderr.")
    ] = UNSET


class ExecuteReply(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a command."""

    stdout: Annotated[str, Meta(description="The output, as text.")]
    stderr: Annotated[
        str,
        Meta(
            description="The output, as text. If execd ended the command, the last line "
            "has the reason."
        ),
    ]
    exit_code: Annotated[
        int,
        Meta(
            description="The code of the program; 124 after a timeout; minus the signal; 1"
            " if the program could not start."
        ),
    ]
    timed_out: Annotated[bool, Meta(description="Whether the time was over.")]
    truncated: Annotated[
        ExecuteTruncation | None,
        Meta(description="What the reply does not have; null: nothing is missing."),
    ]
    duration_seconds: Annotated[
        float, Meta(description="Time from the start of the program to the end.")
    ]
    exit_reason: Annotated[ExitReason, Meta(description="How the command ended.")]
    execution_id: Annotated[str, Meta(description="The name under `/v1/executions`.")]


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
            line = f"Command timed out after {timeout_seconds:g} seconds"
        case ExitReason.SPAWN_FAILED:
            line = f"Failed to execute command: {result.message}"
        case reason:
            line = f"Command ended by execd: {reason}"
            line += f" ({result.message})" if result.message else ""
    return output_text.append_line(stderr, replace_surrogates(line))
