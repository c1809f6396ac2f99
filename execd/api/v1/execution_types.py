"""The structs of replies about executions. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

# msgspec reads the annotations at run time.
from execd.api.v1 import cell_reply  # noqa: TC001
from execd.model import ExitReason, StartedBy, State

Encoding = Literal["text", "base64"]


class LimitsReply(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that apply, by the names of requests. Null is no limit."""

    cpu_seconds: int | None
    """CPU time of each process: SIGXCPU, and SIGKILL a second later."""
    address_space_bytes: int | None
    """Address space of each process: allocations fail."""
    file_size_bytes: int | None
    """Size of a file that a process writes: SIGXFSZ."""
    open_files: int | None
    """Open files of each process: new descriptors fail."""
    processes: int | None
    """Processes and threads of the whole tree: one more ends the tree."""
    memory_bytes: int | None
    """Memory of the whole tree: more ends the tree."""
    reply_bytes: int | None
    """Output of each stream in one reply."""
    log_bytes: int | None
    """Output of each stream kept on disk."""
    timeout_seconds: float
    """Time from the start of the program to its forced end."""


class UsageReply(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of a program and of the children that the program waited for. Of a cell: from
    10 ms after its start on, in ticks of the kernel's clock. Null: not known."""

    user_seconds: float | None
    """CPU time in user mode."""
    system_seconds: float | None
    """CPU time in the kernel."""
    max_rss_bytes: int | None
    """The resident memory of the largest process, at its peak."""
    peak_tree_bytes: int | None
    """The largest sum over the tree, as sampled."""
    processes: int | None
    """The number of processes, as sampled: a lower bound."""
    output_bytes: int
    """The bytes of stdout and stderr."""


class StreamTruncation(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of a stream that the reply does not have. Null: not known, because a restart of the
    daemon ended the execution."""

    total_bytes: int | None
    """The bytes of the whole stream."""
    head_bytes: int
    """The bytes before the omitted ones."""
    omitted_bytes: int | None
    """The number of omitted bytes."""
    url: str
    """The path of the bytes on disk."""
    disk_failure: str | UnsetType = UNSET
    """Why the disk did not take all bytes, so that omitted bytes may be lost. Absent: it took
    them."""


class DisplaysTruncation(msgspec.Struct, frozen=True, kw_only=True):
    """The displays that a restart of the daemon has lost."""

    total_bytes: int
    """The bytes of all displays."""
    omitted_bytes: int
    """The bytes of the lost displays."""


class ExecutionTruncation(msgspec.Struct, frozen=True, kw_only=True):
    """What the reply does not have. A part that is whole is absent."""

    stdout: StreamTruncation | UnsetType = UNSET
    """The missing bytes of stdout."""
    stderr: StreamTruncation | UnsetType = UNSET
    """The missing bytes of stderr."""
    displays: DisplaysTruncation | UnsetType = UNSET
    """The missing displays."""


# Fields of an execution, and of the event `started`. A common base would put the fields before all
# others of a reply.
ExecutionName = str
"""The name under `/v1/executions`."""
SessionName = str | UnsetType
"""The session. Only of cells."""
Generation = int | UnsetType | None
"""The number of the interpreter. Only of cells."""
StateLost = bool | UnsetType
"""Whether the cell is the first to find the state gone. Only of cells."""
CommandText = str | UnsetType
"""The text for the shell. Only of commands with `command`."""
Arguments = list[str] | UnsetType
"""The program and its arguments. Only of commands with `argv`."""
Code = str | UnsetType
"""The code. Only of cells."""
WorkingDirectory = str
"""The directory in which the program starts, as the program sees it."""
AppliedLimits = LimitsReply | None
"""The limits that apply."""


WayOfStart = StartedBy | UnsetType | None
"""How the program was started: `shell`, by the shell of the command line; `direct`, without a
shell, because the command line has plain words only; `argv`, from the list of arguments. Null: not
started, or not known. Only of commands."""


class ExecutionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A command or a cell, without the output. Null: not known, or not known yet."""

    id: ExecutionName
    state: State
    """`QUEUED`: the program waits for a place; `EXITED`: the program has ended."""
    execution_id: str | UnsetType = UNSET
    """Another word for `id`. Only of cells."""
    session_id: SessionName = UNSET
    generation: Generation = UNSET
    state_lost: StateLost = UNSET
    command: CommandText = UNSET
    argv: Arguments = UNSET
    code: Code = UNSET
    started_by: WayOfStart = UNSET
    cwd: WorkingDirectory
    limits: AppliedLimits
    pid: int | None
    """The process, as user code sees its pid."""
    created_at: str
    """The time of the request, RFC 3339 in UTC."""
    started_at: str | None
    """The start of the program, RFC 3339 in UTC."""
    ended_at: str | None
    """The end, RFC 3339 in UTC."""
    duration_seconds: float | None
    """Time from the start of the program to the end."""
    exit_code: int | None
    """The code of the program; 128 and the signal; or a stand-in from 124 to 127. Null before the
    end."""
    signal: str | None
    """The signal that ended the program, for example `SIGKILL`."""
    exit_reason: ExitReason | None
    """How the execution ended. Null before the end."""
    message: str | None
    """The reason in words, unless the program ended by itself."""
    usage: UsageReply | None
    """The resources that were used. Null before the end."""
    killed: int | None
    """The number of processes that needed SIGKILL."""
    timed_out: bool
    """Whether the reason is `timeout` or `no_output_timeout`."""
    survivors: list[int] | None
    """The pids of processes that had not ended when execd answered."""
    status: Literal["success", "error"] | UnsetType | None = UNSET
    """The outcome. Only of cells; null before the end."""
    execution_count: int | UnsetType | None = UNSET
    """The number of the cell in the session. Only of cells; null before the end."""
    not_journaled: str | UnsetType = UNSET
    """Why a restart of the daemon would forget the execution. Absent: it would not."""


class ExecutionItem(ExecutionSummary, frozen=True, kw_only=True):
    """An execution in a list."""

    command_truncated: bool | UnsetType = UNSET
    """True: the command, the arguments or the code are cut. Absent: they are whole."""


class ExecutionsReply(msgspec.Struct, frozen=True, kw_only=True):
    """A page of executions."""

    items: list[ExecutionItem]
    """The executions, newest first."""
    next_cursor: str | None
    """The `cursor` of the next page; null: this page is the last."""


class ExecutionReply(ExecutionSummary, frozen=True, kw_only=True):
    """A command or a cell, with the output so far."""

    stdout: str | UnsetType = UNSET
    """Text. Absent with `encoding=base64`."""
    stderr: str | UnsetType = UNSET
    """Text. Absent with `encoding=base64`."""
    stdout_base64: str | UnsetType = UNSET
    """Bytes with `encoding=base64`, else absent."""
    stderr_base64: str | UnsetType = UNSET
    """Bytes with `encoding=base64`, else absent."""
    result: cell_reply.Bundle | UnsetType | None = UNSET
    """The value of the last expression; null: there is none. Only of cells."""
    displays: list[cell_reply.Bundle] | UnsetType = UNSET
    """The displays that a notebook would show, and all results but the last. Only of cells."""
    error: cell_reply.CellErrorReply | UnsetType | None = UNSET
    """The exception that ended the cell; null: there is none. Only of cells."""
    background: cell_reply.BackgroundReply | UnsetType | None = UNSET
    """What the session wrote before the cell; null: nothing. Only of cells."""
    truncated: ExecutionTruncation | None
    """What the reply does not have; null: nothing is missing."""


class WrittenReply(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of an input."""

    written_bytes: int
    """The number of bytes that the program, or its pipe, has taken."""
