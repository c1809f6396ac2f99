"""Fork bombs: trees that fork faster than the warden can read ``/proc`` and kill what it has read.

Signaling the processes that a scan has found loses against a bomb in three ways. Natively a process
that calls ``setsid`` and ``fork`` without end has thousands of children before the next scan. In
gVisor a bomb of some hundred processes keeps the sentry so busy that each system call of the warden
waits for half a second, so the scan never completes. And a process that forks once and ends is gone
before its signal arrives.

Therefore the warden stops everything *before* it reads anything:

    freeze   SIGSTOP to every process of the namespace, in rounds, until the number of tasks stands
             still. To Linux kill(-1) and fork(2) exclude each other, and the second round is for
             good measure. In gVisor a fork under way goes on, and its child has not been stopped,
             so only a later round reaches the child: five quiet rounds. What no round reaches, the
             kernel's own limit bounds (``process_caps``). /proc is not read between the rounds (300
             bombers froze within 1 s in gVisor; with reads in between it took 19 to 32 s).
    judge    One whole scan of processes that cannot change. The caller ends the guilty trees: a
             stopped process cannot fork, so one KILL each is enough.
    thaw     SIGCONT to everything else, children before parents: a shell that runs before its
             stopped child prints "Stopped" and loses the job. A process that was stopped before the
             freeze stays stopped. A tree that has just grown, and is not over its limit, is
             continued a few processes at a time.

Reading is what a starved warden cannot afford even before a freeze: natively each session has its
own share of the CPU (sched(7), autogroup), and beside 6,000 sessions that fork the warden waited 9
s for each turn. So the decision to freeze rests on one figure, which costs one system call
(``task_meter``). And a bomb that grows while the warden is busy with something else is stopped by
another thread (``brake``), which this module arms at each look: the next look then freezes once
more, judges and thaws.

The freeze and the thaw block the warden's loop, for some 0.05 s natively and up to 1 s in gVisor.
Nothing else may happen between them: a signal sent meanwhile would thaw its receiver.

kill(-1) is only right where this process is the init of a PID namespace; anywhere else kill(-1)
stops the user's machine. A warden without a namespace stops the process groups of the leaders it
has not reaped.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from execd.proc import process_tree
from execd.warden.job import lowest_process_limit, send_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from execd.proc.process_tree import Process
    from execd.warden.job import Job

QUIET_ROUNDS, STOP_PAUSE_SECONDS = 1, 0.005
QUIET_ROUNDS_IN_GVISOR, STOP_PAUSE_SECONDS_IN_GVISOR = 5, 0.02
FREEZE_SECONDS, FREEZE_SECONDS_IN_GVISOR = 1.0, 3.0
# In gVisor a process that waits in vfork(2) takes no signal, goes on once its child has called
# exec, and has no use for a second SIGSTOP while the first is pending. Another stop signal makes
# such a process look, and the process then takes SIGSTOP, the lowest number, first. SIGCONT
# discards them all, so no handler sees one. Sent beside SIGSTOP and not in its place: a process
# that was just forked has no SIGSTOP yet, and may ignore the others.
NUDGES_IN_GVISOR = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
# Beside so many more tasks that still rise when a freeze is over, a read of /proc takes minutes in
# gVisor.
UNSTOPPABLE_TASKS = 256
# Honest programs have about so many tasks each. More than that for every job, and the limit of one
# tree on top of what the last scan found, are taken for a bomb.
USUAL_TASKS = 8
# So many more tasks than at the last look, 20 ms ago as a rule (50 ms in gVisor), are a burst. In
# gVisor each burst is frozen: while N processes fork, each system call of the warden and of the
# daemon waits for the forks of all N, and meanwhile N doubles. Honest programs fork at most 200
# times a second there.
BURST_TASKS, BURST_TASKS_IN_GVISOR = 64, 24
# So many more between two looks of a warden that looks late call for the brake. Not fewer: each
# freeze of a bomb that is not over its limit yet ends with a thaw, and in gVisor each thaw is a
# risk.
BRAKE_BURST_TASKS_IN_GVISOR = 2 * BURST_TASKS_IN_GVISOR
# So many more tasks are a rise. In gVisor a rise already forbids to read /proc until the next look,
# since a read there waits like any system call; and a grown tree is not continued further.
RISING_TASKS = 8
# A tree that has grown by so many tasks since the last scan is continued piece by piece: so many
# processes at first, and twice as many at each look that is no rise. A bomb then reaches its limit
# in small steps, beside which everybody else gets some CPU; an honest tree of a hundred processes
# runs again after 0.3 s.
SLOW_GROWTH_TASKS, FIRST_PIECE = 24, 4
# The next piece waits no longer for the tasks to stand still: neighbours may start programs all the
# time.
HELD_SECONDS = 0.25
# A scan for a limit that is not complete by then is being outrun.
SCAN_PATIENCE_SECONDS = 0.1
# Natively a scan that takes so long is starved by what it reads, growing or not: bombs at a limit
# of the pod's processes only spin.
STARVED_SECONDS = 0.5
# The brake stops everything when the warden's next look comes so late, 0.02 s being usual (0.05 s
# in gVisor), and there are enough tasks for a tree to be over its limit. In gVisor such a tree no
# longer grows when it has reached its kernel's limit of processes, and 450 processes that try to
# fork held the warden up for a minute.
LATE_SECONDS, LATE_SECONDS_IN_GVISOR = 0.25, 0.5


class Unstoppable(Exception):
    """A bomb in gVisor grows through a whole freeze. Only the end of the namespace ends the
    bomb."""


class ForkBombs:
    """Decides when to freeze, freezes, and thaws. ``jobs`` are the warden's, by tag."""

    def __init__(self, jobs: Mapping[int, Job], *, is_init: bool, in_gvisor: bool) -> None:
        self._jobs = jobs
        self._is_init = is_init
        self._in_gvisor = in_gvisor
        self._quiet_rounds = QUIET_ROUNDS_IN_GVISOR if in_gvisor else QUIET_ROUNDS
        self._pause_seconds = STOP_PAUSE_SECONDS_IN_GVISOR if in_gvisor else STOP_PAUSE_SECONDS
        self._nudges = NUDGES_IN_GVISOR if in_gvisor and is_init else ()
        self._n_explained = self._last_count = 0
        self.held_back: list[int] = []
        """Pids that a thaw has not continued yet, children first."""
        self._piece = FIRST_PIECE
        self._continued_at = 0.0
        self._stopped_before: dict[tuple[int, int], int] = {}
        """By pid and start, the turns that each process had had when a scan of running processes
        found it stopped."""

    def is_suspected(self, n_tasks: int, scan_age_seconds: float = 0.0) -> bool:
        """Whether so many tasks look like a bomb, and not like a crowd that a scan has explained.

        ``scan_age_seconds``: how long ago a scan began that is not complete. A slow one is being
        outrun.
        """
        limit = lowest_process_limit(self._jobs.values())
        if limit == 0:
            return False
        unexplained = n_tasks - self._n_explained
        if self.is_burst(n_tasks):
            return self._in_gvisor or unexplained > limit + USUAL_TASKS
        if scan_age_seconds > STARVED_SECONDS and not self._in_gvisor:
            return n_tasks > limit
        if scan_age_seconds > SCAN_PATIENCE_SECONDS:
            return unexplained > limit // 2 and n_tasks > limit
        return unexplained > limit + USUAL_TASKS * len(self._jobs)

    def is_burst(self, n_tasks: int) -> bool:
        """Whether so many more tasks than at the last look are more than honest programs start."""
        return n_tasks - self._last_count > (
            BURST_TASKS_IN_GVISOR if self._in_gvisor else BURST_TASKS
        )

    def may_read(self, n_tasks: int) -> bool:
        """Whether a reader of /proc will get the CPU to read with."""
        if self.held_back or self.is_burst(n_tasks):
            return False
        return not (self._in_gvisor and self._is_rise(n_tasks))

    def record_count(self, n_tasks: int) -> None:
        """Take note of a look at the number of tasks, and continue some of what is still stopped
        unless tasks rise."""
        now = time.monotonic()
        if self.held_back and (
            not self._is_rise(n_tasks) or now - self._continued_at > HELD_SECONDS
        ):
            self._continued_at = now
            for pid in self.held_back[: self._piece]:
                send_signal(pid, signal.SIGCONT)
            del self.held_back[: self._piece]
            self._piece *= 2
        self._last_count = n_tasks

    def _is_rise(self, n_tasks: int) -> bool:
        return n_tasks - self._last_count > RISING_TASKS

    def brake_room(self, n_tasks: int, more_jobs: Sequence[int] = ()) -> int:
        """So many more tasks than these, between two looks, call for the brake. 0: no limit calls
        for one.

        ``more_jobs``: the limits of processes of jobs that are about to begin.
        """
        limits = [
            limit for limit in (lowest_process_limit(self._jobs.values()), *more_jobs) if limit
        ]
        if not limits:
            return 0
        if self._in_gvisor:
            return BRAKE_BURST_TASKS_IN_GVISOR
        usual = USUAL_TASKS * (len(self._jobs) + len(more_jobs))
        return max(self._n_explained + min(limits) + usual - n_tasks, 0) + BURST_TASKS

    def brake_patience_seconds(self, n_tasks: int) -> float:
        """How late the warden's next look may come before the brake stops everything. 0: at any
        time."""
        limit = lowest_process_limit(self._jobs.values())
        if not 0 < limit < n_tasks:
            return 0.0
        return LATE_SECONDS_IN_GVISOR if self._in_gvisor else LATE_SECONDS

    def record_scan(self, processes: Collection[Process], n_tasks: int) -> None:
        """Take note of a complete scan of running processes, and their tasks."""
        held = set(self.held_back)
        self._stopped_before = {
            (process.pid, process.start): process_tree.read_turns(process.pid)
            for process in processes
            if process.state == "T" and process.pid not in held
        }
        self._n_explained = n_tasks

    def freeze(self, count_tasks: Callable[[], int]) -> bool:
        """Stop everything that can be stopped. Blocks until rounds find no new tasks, for
        FREEZE_SECONDS at the most.

        Returns whether everything stands still; without a namespace never, since only groups are
        stopped there. Raises Unstoppable.
        """
        end = time.monotonic() + (FREEZE_SECONDS_IN_GVISOR if self._in_gvisor else FREEZE_SECONDS)
        before, n_quiet, n_rounds = -1, 0, 0
        while n_quiet < self._quiet_rounds and time.monotonic() < end:
            self._signal_everything(signal.SIGSTOP)
            if n_rounds and self._nudges:
                self._signal_everything(self._nudges[n_rounds % len(self._nudges)])
            time.sleep(self._pause_seconds)
            n_tasks = count_tasks()
            n_quiet = n_quiet + 1 if n_tasks <= before else 0
            n_rounds += 1
            self._last_count = before = n_tasks
        if n_quiet == self._quiet_rounds:
            return self._is_init
        if self._in_gvisor and self._is_init and before > self._n_explained + UNSTOPPABLE_TASKS:
            raise Unstoppable(f"{before} processes, and rounds of SIGSTOP find more")
        return False

    def thaw(
        self,
        processes: Mapping[int, Process],
        n_tasks: int,
        *,
        guilty: Collection[int],
        growing: Collection[int],
    ) -> None:
        """Continue what the freeze has stopped, but for ``guilty``, the pids that got KILL; slowly
        the pids ``growing``."""
        if self._is_init:
            self.held_back.clear()
            self._piece = FIRST_PIECE
            self._continued_at = time.monotonic()
            for pid in children_first(processes):
                process = processes[pid]
                if pid in guilty or process.dead or self._was_stopped(process):
                    continue
                if pid in growing:
                    self.held_back.append(pid)
                else:
                    send_signal(pid, signal.SIGCONT)
        else:
            self._signal_everything(signal.SIGCONT)
        self._n_explained = n_tasks

    def _was_stopped(self, process: Process) -> bool:
        """Before the freeze. The scan may be seconds old: a process that has had a turn since then
        was continued in between."""
        turns = self._stopped_before.get((process.pid, process.start))
        return turns is not None and turns == process_tree.read_turns(process.pid)

    def _signal_everything(self, number: int) -> None:
        if self._is_init:
            assert os.getpid() == 1, (
                "kill(-1) outside of a PID namespace of our own stops the machine"
            )
            send_signal(-1, number)
            return
        for job in self._jobs.values():
            if job.reaped_at is None and not job.has_stopped:
                send_signal(-job.pid, number)


def children_first(processes: Mapping[int, Process]) -> list[int]:
    """The pids of a scan, each child before its parent; the init, whose parent is not in the scan,
    is left out."""
    depths: dict[int, int] = {}
    for pid in processes:
        path: list[int] = []
        while pid in processes and pid not in depths and len(path) <= len(processes):
            path.append(pid)
            pid = processes[pid].parent
        depth = depths.get(pid, -1)
        for ancestor in reversed(path):
            depth += 1
            depths[ancestor] = depth
    return sorted(
        (pid for pid in processes if processes[pid].parent in processes),
        key=lambda pid: -depths[pid],
    )
