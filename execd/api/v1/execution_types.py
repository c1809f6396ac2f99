"""The structs of replies about executions. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

# msgspec reads the annotations at run time.
from execd.api.v1 import cell_reply  # noqa: TC001
from execd.model import ExitReason, StartedBy, State

Encoding = Literal["text", "base64"]


class LimitsReply(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that apply, by the names of requests. Null is no limit."""

    cpu_seconds: Annotated[
        int | None,
        Meta(description="CPU time of each process: SIGXCPU, and SIGKILL a second later."),
    ]
    address_space_bytes: Annotated[
        int | None, Meta(description="Address space of each process: allocations fail.")
    ]
    file_size_bytes: Annotated[
        int | None, Meta(description="Size of a file that a process writes: SIGXFSZ.")
    ]
    open_files: Annotated[
        int | None, Meta(description="Open files of each process: new descriptors fail.")
    ]
    processes: Annotated[
        int | None,
        Meta(description="Processes and threads of the whole tree: one more ends the tree."),
    ]
    memory_bytes: Annotated[
        int | None, Meta(description="Memory of the whole tree: more ends the tree.")
    ]
    reply_bytes: Annotated[int | None, Meta(description="Output of each stream in one reply.")]
    log_bytes: Annotated[int | None, Meta(description="Output of each stream kept on disk.")]
    timeout_seconds: Annotated[
        float, Meta(description="Time from the start of the program to its forced end.")
    ]


class UsageReply(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of a program and of the children that the program waited for. Of a cell: from
    10 ms after its start on, in ticks of the kernel's clock. Null: not known."""

    user_seconds: Annotated[float | None, Meta(description="CPU time in user mode.")]
    system_seconds: Annotated[float | None, Meta(description="CPU time in the kernel.")]
    max_rss_bytes: Annotated[
        int | None, Meta(description="The resident memory of the largest process, at its peak.")
    ]
    peak_tree_bytes: Annotated[
        int | None, Meta(description="The largest sum over the tree, as sampled.")
    ]
    processes: Annotated[
        int | None, Meta(description="The number of processes, as sampled: a lower bound.")
    ]
    output_bytes: Annotated[int, Meta(description="The bytes of stdout and stderr.")]


class StreamTruncation(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of a stream that the reply does not have. Null: not known, because a restart of the
    daemon ended the execution."""

    total_bytes: Annotated[int | None, Meta(description="The bytes of the whole stream.")]
    head_bytes: Annotated[int, Meta(description="The bytes before the omitted ones.")]
    omitted_bytes: Annotated[int | None, Meta(description="The number of omitted bytes.")]
    url: Annotated[str, Meta(description="The path of the bytes on disk.")]
    disk_failure: Annotated[
        str | UnsetType,
        Meta(
            description="Why the disk did not take all bytes, so that omitted bytes may be"
            " lost. Absent: it took them."
        ),
    ] = UNSET


class DisplaysTruncation(msgspec.Struct, frozen=True, kw_only=True):
    """The displays that a restart of the daemon has lost."""

    total_bytes: Annotated[int, Meta(description="The bytes of all displays.")]
    omitted_bytes: Annotated[int, Meta(description="The bytes of the lost displays.")]


class ExecutionTruncation(msgspec.Struct, frozen=True, kw_only=True):
    """What the reply does not have. A part that is whole is absent."""

    stdout: Annotated[
        StreamTruncation | UnsetType, Meta(description="The missing bytes of stdout.")
    ] = UNSET
    stderr: Annotated[
        StreamTruncation | UnsetType, Meta(description="The missing bytes of stderr.")
    ] = UNSET
    displays: Annotated[
        DisplaysTruncation | UnsetType, Meta(description="The missing displays.")
    ] = UNSET


# Fields of an execution, and of the event `started`. A common base would put the fields before all
# others of a reply.
ExecutionName = Annotated[str, Meta(description="The name under `/v1/executions`.")]
SessionName = Annotated[str | UnsetType, Meta(description="The session. Only of cells.")]
Generation = Annotated[
    int | UnsetType | None, Meta(description="The number of the interpreter. Only of cells.")
]
StateLost = Annotated[
    bool | UnsetType,
    Meta(description="Whether the cell is the first to find the state gone. Only of cells."),
]
CommandText = Annotated[
    str | UnsetType, Meta(description="The text for the shell. Only of commands with `command`.")
]
Arguments = Annotated[
    list[str] | UnsetType,
    Meta(description="The program and its arguments. Only of commands with `argv`."),
]
Code = Annotated[str | UnsetType, Meta(description="The code. Only of cells.")]
WorkingDirectory = Annotated[
    str, Meta(description="The directory in which the program starts, as the program sees it.")
]
AppliedLimits = Annotated[LimitsReply | None, Meta(description="The limits that apply.")]


WayOfStart = Annotated[
    StartedBy | UnsetType | None,
    Meta(
        description="How the program was started: `shell`, by the shell of the command line; "
        "`direct`, without a shell, because the command line has plain words only; `argv`, from "
        "the list of arguments. Null: not started, or not known. Only of commands."
    ),
]


class ExecutionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A command or a cell, without the output. Null: not known, or not known yet."""

    id: ExecutionName
    state: Annotated[
        State,
        Meta(
            description="`QUEUED`: the program waits for a place; `EXITED`: the program has ended."
        ),
    ]
    execution_id: Annotated[
        str | UnsetType, Meta(description="Another word for `id`. Only of cells.")
    ] = UNSET
    session_id: SessionName = UNSET
    generation: Generation = UNSET
    state_lost: StateLost = UNSET
    command: CommandText = UNSET
    argv: Arguments = UNSET
    code: Code = UNSET
    started_by: WayOfStart = UNSET
    cwd: WorkingDirectory
    limits: AppliedLimits
    pid: Annotated[int | None, Meta(description="The process, as user code sees its pid.")]
    created_at: Annotated[str, Meta(description="The time of the request, RFC 3339 in UTC.")]
    started_at: Annotated[
        str | None, Meta(description="The start of the program, RFC 3339 in UTC.")
    ]
    ended_at: Annotated[str | None, Meta(description="The end, RFC 3339 in UTC.")]
    duration_seconds: Annotated[
        float | None, Meta(description="Time from the start of the program to the end.")
    ]
    exit_code: Annotated[
        int | None,
        Meta(
            description="The code of the program; 128 and the signal; or a stand-in from "
            "124 to 127. Null before the end."
        ),
    ]
    signal: Annotated[
        str | None, Meta(description="The signal that ended the program, for example `SIGKILL`.")
    ]
    exit_reason: Annotated[
        ExitReason | None, Meta(description="How the execution ended. Null before the end.")
    ]
    message: Annotated[
        str | None, Meta(description="The reason in words, unless the program ended by itself.")
    ]
    usage: Annotated[
        UsageReply | None, Meta(description="The resources that were used. Null before the end.")
    ]
    killed: Annotated[int | None, Meta(description="The number of processes that needed SIGKILL.")]
    timed_out: Annotated[
        bool, Meta(description="Whether the reason is `timeout` or `no_output_timeout`.")
    ]
    survivors: Annotated[
        list[int] | None,
        Meta(description="The pids of processes that had not ended when execd answered."),
    ]
    status: Annotated[
        Literal["success", "error"] | UnsetType | None,
        Meta(description="The outcome. Only of cells; null before the end."),
    ] = UNSET
    execution_count: Annotated[
        int | UnsetType | None,
        Meta(
            description="The number of the cell in the session. Only of cells; null before the end."
        ),
    ] = UNSET
    not_journaled: Annotated[
        str | UnsetType,
        Meta(
            description="Why a restart of the daemon would forget the execution. Absent: "
            "it would not."
        ),
    ] = UNSET


class ExecutionItem(ExecutionSummary, frozen=True, kw_only=True):
    """An execution in a list."""

    command_truncated: Annotated[
        bool | UnsetType,
        Meta(
            description="True: the command, the arguments or the code are cut. Absent: "
            "they are whole."
        ),
    ] = UNSET


class ExecutionsReply(msgspec.Struct, frozen=True, kw_only=True):
    """A page of executions."""

    items: Annotated[list[ExecutionItem], Meta(description="The executions, newest first.")]
    next_cursor: Annotated[
        str | None, Meta(description="The `cursor` of the next page; null: this page is the last.")
    ]


class ExecutionReply(ExecutionSummary, frozen=True, kw_only=True):
    """A command or a cell, with the output so far."""

    stdout: Annotated[str | UnsetType, Meta(description="Text. Absent with `encoding=base64`.")] = (
        UNSET
    )
    stderr: Annotated[str | UnsetType, Meta(description="Text. Absent with `encoding=base64`.")] = (
        UNSET
    )
    stdout_base64: Annotated[
        str | UnsetType, Meta(description="Bytes with `encoding=base64`, else absent.")
    ] = UNSET
    stderr_base64: Annotated[
        str | UnsetType, Meta(description="Bytes with `encoding=base64`, else absent.")
    ] = UNSET
    result: Annotated[
        cell_reply.Bundle | UnsetType | None,
        Meta(description="The value of the last expression; null: there is none. Only of cells."),
    ] = UNSET
    displays: Annotated[
        list[cell_reply.Bundle] | UnsetType,
        Meta(
            description="The displays that a notebook would show, and all results but the last. "
            "Only of cells."
        ),
    ] = UNSET
    error: Annotated[
        cell_reply.CellErrorReply | UnsetType | None,
        Meta(description="The exception that ended the cell; null: there is none. Only of cells."),
    ] = UNSET
    background: Annotated[
        cell_reply.BackgroundReply | UnsetType | None,
        Meta(description="What the session wrote before the cell; null: nothing. Only of cells."),
    ] = UNSET
    truncated: Annotated[
        ExecutionTruncation | None,
        Meta(description="What the reply does not have; null: nothing is missing."),
    ]


class WrittenReply(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of an input."""

    written_bytes: Annotated[
        int, Meta(description="The number of bytes that the program, or its pipe, has taken.")
    ]
