"""The log line of an execution's end: who asked, how the execution ended, what was used, and which
limit applied. Never the text of a command, its environment or its output.

An execution that ends while the request that started the execution is under way needs no line of
its own: the request's line has the fields as well (``Execution.has_open_request``).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypedDict

from execd.model import NO_EXIT_CODE, DialectName, DiskExcess, ExitReason

if TYPE_CHECKING:
    from execd.errors import ErrorCode, ExecdError
    from execd.model import Command, Result, StartedBy, Usage

logger = logging.getLogger("execd.executions")

LIMIT_OF_REASON = {
    ExitReason.CPU_LIMIT: "cpu_seconds",
    ExitReason.MEMORY_LIMIT: "memory_bytes",
    ExitReason.PROCESS_LIMIT: "processes",
    ExitReason.FILE_SIZE_LIMIT: "file_size_bytes",
    ExitReason.OUTPUT_LIMIT: "log_bytes",
}


class EndFields(TypedDict):
    """The fields of the line, by the names of replies. Unknown values are null. The docstring of a
    field is its row in docs/reference/logs.md."""

    execution_id: str
    """The `id` in replies of `/v1`, `execution_id` in replies of `/execute`."""
    session_id: str | None
    """The session of a cell, or of a command with `session_id`; else null."""
    dialect: DialectName | None
    """The routes that started the execution: `python_runtime`, `v1`, `sandboxd_grpc`,
    `opensandbox`, `e2b`, or those of another wing; null: an earlier daemon did."""
    started_by: StartedBy | None
    """As in replies of `/v1`; null for a cell, and for a program that did not start."""
    exit_reason: ExitReason | None
    """One of the [exit reasons](exit-reasons.md); null after a refusal (`error_code`), and after a
    fault of execd, which has an error line of its own."""
    error_code: ErrorCode | None
    """The [code](http.md#errors) of the error that kept the program from being started, such as
    `RESOURCE_EXHAUSTED` where no place became free in time; else null."""
    exit_code: int
    """As in replies of `/v1`, in every dialect."""
    duration_seconds: float | None
    """As in replies of `/v1`."""
    usage: Usage | None
    """As in replies of `/v1`: `user_seconds`, `system_seconds`, `max_rss_bytes`,
    `peak_tree_bytes`, `processes`, `output_bytes`."""
    limit: dict[str, float | None] | None
    """The limit that ended the execution: an object of the limit's name and value, or null.
    `pod_memory_bytes`: the memory of the pod; `displays`: the bounds of a cell's displays (both
    with the value null); `base_dir_bytes`, `tmp_dir_bytes`: the limit of the directory."""
    trace_id: str | None
    """The trace id of the `traceparent` of the request that started the execution, or null."""


def log_end(request_id: str | None, fields: EndFields) -> None:
    """Write a line of its own for the end of an execution. ``fields``: see ``end_fields``."""
    logger.info("execution", extra={"request_id": request_id, **fields})


def end_fields(
    execution_id: str,
    session_id: str | None,
    command: Command,
    outcome: Result | None,
    excess: int | DiskExcess | None,
    refusal: ExecdError | None = None,
    started_by: StartedBy | None = None,
) -> EndFields:
    """Return the fields of the line. ``outcome``, ``excess``: see ``Execution``. ``refusal``: the
    error that kept the program from being started."""
    reason = named_reason(outcome, refusal)
    is_known = reason is not ExitReason.DAEMON_RESTARTED
    return {
        "execution_id": execution_id,
        "session_id": session_id,
        "dialect": command.origin.dialect,
        "started_by": started_by,
        "exit_reason": reason,
        "error_code": None if refusal is None else refusal.code,
        "exit_code": NO_EXIT_CODE if outcome is None else outcome.any_exit_code,
        "duration_seconds": outcome.duration_seconds if outcome and is_known else None,
        "usage": outcome.usage if outcome and is_known else None,
        "limit": applied_limit(reason, command, excess),
        "trace_id": command.origin.trace_id,
    }


def named_reason(outcome: Result | None, refusal: ExecdError | None) -> ExitReason | None:
    """Return the reason as the log and the counters name the reason."""
    reason = None if outcome is None else outcome.exit_reason
    # Replies have a reason of the closed list, and no reason of the list is a full queue.
    if refusal is not None and reason is ExitReason.SPAWN_FAILED:
        return None
    return reason


def applied_limit(
    reason: ExitReason | None, command: Command, excess: int | DiskExcess | None
) -> dict[str, float | None] | None:
    """Return the limit that ended the execution, as its name and its value; None: no limit did.
    ``excess``: see ``Execution``."""
    limits = command.limits
    if isinstance(excess, DiskExcess):
        if reason is ExitReason.DISK_LIMIT:
            return {excess.setting: excess.limit_bytes}
        excess = None
    match reason:
        case ExitReason.TIMEOUT:
            return {"timeout_seconds": round(command.timeout_seconds, 6)}
        case ExitReason.NO_OUTPUT_TIMEOUT:
            return {"no_output_timeout_seconds": command.no_output_timeout_seconds}
        case ExitReason.MEMORY_LIMIT if limits.memory_bytes is None or (
            excess is not None and excess <= limits.memory_bytes
        ):
            return {"pod_memory_bytes": None}
        case ExitReason.DISK_LIMIT:
            return {"disk_bytes": None}  # of a directory that nobody told
        case ExitReason.OUTPUT_LIMIT if command.program.is_code:
            return {"displays": None}
        case _ if reason in LIMIT_OF_REASON:
            name = LIMIT_OF_REASON[reason]
            return {name: getattr(limits, name)}
    return None
