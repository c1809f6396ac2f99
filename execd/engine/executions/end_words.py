"""The words of an end. Pure.

For people: what happened, with the figures that are known (``in_words``). For the log: who asked,
how the execution ended, what was used, and which limit applied (``end_fields``); never the text of
a command, its environment or its output. An execution that ends while the request that started the
execution is under way needs no log line of its own: the request's line has the fields as well
(``Execution.has_open_request``).
"""

from __future__ import annotations

import math
import re
import signal
from typing import TYPE_CHECKING, TypedDict

import msgspec

from execd.model import NO_EXIT_CODE, DialectName, DiskExcess, ExitReason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from execd.engine.executions.execution_record import ExecutionRecord
    from execd.engine.store.journal import MemoryShortage
    from execd.errors import ErrorCode
    from execd.model import Command, Result, StartedBy, Usage

KIB, MIB = 1 << 10, 1 << 20
BETWEEN_COMMANDS = re.compile(r"[;&|\n()`]+")
FULL = re.compile(r"-[a-zA-Z]*f|--full")
FIXED = {
    ExitReason.CANCELED: "a caller asked for the end: kill, DELETE, or the end of the session",
    ExitReason.CLIENT_DISCONNECTED: "the last reader went away before the reply",
    ExitReason.DISK_LIMIT: "a directory held nearly all of what it may hold",
    ExitReason.INTERRUPTED: "an interrupt, or a restart of the session, ended the cell",
    ExitReason.INIT_KILLED: "the parent process of all user code ended, and all user code with it",
    ExitReason.RESET: "the sandbox was reset",
    ExitReason.SHUTDOWN: "execd was told to stop",
    ExitReason.DAEMON_RESTARTED: (
        "execd ended in the middle of the execution, and nobody saw how the program ended"
    ),
}

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


def in_words(record: ExecutionRecord, result: Result) -> Result:
    """Add to the result what happened in words, unless the program ended by itself."""
    if result.exit_reason is ExitReason.EXITED and not result.message:
        return result
    sizes = {str(stream): log.total_bytes for stream, log in record.output.streams.items()}
    message = end_message(result, record.command, record.excess, sizes)
    return msgspec.structs.replace(result, message=message)


def end_message(
    result: Result,
    command: Command,
    excess: int | DiskExcess | None,
    stream_bytes: Mapping[str, int],
) -> str:
    """Return what happened, in one line; empty if the program, or the cell, ended by itself.

    ``excess``: what was over a limit of the tree or of a directory, if known.
    ``stream_bytes``: the size of each output stream. A remark of the runner comes last.
    """
    if result.exit_reason is ExitReason.EXITED:
        return ""
    return "; ".join(filter(None, (_event(result, command, excess, stream_bytes), result.message)))


def restarted_message(shortage: MemoryShortage | None) -> str:
    """Return the message of an execution that a former daemon began. ``shortage``: the lack of
    memory in which the former daemon died."""
    event = FIXED[ExitReason.DAEMON_RESTARTED]
    if shortage is None:
        return event
    return (
        f"{event}; memory was nearly full, with {max(shortage.left_bytes, 0) / MIB:,.0f} MiB of "
        f"{shortage.size_bytes / MIB:,.0f} MiB left, so the kernel probably ended execd for memory"
    )


def _event(
    result: Result,
    command: Command,
    excess: int | DiskExcess | None,
    stream_bytes: Mapping[str, int],
) -> str:
    limits = command.limits
    if isinstance(excess, DiskExcess):
        if result.exit_reason is ExitReason.DISK_LIMIT:
            return _disk(excess)
        excess = None
    match result.exit_reason:
        case ExitReason.SIGNALED:
            assert result.term_signal is not None
            return f"{_signal(result.term_signal)} ended the program{_own_kill(command)}"
        case ExitReason.TIMEOUT:
            if command.total_seconds and result.duration_seconds < command.timeout_seconds:
                whole = seconds(command.total_seconds)
                return f"the limit of {whole} for waiting and running together was over"
            return f"the run time limit of {seconds(command.timeout_seconds)} was over"
        case ExitReason.NO_OUTPUT_TIMEOUT:
            assert command.no_output_timeout_seconds is not None
            return f"the program was silent for {seconds(command.no_output_timeout_seconds)}"
        case ExitReason.CPU_LIMIT:
            return _cpu(limits.cpu_seconds, excess, result)
        case ExitReason.MEMORY_LIMIT:
            return _memory(limits.memory_bytes, excess)
        case ExitReason.PROCESS_LIMIT:
            had = "more" if excess is None else f"{excess}"
            return f"the tree had {had} processes and threads of the allowed {limits.processes}"
        case ExitReason.FILE_SIZE_LIMIT:
            return f"a file reached the allowed {_size(limits.file_size_bytes or 0)}"
        case ExitReason.OUTPUT_LIMIT:
            return _output(command, stream_bytes)
        case ExitReason.SPAWN_FAILED | ExitReason.WORKER_DIED:
            return ""  # the runner's remark says why
        case reason:
            return FIXED[reason]


def _own_kill(command: Command) -> str:
    """A hint for a program whose command line searches command lines for processes to end: the
    search finds the program itself. The searched pattern is a part of the line."""
    if not _kills_by_line(command.program.script or " ".join(command.program.argv)):
        return ""
    return (
        "; perhaps its own pattern matched this command line too: write the pattern so that it "
        "does not match itself, as in `pkill -f '[s]erver.py'`"
    )


def _kills_by_line(line: str) -> bool:
    """Whether a line has pkill -f, or kill beside pgrep -f or ps with grep or awk. In linear time:
    user code chooses the line."""
    words: set[str] = set()
    has_search = False
    for part in BETWEEN_COMMANDS.split(line):
        of_command = part.split()
        words.update(of_command)
        is_full = any(FULL.fullmatch(word) for word in of_command)
        if is_full and "pkill" in of_command:
            return True
        has_search |= is_full and "pgrep" in of_command
    has_search |= "ps" in words and not words.isdisjoint(("grep", "egrep", "awk"))
    return has_search and "kill" in words


def _cpu(limit_seconds: int | None, excess: int | None, result: Result) -> str:
    used = (result.usage.user_seconds or 0.0) + (result.usage.system_seconds or 0.0)
    used = max(used, float(excess or 0))
    limit = seconds(limit_seconds or 0)
    if used < (limit_seconds or 0):  # the kernel judges by ticks of its clock
        return f"a process used up the allowed {limit} of CPU time"
    return f"a process used {used:.2f} s of the allowed {limit} of CPU time"


def _memory(limit_bytes: int | None, excess: int | None) -> str:
    used = "an unknown size" if excess is None else f"{math.ceil(excess / MIB)} MiB"
    if limit_bytes is not None and (excess is None or excess > limit_bytes):
        return f"the tree used {used} of the allowed {_size(limit_bytes)}"
    return f"the pod was out of memory, and the tree was the largest with {used}"


def _disk(excess: DiskExcess) -> str:
    place = "the base dir" if excess.setting == "base_dir_bytes" else excess.path
    held = (
        f"{place} held {excess.used_bytes / MIB:,.0f} MiB of the allowed "
        f"{excess.limit_bytes / MIB:,.0f} MiB, and "
    )
    if excess.is_guess:
        return (
            f"{held}this program probably wrote the last of them: a guess, because the kernel does "
            "not tell who wrote to the disk"
        )
    return f"{held}this program wrote the most of late"


def _output(command: Command, stream_bytes: Mapping[str, int]) -> str:
    limit_bytes = command.limits.log_bytes
    if command.program.is_code or limit_bytes is None:
        return "the cell displayed more than a cell may display"
    stream = max(stream_bytes, key=lambda name: stream_bytes[name])
    return f"{stream} has {_size(stream_bytes[stream])} of the allowed {_size(limit_bytes)}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def seconds(figure: float) -> str:
    """Return ``figure`` to the microsecond, without zeros at the end."""
    return f"{figure:.6f}".rstrip("0").rstrip(".") + " s"


def _size(n_bytes: int) -> str:
    if n_bytes >= MIB:
        return f"{n_bytes / MIB:.6g} MiB"
    return f"{n_bytes / KIB:.6g} KiB" if n_bytes >= KIB else f"{n_bytes} bytes"


def end_fields(record: ExecutionRecord) -> EndFields:
    """Return the fields of the log line, after the end."""
    outcome, command, refusal = record.outcome, record.command, record.refusal
    reason = named_reason(record, outcome)
    is_known = reason is not ExitReason.DAEMON_RESTARTED
    return {
        "execution_id": record.id,
        "session_id": command.session_id if record.cell is None else record.cell.session_id,
        "dialect": command.origin.dialect,
        "started_by": record.started_by,
        "exit_reason": reason,
        "error_code": None if refusal is None else refusal.code,
        "exit_code": NO_EXIT_CODE if outcome is None else outcome.any_exit_code,
        "duration_seconds": outcome.duration_seconds if outcome and is_known else None,
        "usage": outcome.usage if outcome and is_known else None,
        "limit": applied_limit(reason, command, record.excess),
        "trace_id": command.origin.trace_id,
    }


def named_reason(record: ExecutionRecord, outcome: Result | None) -> ExitReason | None:
    """Return the reason of the record's outcome as the log and the counters name the reason."""
    if outcome is None:
        return None
    # Replies have a reason of the closed list, and no reason of the list is a full queue.
    if outcome.exit_reason is ExitReason.SPAWN_FAILED and record.refusal is not None:
        return None
    return outcome.exit_reason


def applied_limit(
    reason: ExitReason | None, command: Command, excess: int | DiskExcess | None
) -> dict[str, float | None] | None:
    """Return the limit that ended the execution, as its name and its value; None: no limit did.
    ``excess``: see ``ExecutionRecord``."""
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
