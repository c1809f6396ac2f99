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


def _metric(name: str, text: str, *, help: str = "", by: str = "", **labels: str) -> Meta:
    """Return the description of a figure that ``GET /metrics`` has too (``api.probes.families``).

    ``help``: of a metric with several figures, at the first of them; by default the first sentence
    of the description. ``by``: the label for the keys of the figure, or for the field that has the
    struct of the figure.
    """
    return Meta(description=text, extra={"metric": name, "help": help, "by": by, "labels": labels})


class ExecutionStats(msgspec.Struct, frozen=True, kw_only=True):
    """Commands and cells."""

    queued: Annotated[
        int,
        _metric(
            "execd_live_executions",
            "Executions in the state QUEUED.",
            help="Executions that have not ended, by state.",
            state="QUEUED",
        ),
    ]
    running: Annotated[
        int, _metric("execd_live_executions", "Executions in the state RUNNING.", state="RUNNING")
    ]
    ended: dict[ExitReason, int]
    """Executions that have ended since the start, by exit reason."""
    refused: Annotated[
        int,
        _metric(
            "execd_refused_executions_total",
            "Executions since the start that ended with an error before any program "
            "ran, such as a wait that was too long.",
        ),
    ]
    output_bytes: Annotated[
        dict[Stream, int],
        _metric(
            "execd_output_bytes_total",
            "Output of the executions that have ended since the start, by stream.",
            by="stream",
        ),
    ]
    held_pipes: int
    """Pipes of ended commands that background processes hold, and execd reads."""


class SessionStats(msgspec.Struct, frozen=True, kw_only=True):
    """Python sessions."""

    states: Annotated[
        dict[SessionStateName, int], _metric("execd_sessions", "Sessions by state.", by="state")
    ]
    cells: Annotated[
        dict[CellStatus, int],
        _metric(
            "execd_cells_total",
            "Cells that have run since the start, by status. Cells are executions.",
            by="status",
        ),
    ]
    branches: Annotated[
        int, _metric("execd_session_branches_total", "Branches made by forks since the start.")
    ]
    pooled: Annotated[int, _metric("execd_pooled_workers", "Workers that wait for new sessions.")]
    ready: Annotated[
        bool, _metric("execd_zygote_up", "Whether the sessions' Python runs and can fork workers.")
    ]
    trouble: Annotated[
        bool,
        _metric(
            "execd_zygote_trouble",
            "Whether the sessions' Python cannot run; `sessions.trouble` of "
            "`GET /v1/capabilities` says why.",
        ),
    ]
    restarts: Annotated[
        int,
        _metric(
            "execd_zygote_restarts_total",
            "How often the sessions' Python ended after it was ready.",
        ),
    ]


class WardenStats(msgspec.Struct, frozen=True, kw_only=True):
    """The warden, the parent of all user code."""

    up: Annotated[
        bool, _metric("execd_warden_up", "Whether a warden runs. Without a warden nothing starts.")
    ]
    restarts: Annotated[
        int,
        _metric("execd_warden_restarts_total", "Lost wardens that were replaced since the start."),
    ]
    missed_pings: Annotated[
        int,
        _metric(
            "execd_warden_missed_pings_total",
            "Pings since the start that no warden answered in time.",
        ),
    ]
    killed_processes: Annotated[
        int,
        _metric(
            "execd_killed_processes_total",
            "Processes that got SIGKILL when their tree was ended, since the start.",
        ),
    ]
    processes: Annotated[
        int | None,
        _metric(
            "execd_processes",
            "Processes below the warden, the sessions' Python included, as found by "
            "the latest scan.",
        ),
    ]


class CpuStats(msgspec.Struct, frozen=True, kw_only=True):
    """CPU time."""

    daemon_seconds: Annotated[
        float,
        _metric(
            "execd_cpu_seconds_total",
            "CPU time of the daemon since its start.",
            help="CPU time by part. trees: everything below the warden, ended processes included.",
            part="daemon",
        ),
    ]
    warden_seconds: Annotated[
        float | None,
        _metric(
            "execd_cpu_seconds_total",
            "CPU time of the present warden since its start.",
            part="warden",
        ),
    ]
    trees_seconds: Annotated[
        float | None,
        _metric(
            "execd_cpu_seconds_total",
            "CPU time of everything below the warden, ended processes included, since "
            "the start of the present warden.",
            part="trees",
        ),
    ]
    load_1m: float | None
    """Load average of the machine over a minute. Null in gVisor, whose kernel does not say."""


class MemoryStats(msgspec.Struct, frozen=True, kw_only=True):
    """Resident memory by part. A page that several processes share counts in each of them."""

    daemon_bytes: Annotated[
        int | None,
        _metric(
            "execd_memory_bytes",
            "Memory of the daemon.",
            help="Resident memory by part. A shared page counts in each of its processes.",
            part="daemon",
        ),
    ]
    warden_bytes: Annotated[
        int | None, _metric("execd_memory_bytes", "Memory of the warden.", part="warden")
    ]
    zygote_bytes: Annotated[
        int | None,
        _metric(
            "execd_memory_bytes",
            "Memory of the sessions' Python and of the workers without a session.",
            part="zygote",
        ),
    ]
    sessions_bytes: Annotated[
        int | None,
        _metric(
            "execd_memory_bytes",
            "Memory of all sessions, with the processes below them.",
            part="sessions",
        ),
    ]
    commands_bytes: Annotated[
        int | None,
        _metric(
            "execd_memory_bytes",
            "Memory of all commands, with the processes below them.",
            part="commands",
        ),
    ]
    pod_used_bytes: Annotated[
        int | None,
        _metric(
            "execd_pod_memory_used_bytes",
            "Used memory of the pod, files in memory included; of the machine where "
            "no limit of a pod is known.",
        ),
    ]
    pod_size_bytes: Annotated[
        int | None,
        _metric("execd_pod_memory_limit_bytes", "The memory limit of the pod. Null: not known."),
    ]
    pod_reserve_bytes: Annotated[
        int | None,
        _metric(
            "execd_pod_memory_reserve_bytes",
            "What execd keeps free of the pod's memory by ending trees. Null: nothing "
            "guards the memory.",
        ),
    ]
    pod_runtime_bytes: Annotated[
        int | None,
        _metric(
            "execd_pod_memory_runtime_bytes",
            "Estimate of the memory that gVisor itself takes of the pod's limit, "
            "beside `pod_used_bytes`. Null: not gVisor, or not known yet.",
        ),
    ]


class VolumeStats(msgspec.Struct, frozen=True, kw_only=True):
    """A directory with a limit."""

    used_bytes: Annotated[
        int | None,
        _metric(
            "execd_directory_used_bytes", "Bytes in the directory, as last found.", by="directory"
        ),
    ]
    limit_bytes: Annotated[
        int | None,
        _metric(
            "execd_directory_limit_bytes",
            "The limit of the directory. Null: nothing guards it.",
            by="directory",
        ),
    ]


class DiskStats(msgspec.Struct, frozen=True, kw_only=True):
    """Files of the daemon and of user code."""

    log_bytes: Annotated[
        int,
        _metric(
            "execd_log_bytes", "Bytes of output in the state dir, of live and of ended executions."
        ),
    ]
    log_limit_bytes: Annotated[
        int,
        _metric(
            "execd_log_limit_bytes",
            "The limit of these bytes; older logs go at half of the limit.",
            help="The limit of the output in the state dir.",
        ),
    ]
    journal_bytes: Annotated[int, _metric("execd_journal_bytes", "Size of the journal.")]
    journal_failing: Annotated[
        bool,
        _metric(
            "execd_journal_failing",
            "Whether the latest write of the journal failed. A restart forgets then.",
        ),
    ]
    base_dir: VolumeStats
    """The base dir."""
    tmp_dir: VolumeStats
    """/tmp."""


class TrafficStats(msgspec.Struct, frozen=True, kw_only=True):
    """HTTP, since the start."""

    received_bytes: Annotated[
        int, _metric("execd_http_received_bytes_total", "Bytes from callers, headers included.")
    ]
    sent_bytes: Annotated[
        int,
        _metric(
            "execd_http_sent_bytes_total", "Bytes of the replies that are over, headers included."
        ),
    ]
    error_replies: Annotated[
        dict[ReplyCode, int],
        _metric(
            "execd_error_replies_total", "Replies with an error of execd, by code.", by="error_code"
        ),
    ]


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the daemon. Counts begin at zero with the daemon. Null: the kernel or the
    warden does not say."""

    version: str
    """The version of execd."""
    uptime_seconds: Annotated[float, _metric("execd_uptime_seconds", "Age of the daemon.")]
    ready: Annotated[bool, _metric("execd_ready", "Whether a command sent now would run.")]
    executions: ExecutionStats
    """Commands and cells."""
    sessions: SessionStats
    """Python sessions."""
    warden: WardenStats
    """The parent of all user code."""
    cpu: CpuStats
    """CPU time."""
    memory: MemoryStats
    """Resident memory by part."""
    disk: DiskStats
    """Logs, the journal, and guarded directories."""
    traffic: TrafficStats
    """HTTP."""
