"""The metrics of the daemon as a table. Pure. Add a metric here, and a line in
docs/reference/metrics.md.

A metric has the words of the log and of the replies: dialects, exit reasons, states, error codes.
All label values come from sets that are closed once the ports are open, so traffic adds no series.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, get_args

from execd import __version__
from execd.engine.metrics.stats import SessionStateName
from execd.errors import ReplyCode
from execd.model import STREAMS, CellStatus, Dialect, ExitReason, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from execd.engine.metrics.counters import Counters, Histogram
    from execd.engine.metrics.stats import Stats

Value = int | float | None
"""None: the value has no source here, and the series is absent."""
Values = Sequence[Value]
Rows = tuple[tuple[str, ...], ...]


SESSION_STATES: tuple[SessionStateName, ...] = get_args(SessionStateName)
CELL_STATUSES: tuple[CellStatus, ...] = get_args(CellStatus)
REPLY_CODES: tuple[ReplyCode, ...] = get_args(ReplyCode)


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


# eq=False: a family is equal to itself only, and its hash is cheap.
@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """One metric, with all its series."""

    name: str
    """The full name; a counter ends with ``_total``."""
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    rows: Rows = ((),)
    """The values of the labels for each series. An empty value is an absent label."""
    rows_now: Callable[[Counters], Rows] | None = None
    """The rows instead, where the ports of the daemon decide."""
    read: Callable[[Stats, Counters], Values | Histogram]
    """Return a value for each row, or the histogram."""

    @property
    def unit(self) -> str:
        """The last word of the name, if that is a unit."""
        last = self.name.removesuffix("_total").rpartition("_")[2]
        return last if last in ("bytes", "seconds") else ""


def _gauge(name: str, help: str, read: Callable[[Stats], Value]) -> Family:
    return Family(name=name, kind=MetricKind.GAUGE, help=help, read=lambda stats, _: (read(stats),))


def _counter(name: str, help: str, read: Callable[[Stats], Value]) -> Family:
    return Family(
        name=name, kind=MetricKind.COUNTER, help=help, read=lambda stats, _: (read(stats),)
    )


def _by_label(
    name: str,
    kind: MetricKind,
    help: str,
    label: str,
    rows: Iterable[str],
    read: Callable[[Stats], Values],
) -> Family:
    return Family(
        name=name,
        kind=kind,
        help=help,
        labels=(label,),
        rows=tuple((value,) for value in rows),
        read=lambda stats, _: read(stats),
    )


def _histogram(name: str, help: str, read: Callable[[Counters], Histogram]) -> Family:
    return Family(
        name=name, kind=MetricKind.HISTOGRAM, help=help, read=lambda _, counters: read(counters)
    )


def _counted(counters: Counters) -> list[tuple[Dialect | None, ExitReason]]:
    """Every request brings a dialect: only the executions of a former daemon have none."""
    return [
        (dialect, reason)
        for dialect, reason in counters.executions
        if dialect is not None or reason is ExitReason.DAEMON_RESTARTED
    ]


FAMILIES = (
    Family(
        name="execd_build_info",
        kind=MetricKind.GAUGE,
        help="Always 1. The version of the daemon.",
        labels=("version",),
        rows=((__version__,),),
        read=lambda _stats, _counters: (1,),
    ),
    _gauge("execd_uptime_seconds", "Age of the daemon.", lambda stats: stats.uptime_seconds),
    _gauge("execd_ready", "1 if a command sent now would run.", lambda stats: stats.ready),
    Family(
        name="execd_executions_total",
        kind=MetricKind.COUNTER,
        help="Commands and cells that have ended, by dialect of the request and exit reason.",
        labels=("dialect", "exit_reason"),
        rows_now=lambda counters: tuple(
            (dialect or "", reason) for dialect, reason in _counted(counters)
        ),
        read=lambda _, counters: [counters.executions[key] for key in _counted(counters)],
    ),
    _counter(
        "execd_refused_executions_total",
        "Executions that ended with an error before any program ran.",
        lambda stats: stats.executions.refused,
    ),
    _by_label(
        "execd_live_executions",
        MetricKind.GAUGE,
        "Executions that have not ended, by state.",
        "state",
        (State.QUEUED, State.RUNNING),
        lambda stats: (stats.executions.queued, stats.executions.running),
    ),
    _histogram(
        "execd_execution_duration_seconds",
        "How long programs and cells ran.",
        lambda counters: counters.duration_seconds,
    ),
    _histogram(
        "execd_queue_wait_seconds",
        "How long executions waited for their turn.",
        lambda counters: counters.queue_seconds,
    ),
    _by_label(
        "execd_output_bytes_total",
        MetricKind.COUNTER,
        "Output of the executions that have ended, by stream.",
        "stream",
        STREAMS,
        lambda stats: [stats.executions.output_bytes[stream] for stream in STREAMS],
    ),
    _by_label(
        "execd_sessions",
        MetricKind.GAUGE,
        "Python sessions by state.",
        "state",
        SESSION_STATES,
        lambda stats: [stats.sessions.states[state] for state in SESSION_STATES],
    ),
    _by_label(
        "execd_cells_total",
        MetricKind.COUNTER,
        "Cells that have run, by status. Cells are executions too.",
        "status",
        CELL_STATUSES,
        lambda stats: [stats.sessions.cells[status] for status in CELL_STATUSES],
    ),
    _counter(
        "execd_session_branches_total",
        "Branches of sessions, made by forks.",
        lambda stats: stats.sessions.branches,
    ),
    _gauge(
        "execd_pooled_workers",
        "Workers that wait for new sessions.",
        lambda stats: stats.sessions.pooled,
    ),
    _gauge(
        "execd_zygote_up",
        "1 if the Python of the sessions runs and can fork workers.",
        lambda stats: stats.sessions.ready,
    ),
    _gauge(
        "execd_zygote_trouble",
        "1 if the Python of the sessions cannot run.",
        lambda stats: stats.sessions.trouble,
    ),
    _counter(
        "execd_zygote_restarts_total",
        "How often the Python of the sessions ended after it was ready.",
        lambda stats: stats.sessions.restarts,
    ),
    _gauge("execd_warden_up", "1 if a warden runs.", lambda stats: stats.warden.up),
    _counter(
        "execd_warden_restarts_total",
        "Lost wardens that were replaced.",
        lambda stats: stats.warden.restarts,
    ),
    _counter(
        "execd_warden_missed_pings_total",
        "Pings that no warden answered in time.",
        lambda stats: stats.warden.missed_pings,
    ),
    _counter(
        "execd_killed_processes_total",
        "Processes that got SIGKILL when their tree was ended.",
        lambda stats: stats.warden.killed_processes,
    ),
    _gauge(
        "execd_processes",
        "Processes below the warden, as found by the latest scan.",
        lambda stats: stats.warden.processes,
    ),
    _by_label(
        "execd_cpu_seconds_total",
        MetricKind.COUNTER,
        "CPU time by part. trees: everything below the warden, ended processes included.",
        "part",
        ("daemon", "warden", "trees"),
        lambda stats: (
            stats.cpu.daemon_seconds,
            stats.cpu.warden_seconds,
            stats.cpu.trees_seconds,
        ),
    ),
    _by_label(
        "execd_memory_bytes",
        MetricKind.GAUGE,
        "Resident memory by part. A shared page counts in each of its processes.",
        "part",
        ("daemon", "warden", "zygote", "sessions", "commands"),
        lambda stats: (
            stats.memory.daemon_bytes,
            stats.memory.warden_bytes,
            stats.memory.zygote_bytes,
            stats.memory.sessions_bytes,
            stats.memory.commands_bytes,
        ),
    ),
    _gauge(
        "execd_pod_memory_used_bytes",
        "Used memory of the pod; of the machine where no limit of a pod is known.",
        lambda stats: stats.memory.pod_used_bytes,
    ),
    _gauge(
        "execd_pod_memory_limit_bytes",
        "The memory limit of the pod.",
        lambda stats: stats.memory.pod_size_bytes,
    ),
    _gauge(
        "execd_pod_memory_reserve_bytes",
        "What execd keeps free of the memory limit by ending trees.",
        lambda stats: stats.memory.pod_reserve_bytes,
    ),
    _gauge(
        "execd_pod_memory_runtime_bytes",
        "Estimate of the memory that gVisor itself takes of the limit.",
        lambda stats: stats.memory.pod_runtime_bytes,
    ),
    _gauge("execd_log_bytes", "Output in the state dir.", lambda stats: stats.disk.log_bytes),
    _gauge(
        "execd_log_limit_bytes",
        "The limit of the output in the state dir.",
        lambda stats: stats.disk.log_limit_bytes,
    ),
    _gauge("execd_journal_bytes", "Size of the journal.", lambda stats: stats.disk.journal_bytes),
    _gauge(
        "execd_journal_failing",
        "1 if the latest write of the journal failed.",
        lambda stats: stats.disk.journal_failing,
    ),
    _by_label(
        "execd_directory_used_bytes",
        MetricKind.GAUGE,
        "Bytes in a directory that has a limit.",
        "directory",
        ("base_dir", "tmp_dir"),
        lambda stats: (stats.disk.base_dir.used_bytes, stats.disk.tmp_dir.used_bytes),
    ),
    _by_label(
        "execd_directory_limit_bytes",
        MetricKind.GAUGE,
        "The limit of a directory.",
        "directory",
        ("base_dir", "tmp_dir"),
        lambda stats: (stats.disk.base_dir.limit_bytes, stats.disk.tmp_dir.limit_bytes),
    ),
    _counter(
        "execd_http_received_bytes_total",
        "Bytes from HTTP callers, headers included.",
        lambda stats: stats.traffic.received_bytes,
    ),
    _counter(
        "execd_http_sent_bytes_total",
        "Bytes of the replies that are over, headers included.",
        lambda stats: stats.traffic.sent_bytes,
    ),
    _by_label(
        "execd_error_replies_total",
        MetricKind.COUNTER,
        "Replies with an error of execd, by code.",
        "error_code",
        REPLY_CODES,
        lambda stats: [stats.traffic.error_replies[code] for code in REPLY_CODES],
    ),
    _histogram(
        "execd_loop_lag_seconds",
        "How late the event loop ran its timer while user code lived.",
        lambda counters: counters.loop_lag_seconds,
    ),
)
