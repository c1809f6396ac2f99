"""A job: a program that the warden started or adopted, with the tree of processes below.

A job holds the tree's members, the kill and the signals under way, and the figures of the tree. The
figures count from the leader's start, or from the daemon's last request for a new count: a worker
of a session runs many cells, and each cell is counted by itself.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections import Counter
from typing import TYPE_CHECKING

from execd.proc import tree_mark
from execd.proc.messages import Exited, Measured, Spawn
from execd.proc.process_tree import ticks_since_boot
from execd.warden.returning_memory import ReturningMemory
from execd.warden.tree_kill import Phase
from execd.warden.written_bytes import WrittenTotal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from execd.proc.memory import Account
    from execd.proc.messages import Adopt
    from execd.proc.process_tree import Process
    from execd.warden.own_peak import OwnPeak
    from execd.warden.tree_kill import TreeKill

CPU_GRACE_SECONDS = 1.0


class Job:
    """The tree of a program. Implements ``process_tree.TreeOwner``.

    The supervisor drops a job when the leader is reaped and a scan finds no member.
    """

    def __init__(
        self,
        request: Spawn | Adopt,
        pid: int,
        start: int,
        pipes: frozenset[str],
        account: Account,
        *,
        spawned_at: float,
        spawn_seconds: float = 0.0,
        session: int,
        is_direct: bool = False,
    ) -> None:
        """``start``: of the leader, see ``Process.start``. 0, on Linux only: known within a tick,
        by ``spawned_at`` and ``spawn_seconds``; a scan tells the rest (``learn_start``)."""
        self.tag = request.tag
        self.pid = pid
        self._has_exact_start = start > 0
        # Not later than the leader's start: an older process is no descendant.
        self.start = start or ticks_since_boot(spawned_at - spawn_seconds) - 1
        self.session = session
        """The session of the leader, and of each member that has not left the session."""
        self.mark = (
            tree_mark.of_limits(request.limits) if isinstance(request, Spawn) else request.mark
        )
        self.marker = os.fsencode(request.marker)
        self.pipes = pipes
        self.members: dict[int, int] = {pid: self.start}
        self.max_processes = request.processes
        self.n_others = 0
        """Tasks outside of the tree when RLIMIT_NPROC was last set (``process_caps``)."""
        self.is_adopted = not isinstance(request, Spawn)
        self.max_cpu_seconds = max_cpu_seconds(request)
        """CPU time that each process may use; for the leader, in the present count."""
        self.is_idle = request.is_idle
        self.is_direct = is_direct
        """See messages.Spawned."""
        self.spawned_at = spawned_at
        self._spawn_seconds = spawn_seconds
        self.reaped_at: float | None = None
        self._ended_at = 0.0
        """When the leader ended, as the daemon is told: see messages.Exited."""
        self.kill: TreeKill | None = None
        self.cell_kills: dict[int, TreeKill] = {}
        """By mark: the cells of a session whose processes are being ended."""
        self.account = account
        self.written = WrittenTotal()
        self._returning_memory = ReturningMemory()
        # The leader's CPU time when the present count began.
        self._cpu_before = self._user_before = self._system_before = 0.0
        self.is_guarded_from_hangups = False
        """See ``hangups``."""
        self.first_orphans: tuple[int, int] | None = None
        """Pids of the first orphan and the added orphan, while neither is reaped: see
        ``hangups``."""
        self._work_began = 0
        """Clock ticks since boot, as in ``Process.start``: what began earlier is older than the
        counted work."""
        # Found by scans since the present count began.
        self._max_rss_bytes = 0
        self._processes = 1
        self.n_tasks = 1
        """Processes and threads of the tree at the last scan."""
        self.grown_tasks = 0
        """By how much ``n_tasks`` grew from the scan before to the last scan."""
        self.has_stopped = False
        """Some member was stopped (SIGSTOP and the like) at the last scan."""
        self.signals: dict[tuple[int, str, int], float] = {}
        """(number, scope, mark) -> when the daemon asked. A signal waits for a scan that begins
        later.

        A signal that the daemon asks for twice before the scan is sent once, like any pending
        signal (signal(7)).
        """

    def has_ended_before(self, at: float) -> bool:
        """Whether the leader ended before ``at`` (monotonic clock) and no kill is under way."""
        return self.kill is None and self.reaped_at is not None and self._ended_at < at

    @property
    def has_too_many_tasks(self) -> bool:
        """Whether the tree has a limit of processes and was over the limit at the last scan."""
        return 0 < self.max_processes < self.n_tasks

    def learn_start(self, processes: Mapping[int, Process], scan_began: float) -> None:
        """Take the leader's exact start from a scan. The launcher does not read the start: most
        programs end before a scan, and the reading would be a tenth of the warden's work.

        A leader's pid stays the leader's until ``_reap``. So if the leader was there when the scan
        began and is not reaped yet, the scan's process is the leader. If the leader was reaped
        during the scan, the scan may have read the leader or a later process of the same number: a
        later process began after ``spawned_at``, by far more than the tick that rounding takes.
        """
        if self._has_exact_start:
            return
        leader = processes.get(self.pid)
        if leader is None or self.spawned_at >= scan_began:
            return
        if self.reaped_at is None or leader.start <= ticks_since_boot(self.spawned_at) + 1:
            self._has_exact_start = True
            self.start = leader.start
            self.members = {**self.members, self.pid: leader.start}

    def record_scan(self, members: Collection[Process], before: dict[int, int]) -> None:
        """Bring the figures up to date with a scan.

        ``members``: the tree's processes in the scan. ``before``: pid -> start of the members
        before the scan.
        """
        self._processes += sum(
            1
            for pid, start in self.members.items() - before.items()
            if (pid, start) != (self.pid, self.start)
        )
        n_tasks = sum(process.n_threads for process in members)
        self.grown_tasks, self.n_tasks = n_tasks - self.n_tasks, n_tasks
        self._max_rss_bytes = max(
            self._max_rss_bytes, *(process.rss_bytes for process in members), 0
        )
        self.account.record_scan(
            sum(process.rss_bytes for process in members),
            ending=self.kill is not None and self.kill.phase is not Phase.TERMINATING,
            coming_back_bytes=self._returning_memory.record_scan(members, time.monotonic()),
        )

    def find_over_cpu_limit(self, members: Collection[Process]) -> dict[int, float]:
        """Return pid -> CPU time in seconds of the living members over the limit."""
        used = {process.pid: process.cpu_seconds for process in members if not process.is_dead}
        if self.pid in used:
            used[self.pid] -= self._cpu_before
        return {pid: seconds for pid, seconds in used.items() if seconds > self.max_cpu_seconds}

    def find_at_work(self, members: Collection[Process]) -> set[int]:
        """Return the pids of the members that belong to the work of the present count.

        Descendants of the leader from before the work, and processes below such descendants, do
        not belong to the work.
        """
        children: dict[int, list[Process]] = {}
        for process in members:
            children.setdefault(process.parent, []).append(process)
        found = {process.pid for process in members}
        above = [
            process.pid
            for process in members
            if process.start < self._work_began and process.pid != self.pid
        ]
        while above:
            pid = above.pop()
            if pid in found:
                found.remove(pid)
                above += [child.pid for child in children.get(pid, ())]
        return found

    def find_of_cell(self, mark: int, members: Collection[Process]) -> list[Process]:
        """Return the living members that the cell with ``mark`` has begun, without the leader.

        A process without a mark belongs to the cell if it belongs to the counted work.
        """
        living = {
            process.pid: tree_mark.of_process(process.pid)
            for process in members
            if not process.is_dead and process.pid != self.pid
        }
        at_work = set() if all(living.values()) else self.find_at_work(members)
        return [
            process
            for process in members
            if (own := living.get(process.pid)) is not None
            and (own == mark if own else process.pid in at_work)
        ]

    @property
    def kills(self) -> list[TreeKill]:
        """All kills under way."""
        return [kill for kill in (self.kill, *self.cell_kills.values()) if kill is not None]

    def measure(self, leader: Process | None) -> Measured:
        """Return the figures of the present count.

        ``leader``: the leader's /proc entry as of now. None: the leader has ended, so the figures
        are zeros and ``Exited`` has the final figures.
        """
        if leader is None:
            return Measured(self.tag, self.account.tree_bytes, 0.0, 0.0, 0, 0, 0)
        return Measured(
            self.tag,
            max(self.account.tree_bytes, leader.rss_bytes),
            leader.user_seconds - self._user_before,
            leader.system_seconds - self._system_before,
            max(self._max_rss_bytes, leader.rss_bytes),
            max(self.account.peak_tree_bytes, leader.rss_bytes),
            self._processes,
        )

    def restart_counts(self, leader: Process, work_began: float) -> None:
        """Begin a new count. ``leader``: the leader's /proc entry as of now. ``work_began``: see
        ``messages.Measure``."""
        assert leader.pid == self.pid
        # A tick earlier: in gVisor a start in /proc is up to 7 ms before the time that this clock
        # tells, and a program that the work has begun at once is part of the work.
        self._work_began = ticks_since_boot(work_began) - 1
        # A busy machine lets the warden hear of the work late. The CPU time since the count before
        # is then the work's, as far as the work can have used so much.
        late_seconds = time.monotonic() - work_began if work_began else 0.0
        self._cpu_before = leader.cpu_seconds - min(
            leader.cpu_seconds - self._cpu_before, late_seconds
        )
        user_seconds = leader.user_seconds - self._user_before
        system_seconds = leader.system_seconds - self._system_before
        used_seconds = user_seconds + system_seconds
        part = min(1.0, late_seconds / used_seconds) if used_seconds > 0 else 0.0
        self._user_before = leader.user_seconds - user_seconds * part
        self._system_before = leader.system_seconds - system_seconds * part
        self._max_rss_bytes = self.account.peak_tree_bytes = 0
        self._processes = len(self.members)

    def record_exit(
        self, at: float, wait_status: int, usage: resource.struct_rusage, own_peak: OwnPeak
    ) -> Exited:
        """Note that the leader has been reaped, and return the message for the daemon.

        ``at``: when the warden woke to reap, on the monotonic clock.
        """
        assert self.reaped_at is None, "a pid is reaped once"
        self.reaped_at, self._ended_at = time.monotonic(), at
        max_rss_bytes = usage.ru_maxrss * 1024
        # A worker is a fork of the zygote, and did not begin as a copy of the warden.
        if not self.is_adopted and own_peak.may_hide(max_rss_bytes):
            max_rss_bytes = self._max_rss_bytes  # as scans have found; 0 without a scan
        return Exited(
            self.tag,
            self.pid,
            self.spawned_at,
            at,
            wait_status,
            # At least zero: the kernel rounds the figures of a living process to clock ticks.
            max(0.0, usage.ru_utime - self._user_before),
            max(0.0, usage.ru_stime - self._system_before),
            max_rss_bytes,
            self.account.peak_tree_bytes,
            self._processes,
            self._spawn_seconds,
            self.is_direct,
        )


class JobTable(dict[int, Job]):
    """Jobs by tag, and the lowest limit of processes among them. The limit is asked at each start
    and at each count of tasks, fifty times a second, and costs the same for hundreds of jobs.

    Change the table by ``add``, ``remove`` and ``activate`` only.
    """

    def __init__(self) -> None:
        super().__init__()
        self._limits: Counter[int] = Counter()
        """How many jobs that run user code have each limit."""
        self.lowest_process_limit = 0
        """The lowest limit of processes among jobs that run user code; 0 if no job has a limit."""

    def add(self, job: Job) -> None:
        assert job.tag not in self
        self[job.tag] = job
        if not job.is_idle:
            self._count(job, 1)

    def activate(self, job: Job) -> None:
        """The job begins to run user code: limits apply from now on."""
        assert self[job.tag] is job
        if job.is_idle:
            job.is_idle = False
            self._count(job, 1)

    def remove(self, job: Job) -> None:
        del self[job.tag]
        if not job.is_idle:
            self._count(job, -1)

    def _count(self, job: Job, change: int) -> None:
        limit = job.max_processes
        if not limit:
            return
        self._limits[limit] += change
        assert self._limits[limit] >= 0
        if not self._limits[limit]:
            del self._limits[limit]
        self.lowest_process_limit = min(self._limits, default=0)


def max_cpu_seconds(request: Spawn | Adopt) -> float:
    """CPU time in seconds that each process of the tree may use; infinite without a limit.

    A started program has RLIMIT_CPU (setrlimit(2)), and the warden ends a process that has used
    CPU_GRACE_SECONDS more than the hard limit. The warden must do so in gVisor: there a child does
    not inherit RLIMIT_CPU, and most programs run as children of a shell. An adopted worker has no
    RLIMIT_CPU, so the warden alone enforces the limit.
    """
    if not isinstance(request, Spawn):
        return request.cpu_seconds or math.inf
    return (
        next((hard for which, _, hard in request.limits if which == resource.RLIMIT_CPU), math.inf)
        + CPU_GRACE_SECONDS
    )


def send_signal(pid: int, number: int) -> None:
    """Send a signal as kill(2) does: a negative ``pid`` is a process group, -1 is everything.

    Errors are ignored: the process is gone already, or belongs to a set-uid program (the next scan
    shows the process again), or the daemon's client named a number that is no signal.
    """
    assert pid != 0, "0 is the warden's own group"
    try:
        os.kill(pid, number)
    except (OSError, OverflowError):
        pass
