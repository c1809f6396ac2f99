"""The figures of the daemon, read from the parts of the engine and from the kernel.

Nothing is read between two calls, so the figures cost an idle daemon nothing. A call reads the
warden's totals and a few files of /proc, none of which waits for a disk or for the warden.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, get_args

from execd import __version__
from execd.engine.metrics.stats import (
    CpuStats,
    DiskStats,
    ExecutionStats,
    MemoryStats,
    SessionStateName,
    SessionStats,
    Stats,
    TrafficStats,
    VolumeStats,
    WardenStats,
)
from execd.engine.sessions.session_state import SessionState
from execd.model import ExitReason, State
from execd.proc import kernel_traits
from execd.proc.memory_meter import open_meter
from execd.proc.process_tree import read_process

if TYPE_CHECKING:
    from collections.abc import Mapping

    from execd.engine.assembly import Parts
    from execd.proc.process_tree import Process
    from execd.proc.totals_file import Totals


class MachineFigures(NamedTuple):
    """What the kernel says of the machine, or of the sandbox, as a whole."""

    cached_bytes: int
    """Page cache."""
    disk_bytes: int
    """The file system of the base dir."""
    disk_free_bytes: int


def read_machine(base_dir: str) -> MachineFigures:
    """Read the figures of the machine. Asks the disk, so call in a thread. Raises OSError."""
    fields = {}
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, rest = line.partition(":")
            fields[name] = int(rest.split()[0]) * 1024
    disk = os.statvfs(base_dir)
    return MachineFigures(
        cached_bytes=fields.get("Cached", 0),
        disk_bytes=disk.f_blocks * disk.f_frsize,
        disk_free_bytes=disk.f_bfree * disk.f_frsize,
    )


def read_stats(parts: Parts, *, uptime_seconds: float, is_ready: bool) -> Stats:
    totals = parts.warden.read_totals()
    warden = None if parts.warden.pid is None else read_process(parts.warden.pid)
    return Stats(
        version=__version__,
        uptime_seconds=round(uptime_seconds, 3),
        ready=is_ready,
        executions=_executions(parts),
        sessions=_sessions(parts),
        warden=WardenStats(
            up=parts.warden.up.is_set(),
            restarts=parts.warden.restarts,
            missed_pings=parts.warden.missed_pings,
            killed_processes=parts.warden.killed_processes,
            processes=None if totals is None else totals.processes,
        ),
        cpu=_cpu(warden, totals),
        memory=_memory(parts, warden, totals),
        disk=_disk(parts),
        traffic=_traffic(parts),
    )


def _cpu(warden: Process | None, totals: Totals | None) -> CpuStats:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return CpuStats(
        daemon_seconds=round(usage.ru_utime + usage.ru_stime, 6),
        warden_seconds=None if warden is None else warden.cpu_seconds,
        trees_seconds=None if totals is None else round(totals.cpu_seconds, 6),
        load_1m=os.getloadavg()[0] if kernel_traits.find().tells_load else None,
    )


def _memory(parts: Parts, warden: Process | None, totals: Totals | None) -> MemoryStats:
    daemon, used_bytes = read_process(os.getpid()), None
    with (
        contextlib.suppress(OSError, ValueError),
        contextlib.closing(open_meter(parts.pod_memory.cgroup)) as meter,
    ):
        used_bytes = meter.read().used_bytes
    return MemoryStats(
        daemon_bytes=None if daemon is None else daemon.rss_bytes,
        warden_bytes=None if warden is None else warden.rss_bytes,
        zygote_bytes=None if totals is None else totals.zygote_bytes,
        sessions_bytes=None if totals is None else totals.sessions_bytes,
        commands_bytes=None if totals is None else totals.commands_bytes,
        pod_used_bytes=used_bytes,
        pod_size_bytes=parts.pod_memory.size_bytes or None,
        pod_reserve_bytes=parts.pod_memory.reserve_bytes or None,
        pod_runtime_bytes=(totals and totals.runtime_bytes) or None,
    )


def _executions(parts: Parts) -> ExecutionStats:
    counters = parts.counters
    states = Counter(execution.state for execution in parts.registry.live)
    ended = dict.fromkeys(ExitReason, 0)
    for (_, reason), count in counters.executions.items():
        ended[reason] += count
    return ExecutionStats(
        queued=states[State.QUEUED],
        running=states[State.RUNNING],
        ended=ended,
        refused=counters.refused_executions,
        output_bytes=dict(counters.output_bytes),
        held_pipes=parts.held_pipes.count,
    )


def _sessions(parts: Parts) -> SessionStats:
    counters, zygote = parts.counters, parts.sessions.zygote
    states = parts.sessions.count_states()
    return SessionStats(
        states={name: states[SessionState(name)] for name in get_args(SessionStateName)},
        cells=dict(counters.cells),
        branches=counters.branches,
        pooled=zygote.n_pooled,
        ready=zygote.is_up,
        trouble=zygote.trouble is not None,
        restarts=zygote.restarts,
    )


def _disk(parts: Parts) -> DiskStats:
    store = parts.store
    found = {volume.setting: volume.facts() for volume in parts.volumes}
    return DiskStats(
        log_bytes=store.used_bytes,
        log_limit_bytes=store.max_bytes,
        journal_bytes=store.journal.size_bytes,
        journal_failing=store.has_failed,
        base_dir=_volume(found.get("base_dir_bytes", {})),
        tmp_dir=_volume(found.get("tmp_dir_bytes", {})),
    )


def _volume(facts: Mapping[str, int | None]) -> VolumeStats:
    return VolumeStats(used_bytes=facts.get("used_bytes"), limit_bytes=facts.get("limit_bytes"))


def _traffic(parts: Parts) -> TrafficStats:
    counters = parts.counters
    return TrafficStats(
        received_bytes=counters.received_bytes,
        sent_bytes=counters.sent_bytes,
        error_replies=dict(counters.error_replies),
    )
