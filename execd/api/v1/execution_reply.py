"""An execution as /v1 shows it. ``full_reply`` also reads the output, from memory or disk."""

from __future__ import annotations

import base64
import functools
import math
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from execd.api.v1 import cell_reply
from execd.api.v1.execution_types import (
    DisplaysTruncation,
    ExecutionItem,
    ExecutionReply,
    ExecutionTruncation,
    LimitsReply,
    StreamTruncation,
    UsageReply,
)
from execd.api.wire import output_text
from execd.api.wire.replies import replace_surrogates
from execd.api.wire.signal_names import signal_name
from execd.engine.executions.command import is_argv, shortened
from execd.engine.executions.limits import limits_as_applied
from execd.model import NO_EXIT_CODE, STREAMS, ExitReason, State, rfc3339

if TYPE_CHECKING:
    from collections.abc import Sequence

    from execd.api.v1.execution_types import Encoding
    from execd.config import Config
    from execd.engine.executions.execution import Execution
    from execd.model import Limits, Program, Result, Stream


def url_of(execution: Execution) -> str:
    return f"/v1/executions/{execution.id}"


async def full_reply(
    execution: Execution,
    config: Config,
    encoding: Encoding,
    streams: Sequence[Stream] = STREAMS,
    most_bytes: int | None = None,
) -> ExecutionReply:
    """Return all fields, with as much of the output as fits into a reply. Waits for the journal, so
    that a caller is never told of an execution that a restart forgets. Raises the error that kept
    the execution from running.

    ``streams`` and ``most_bytes`` leave out output that the reader has already.
    """
    await execution.journaled()
    execution.refuse_failed()
    limit_bytes = (
        config.reply_bytes
        if execution.command.limits.reply_bytes is None
        else execution.command.limits.reply_bytes
    )
    if most_bytes is not None:
        limit_bytes = min(limit_bytes, most_bytes)
    assert limit_bytes >= 0
    fields = summary(execution, config)
    is_known = (
        execution.result is None or execution.result.exit_reason is not ExitReason.DAEMON_RESTARTED
    )
    cuts: dict[str, StreamTruncation | DisplaysTruncation] = {}
    for stream in streams:
        excerpt = await execution.view.excerpt(stream, limit_bytes)
        if encoding == "base64":
            # Head and tail side by side: a marker would be decoded as a piece of the output.
            fields[f"{stream}_base64"] = base64.b64encode(excerpt.head + excerpt.tail).decode()
            cut = excerpt.truncation
        else:
            fields[stream], cut = output_text.render(excerpt, ended=execution.state is State.EXITED)
        if not is_known:  # the disk has a beginning of unknown length
            head_bytes = len(excerpt.head) + len(excerpt.tail) if cut is None else cut.head_bytes
            cuts[stream] = StreamTruncation(
                total_bytes=None,
                head_bytes=head_bytes,
                omitted_bytes=None,
                url=f"{url_of(execution)}/{stream}",
            )
        elif cut is not None:
            cuts[stream] = StreamTruncation(
                total_bytes=cut.total_bytes,
                head_bytes=cut.head_bytes,
                omitted_bytes=cut.omitted_bytes,
                url=f"{url_of(execution)}/{stream}",
                disk_failure=execution.output.disk_failure(stream) or UNSET,
            )
    if omitted_bytes := execution.output.omitted_rich_bytes:  # by a restart of the daemon
        cuts["displays"] = DisplaysTruncation(
            total_bytes=omitted_bytes, omitted_bytes=omitted_bytes
        )
    if execution.cell is not None:
        fields |= cell_reply.display_fields(execution.output.rich)
        background = execution.cell.background
        fields["background"] = (
            None if background is None else cell_reply.background_reply(background, encoding)
        )
    truncated: Any = cuts  # each kind of cut under its own name
    return ExecutionReply(
        **fields, truncated=ExecutionTruncation(**truncated) if truncated else None
    )


def list_item(execution: Execution, config: Config) -> ExecutionItem:
    """Return all fields but the output, with the command shortened."""
    short = shortened(execution.command.program)
    fields = {**summary(execution, config), **program_fields(short)}
    is_whole = short.display == execution.command.program.display
    return ExecutionItem(**fields, command_truncated=UNSET if is_whole else True)


def summary(execution: Execution, config: Config) -> dict[str, Any]:
    """Return all fields but the output. Unknown values are null."""
    has_ended = execution.state is State.EXITED
    outcome = execution.outcome
    return {
        "id": execution.id,
        "state": execution.state,
        **({} if execution.cell is None else cell_reply.identity_fields(execution, execution.cell)),
        **program_fields(execution.command.program),
        **({"started_by": execution.started_by} if execution.cell is None else {}),
        "cwd": replace_surrogates(execution.command.cwd or config.base_dir),
        "limits": limits_reply(execution.command.limits, execution.command.timeout_seconds),
        "pid": execution.pid,
        "created_at": rfc3339(execution.created_at),
        "started_at": rfc3339(execution.started_at),
        "ended_at": rfc3339(execution.ended_at if has_ended else None),
        **outcome_fields(outcome, has_ended=has_ended),
        **(
            {}
            if execution.cell is None
            else cell_reply.outcome_fields(execution.cell, has_ended=has_ended)
        ),
        **({} if execution.not_journaled is None else {"not_journaled": execution.not_journaled}),
    }


@functools.lru_cache(maxsize=64)
def limits_reply(limits: Limits, timeout_seconds: float) -> LimitsReply | None:
    """Return the limits that apply. None: nothing is known of an execution that an older execd has
    journaled."""
    if math.isinf(timeout_seconds):
        return None
    return LimitsReply(**limits_as_applied(limits), timeout_seconds=round(timeout_seconds, 6))


def program_fields(program: Program) -> dict[str, Any]:
    """Return ``argv``, ``command`` or ``code``, in the caller's form."""
    if program.is_code:
        return {"code": replace_surrogates(program.display)}
    if is_argv(program):
        return {"argv": [replace_surrogates(argument) for argument in program.argv]}
    return {"command": replace_surrogates(program.display)}


def outcome_fields(result: Result | None, *, has_ended: bool) -> dict[str, Any]:
    """Return the fields of the end. Unknown values are null, as after the death of the daemon in
    the middle of a run. But the exit code of an execution that has ended is a number: typed clients
    read null as 0, and 0 is success."""
    if result is None:
        names = (
            "duration_seconds",
            "exit_code",
            "signal",
            "exit_reason",
            "message",
            "usage",
            "killed",
        )
        fields: dict[str, Any] = {**dict.fromkeys(names), "timed_out": False, "survivors": []}
        if has_ended:
            fields |= {"exit_code": NO_EXIT_CODE, "survivors": None}
        return fields
    is_known = result.exit_reason is not ExitReason.DAEMON_RESTARTED
    return {
        "duration_seconds": result.duration_seconds if is_known else None,
        "exit_code": result.any_exit_code,
        "signal": None if result.term_signal is None else signal_name(result.term_signal),
        "exit_reason": result.exit_reason,
        "message": replace_surrogates(result.message) or None,
        "usage": UsageReply(**msgspec.structs.asdict(result.usage)) if is_known else None,
        "killed": result.killed if is_known else None,
        "timed_out": result.timed_out,
        "survivors": list(result.survivors) if is_known else None,
    }
