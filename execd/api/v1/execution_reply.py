"""An execution as /v1 shows it. ``whole`` also reads the output, from memory or disk."""

from __future__ import annotations

import base64
import functools
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from execd.api.v1 import cell_reply
from execd.api.wire import output_text
from execd.api.wire.replies import replace_surrogates
from execd.api.wire.signal_names import signal_name
from execd.engine.executions.command import is_argv, shortened
from execd.model import STREAMS, ExitReason, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from execd.config import Config
    from execd.engine.executions.execution import Execution
    from execd.model import Command, Result, Stream

Encoding = Literal["text", "base64"]

SIGNAL_EXIT_CODE = 128  # a shell's, to which the signal's number is added


def url_of(execution: Execution) -> str:
    return f"/v1/executions/{execution.id}"


async def full_reply(
    execution: Execution,
    config: Config,
    encoding: Encoding,
    streams: Sequence[Stream] = STREAMS,
    most_bytes: int | None = None,
) -> dict[str, Any]:
    """Everything, with as much of the output as fits into a reply; in the journal before it is
    told. Raises what kept it from running.

    For a reader that has the rest already: the output of some ``streams`` only, of each
    ``most_bytes``.
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
    fields = summary(execution, config)
    is_known = (
        execution.result is None or execution.result.exit_reason is not ExitReason.DAEMON_RESTARTED
    )
    cuts: dict[str, Any] = {}
    for stream in streams:
        excerpt = await execution.excerpt(stream, limit_bytes)
        if encoding == "base64":
            # Head and tail side by side: a marker would be one more piece of output to whoever
            # decodes it.
            fields[f"{stream}_base64"] = base64.b64encode(excerpt.head + excerpt.tail).decode()
            cut = excerpt.truncation
        else:
            fields[stream], cut = output_text.render(excerpt, ended=execution.state is State.EXITED)
        if not is_known:  # what is on disk is a beginning, and nobody knows of what
            head_bytes = len(excerpt.head) + len(excerpt.tail) if cut is None else cut.head_bytes
            cuts[stream] = {"total_bytes": None, "head_bytes": head_bytes, "omitted_bytes": None}
            cuts[stream]["url"] = f"{url_of(execution)}/{stream}"
        elif cut is not None:
            cuts[stream] = {**msgspec.structs.asdict(cut), "url": f"{url_of(execution)}/{stream}"}
            if failure := execution.output.disk_failure(stream):
                cuts[stream]["disk_failure"] = failure  # what was left out may be nowhere
    if execution.cell is not None:
        fields |= cell_reply.display_fields(execution.output.rich)
    return {**fields, "truncated": cuts}


def list_item(execution: Execution, config: Config) -> dict[str, Any]:
    """All but the output, and of the command as much as it is known by."""
    short = shortened(execution.command)
    fields = {**summary(execution, config), **program_fields(short)}
    return (
        fields
        if short.display == execution.command.display
        else {**fields, "command_truncated": True}
    )


def summary(execution: Execution, config: Config) -> dict[str, Any]:
    """All but the output. What is not known yet is null."""
    has_ended = execution.state is State.EXITED  # the result is there a little earlier
    return {
        "id": execution.id,
        "state": execution.state,
        **({} if execution.cell is None else cell_reply.identity_fields(execution, execution.cell)),
        **program_fields(execution.command),
        "cwd": replace_surrogates(execution.command.cwd or config.base_dir),
        "pid": execution.pid,
        "created_at": rfc3339(execution.created_at),
        "started_at": rfc3339(execution.started_at),
        "ended_at": rfc3339(execution.ended_at if has_ended else None),
        **outcome_fields(execution.result if has_ended else None),
        **(
            {}
            if execution.cell is None
            else cell_reply.outcome_fields(execution.cell, execution.result if has_ended else None)
        ),
        **({} if execution.not_journaled is None else {"not_journaled": execution.not_journaled}),
    }


def program_fields(command: Command) -> dict[str, Any]:
    """``argv``, ``command`` or ``code``, as the caller put it."""
    if command.is_code:
        return {"code": replace_surrogates(command.display)}
    if is_argv(command):
        return {"argv": [replace_surrogates(argument) for argument in command.argv]}
    return {"command": replace_surrogates(command.display)}


def outcome_fields(result: Result | None) -> dict[str, Any]:
    """How it ended. Of a run that a daemon's death cut off that is not known: null."""
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
        return {**dict.fromkeys(names), "timed_out": False, "survivors": []}
    is_known = result.exit_reason is not ExitReason.DAEMON_RESTARTED
    return {
        "duration_seconds": result.duration_seconds if is_known else None,
        "exit_code": exit_code(result),
        "signal": None if result.term_signal is None else signal_name(result.term_signal),
        "exit_reason": result.exit_reason,
        "message": replace_surrogates(result.message) or None,
        "usage": msgspec.structs.asdict(result.usage) if is_known else None,
        "killed": result.killed if is_known else None,
        "timed_out": result.timed_out,
        "survivors": list(result.survivors),
    }


def exit_code(result: Result) -> int | None:
    """The program's own, or 128 and its signal; none if it never ran."""
    return (
        SIGNAL_EXIT_CODE + result.term_signal
        if result.term_signal is not None
        else result.exit_code
    )


def rfc3339(seconds: float | None) -> str | None:
    """UTC, to the millisecond."""
    if seconds is None:
        return None
    whole_seconds, microseconds = divmod(round(seconds * 1_000_000), 1_000_000)
    return f"{_format_second(whole_seconds)}.{microseconds // 1000:03d}Z"


@functools.lru_cache(maxsize=16)
def _format_second(seconds: int) -> str:
    """The moments in a reply are of one second, as a rule, and of the second of the reply
    before."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
