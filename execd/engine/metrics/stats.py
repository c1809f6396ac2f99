"""The figures of the daemon at one moment: the body of ``GET /v1/stats``, and the source of most
metrics. Add a figure here. Pure.

None: the figure has no source here. Zero is always a true zero.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

# msgspec reads the annotations at run time.
from execd.errors import ReplyCode  # noqa: TC001
from execd.model import CellStatus, ExitReason, Stream  # noqa: TC001

SessionStateName = Literal["STARTING", "IDLE", "BUSY", "WAITING_INPUT", "DEAD"]
"""As in ``engine.sessions.session_state``, which stands above this module's layer of imports."""


class ExecutionStats(msgspec.Struct, frozen=True, kw_only=True):
    """Commands and cells."""

    queued: Annotated[int, Meta(description="Executions in the state QUEUED.")]
    running: Annotated[int, Meta(description="Executions in the state RUNNING.")]
    ended: Annotated[
        dict[ExitReason, int],
        Meta(description="Executions that have ended since the start, by exit reason."),
    ]
    refused: Annotated[
        int,
        Meta(
            description="Executions since the start that ended with an error before any program "
            "ran, such as a wait that was too long."
        ),
    ]
    output_bytes: Annotated[
        dict[Stream, int],
        Meta(description="Output of the executions that have ended since the start, by stream."),
    ]
    held_pipes: Annotated[
        int,
        Meta(
            description="Pipes of ended commands that background processes hold, and execd reads."
        ),
    ]


class SessionStats(msgspec.Struct, frozen=True, kw_only=True):
    """Python sessions."""

    states: Annotated[dict[SessionStateName, int], Meta(description="Sessions by state.")]
    cells: Annotated[
        dict[CellStatus, int],
        Meta(description="Cells that have run since the start, by status. Cells are executions."),
    ]
    branches: Annotated[int, Meta(description="Branches made by forks since the start.")]
    pooled: Annotated[int, Meta(description="Workers that wait for new sessions.")]
    ready: Annotated[
        bool, Meta(description="Whether the sessions' Python runs and can fork workers.")
    ]
    trouble: Annotated[
        bool,
        Meta(
            description="Whether the sessions' Python cannot run; `sessions.trouble` of "
            "`GET /v1/capabilities` says why."
        ),
    ]
    restarts: Annotated[
        int,
        Meta(description="How often the sessions' Python ended after it was ready."),
    ]


class WardenStats(msgspec.Struct, frozen=True, kw_only=True):
    """The warden, the parent of all user code."""

    up: Annotated[bool, Meta(description="Whether a warden runs. Without a warden nothing starts.")]
    restarts: Annotated[int, Meta(description="Lost wardens that were replaced since the start.")]
    missed_pings: Annotated[
        int, Meta(description="Pings since the start that no warden answered in time.")
    ]
    killed_processes: Annotated[
        int,
        Meta(description="Processes that got SIGKILL when their tree was ended, since the start."),
    ]
    processes: Annotated[
        int | None,
        Meta(
            description="Processes below the warden, the sessions' Python included, as found by "
            "the latest scan."
        ),
    ]


class CpuStats(msgspec.Struct, frozen=True, kw_only=True):
    """CPU time."""

    daemon_seconds: Annotated[float, Meta(description="CPU time of the daemon since its start.")]
    warden_seconds: Annotated[
        float | None, Meta(description="CPU time of the present warden since its start.")
    ]
    trees_seconds: Annotated[
        float | None,
        Meta(
            description="CPU time of everything below the warden, ended processes included, since "
            "the start of the present warden."
        ),
    ]
    load_1m: Annotated[
        float | None,
        Meta(
            description="Load average of the machine over a minute. Null in gVisor, whose kernel "
            "does not say."
        ),
    ]


class MemoryStats(msgspec.Struct, frozen=True, kw_only=True):
    """Resident memory by part. A page that several processes share counts in each of them."""

    daemon_bytes: Annotated[int | None, Meta(description="Memory of the daemon.")]
    warden_bytes: Annotated[int | None, Meta(description="Memory of the warden.")]
    zygote_bytes: Annotated[
        int | None,
        Meta(description="Memory of the sessions' Python and of the workers without a session."),
    ]
    sessions_bytes: Annotated[
        int | None, Meta(description="Memory of all sessions, with the processes below them.")
    ]
    commands_bytes: Annotated[
        int | None, Meta(description="Memory of all commands, with the processes below them.")
    ]
    pod_used_bytes: Annotated[
        int | None,
        Meta(
            description="Used memory of the pod, files in memory included; of the machine where "
            "no limit of a pod is known."
        ),
    ]
    pod_size_bytes: Annotated[
        int | None, Meta(description="The memory limit of the pod. Null: not known.")
    ]
    pod_reserve_bytes: Annotated[
        int | None,
        Meta(
            description="What execd keeps free of the pod's memory by ending trees. Null: nothing "
            "guards the memory."
        ),
    ]
    pod_runtime_bytes: Annotated[
        int | None,
        Meta(
            description="Estimate of the memory that gVisor itself takes of the pod's limit, "
            "beside `pod_used_bytes`. Null: not gVisor, or not known yet."
        ),
    ]


class VolumeStats(msgspec.Struct, frozen=True, kw_only=True):
    """A directory with a limit."""

    used_bytes: Annotated[int | None, Meta(description="Bytes in the directory, as last found.")]
    limit_bytes: Annotated[
        int | None, Meta(description="The limit of the directory. Null: nothing guards it.")
    ]


class DiskStats(msgspec.Struct, frozen=True, kw_only=True):
    """Files of the daemon and of user code."""

    log_bytes: Annotated[
        int, Meta(description="Bytes of output in the state dir, of live and of ended executions.")
    ]
    log_limit_bytes: Annotated[
        int, Meta(description="The limit of these bytes; older logs go at half of the limit.")
    ]
    journal_bytes: Annotated[int, Meta(description="Size of the journal.")]
    journal_failing: Annotated[
        bool,
        Meta(description="Whether the latest write of the journal failed. A restart forgets then."),
    ]
    base_dir: Annotated[VolumeStats, Meta(description="The base dir.")]
    tmp_dir: Annotated[VolumeStats, Meta(description="/tmp.")]


class TrafficStats(msgspec.Struct, frozen=True, kw_only=True):
    """HTTP, since the start."""

    received_bytes: Annotated[int, Meta(description="Bytes from callers, headers included.")]
    sent_bytes: Annotated[
        int, Meta(description="Bytes of the replies that are over, headers included.")
    ]
    error_replies: Annotated[
        dict[ReplyCode, int], Meta(description="Replies with an error of execd, by code.")
    ]


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the daemon. Counts begin at zero with the daemon. Null: the kernel or the
    warden does not say."""

    version: Annotated[str, Meta(description="The version of execd.")]
    uptime_seconds: Annotated[float, Meta(description="Age of the daemon.")]
    ready: Annotated[bool, Meta(description="Whether a command sent now would run.")]
    executions: Annotated[ExecutionStats, Meta(description="Commands and cells.")]
    sessions: Annotated[SessionStats, Meta(description="Python sessions.")]
    warden: Annotated[WardenStats, Meta(description="The parent of all user code.")]
    cpu: Annotated[CpuStats, Meta(description="CPU time.")]
    memory: Annotated[MemoryStats, Meta(description="Resident memory by part.")]
    disk: Annotated[DiskStats, Meta(description="Logs, the journal, and guarded directories.")]
    traffic: Annotated[TrafficStats, Meta(description="HTTP.")]
