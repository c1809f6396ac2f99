"""One tree in the warden's book: who is in it, what is being done to it, what it has used.

What it has used counts from the leader's start, or from when the daemon last asked for a new count:
a leader that lives on does one thing after another.
"""

from __future__ import annotations

import math
import os
import resource
import time
from typing import TYPE_CHECKING

from execd.proc.messages import Exited, Measured, Spawn
from execd.warden.tree_kill import Phase

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from execd.proc.memory import Account
    from execd.proc.messages import Adopt
    from execd.proc.process_tree import Process
    from execd.warden.tree_kill import TreeKill

CPU_GRACE_SECONDS = 1.0


class Job:
    """One tree. Implements ``tree.Job``. Forgotten when its leader is reaped and a scan finds no
    member."""

    def __init__(
        self,
        request: Spawn | Adopt,
        pid: int,
        start: int,
        pipes: frozenset[str],
        account: Account,
        *,
        spawned_at: float,
        session: int,
    ) -> None:
        self.tag = request.tag
        self.pid = pid
        self.start = start
        self.session = session
        """Of the leader, and of all that have not left it."""
        self.marker = os.fsencode(request.marker)
        self.pipes = pipes
        self.members: dict[int, int] = {pid: start}
        self.max_processes = request.processes
        self.n_others = 0
        """Tasks of others when its limit of processes was last set (``process_caps``)."""
        self.is_adopted = not isinstance(request, Spawn)
        self.max_cpu_seconds = max_cpu_seconds(request)
        """Of each process; of the leader in the present count."""
        self.rests = request.rests
        self.spawned_at = spawned_at
        self.reaped_at: float | None = None
        self._ended_at = 0.0
        """When it ended, as the daemon is told: see messages.Exited."""
        self.kill: TreeKill | None = None
        self.account = account
        # Of the present count: what the leader had used when it began, and what scans have found
        # since.
        self._cpu_before = self._user_before = self._system_before = 0.0
        self._max_rss_bytes = 0
        self._processes = 1
        self.n_tasks = 1
        """Processes and threads at the last scan."""
        self.grown_tasks = 0
        """How many more these are than at the scan before."""
        self.has_stopped = False
        """Some process of it was stopped (SIGSTOP and the like) at the last scan."""
        self.signals: dict[tuple[int, str], float] = {}
        """(number, scope) -> since when it waits for a scan. Asked for twice meanwhile it is sent
        once, as any pending signal."""

    def has_ended_before(self, at: float) -> bool:
        """Whether its leader ended before ``at`` (monotonic clock), and nothing is ending its
        tree."""
        return self.kill is None and self.reaped_at is not None and self._ended_at < at

    @property
    def has_too_many_tasks(self) -> bool:
        return 0 < self.max_processes < self.n_tasks

    def record_scan(self, members: Collection[Process], before: dict[int, int]) -> None:
        """Bring the figures up to date. ``before``: the members of the scan before."""
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
        self.account.scanned(
            sum(process.rss_bytes for process in members),
            ending=self.kill is not None and self.kill.phase is not Phase.TERMINATING,
        )

    def find_over_cpu_limit(self, members: Collection[Process]) -> dict[int, float]:
        """Seconds of CPU time of each process, by pid, that lives and has used more than it may."""
        used = {process.pid: process.cpu_seconds for process in members if not process.dead}
        if self.pid in used:
            used[self.pid] -= self._cpu_before
        return {pid: seconds for pid, seconds in used.items() if seconds > self.max_cpu_seconds}

    def measure(self, leader: Process | None) -> Measured:
        """``leader``: as it is now; None: it has ended, and ``Exited`` says more."""
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

    def restart_counts(self, leader: Process) -> None:
        self._cpu_before = leader.cpu_seconds
        self._user_before, self._system_before = leader.user_seconds, leader.system_seconds
        self._max_rss_bytes = self.account.peak_tree_bytes = 0
        self._processes = len(self.members)

    def record_exit(self, at: float, wait_status: int, usage: resource.struct_rusage) -> Exited:
        """The leader has just been reaped; it ended at ``at``, or a moment later."""
        self.reaped_at, self._ended_at = time.monotonic(), at
        return Exited(
            self.tag,
            self.pid,
            self.spawned_at,
            at,
            wait_status,
            # Not below zero: the kernel rounds what it says of a living process.
            max(0.0, usage.ru_utime - self._user_before),
            max(0.0, usage.ru_stime - self._system_before),
            usage.ru_maxrss * 1024,
            self.account.peak_tree_bytes,
            self._processes,
        )


def max_cpu_seconds(request: Spawn | Adopt) -> float:
    """Of a program: a second after the kernel should have ended a process. gVisor knows RLIMIT_CPU
    only of a process that it was set for, and not of those it forks: most of what a shell runs.
    Nobody else looks at one that was adopted."""
    if not isinstance(request, Spawn):
        return request.cpu_seconds or math.inf
    return (
        next((hard for which, _, hard in request.limits if which == resource.RLIMIT_CPU), math.inf)
        + CPU_GRACE_SECONDS
    )


def lowest_process_limit(jobs: Iterable[Job]) -> int:
    """Of the jobs that run user code. 0: none of them has a limit."""
    return min(
        (job.max_processes for job in jobs if job.max_processes and not job.rests), default=0
    )


def send_signal(pid: int, number: int) -> None:
    """``pid``: below zero the number of a group, as in kill(2)."""
    try:
        os.kill(pid, number)
    except (OSError, OverflowError):
        # gone already, or a set-uid program's: the scan that follows tells; or the daemon's caller
        # named no signal
        pass
