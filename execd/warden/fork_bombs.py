"""Fork bombs: trees that fork faster than the warden can read ``/proc`` and kill what was read.

Signaling the processes that a scan has found loses against a bomb in three ways. Natively a process
that calls ``setsid`` and ``fork`` without end has thousands of children before the next scan. In
gVisor a bomb of some hundred processes keeps the sentry so busy that each system call of the warden
waits for half a second, so the scan never completes. And a process that forks once and ends is gone
before its signal arrives.

Therefore the warden stops everything *before* the warden reads anything:

    freeze   SIGSTOP to every process of the namespace, in rounds, until the number of tasks stands
             still. In Linux the first round stops everything, and the second round confirms: the
             child of a fork that is under way is born stopped (``forks_under_way``). In gVisor a
             fork under way goes on, and the child has not been stopped, so only a later round
             reaches the child: five quiet rounds.
             The kernel's own limit of processes bounds a bomb that escapes every round
             (``process_caps``). /proc is not read between the rounds (300 bombers froze within 1 s
             in gVisor; with reads in between the freeze took 19 to 32 s).
    decide   A whole scan of processes that cannot change. The supervisor ends the guilty trees: a
             stopped process cannot fork, so a single SIGKILL for each process is enough.
    thaw     SIGCONT to everything else, children before parents: a shell that runs before a
             stopped child prints "Stopped" and loses the job. A process that was stopped before the
             freeze stays stopped. A tree that has just grown, and is within its limit, is
             continued a few processes at a time.

A starved warden cannot afford to read /proc even before a freeze: natively each session has an
equal share of the CPU (sched(7), autogroup), and beside 6,000 sessions that fork the warden waited
9 s for each turn. So the decision to freeze rests on a single figure, at the cost of a system call
(``task_meter``). The brake, a second thread, stops a bomb that grows while the warden is busy
elsewhere (``brake``). The supervisor arms the brake after each count with the figures of this
module. After a stop by the brake the next check freezes once more, decides and thaws.

The freeze and the thaw block the warden's loop, for some 0.05 s natively and up to 1 s in gVisor.
Nothing else may happen between the two: a signal sent in between would continue the receiver.

kill(-1) is only right where this process is the init of a PID namespace; anywhere else kill(-1)
stops the user's machine. A warden without a namespace stops the process groups of the leaders that
are not reaped.

``_brake.c`` sends the same rounds of SIGSTOP, but cannot replace the freeze of this module: the
brake knows no process groups, ends the rounds when the main thread calls, and reports no count.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from execd.proc import process_tree
from execd.warden.forks_under_way import await_forks
from execd.warden.job import send_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from execd.proc.kernel_traits import KernelTraits
    from execd.proc.process_tree import Process
    from execd.warden.job import Job, JobTable

# When a freeze in gVisor ends, and this many unexplained tasks still rise, a read of /proc would
# take minutes.
UNSTOPPABLE_TASKS = 256
# Honest programs have about this many tasks each. Tasks are taken for a bomb when they exceed the
# sum of: the tasks of the last scan, USUAL_TASKS for every job, and the lowest limit of a tree.
USUAL_TASKS = 8
# No limit of processes in a start is larger (``_spawner.c``).
MOST_LIMIT = (1 << 31) - 1
# A rise is this growth since the last count. In gVisor a rise already forbids reading /proc until
# the next count, since a read waits like any system call. In both kernels a rise delays the
# continuation of a grown tree.
RISING_TASKS = 8
# A tree that has grown by SLOW_GROWTH_TASKS since the last scan is continued piece by piece:
# FIRST_PIECE processes at first, and twice as many at each count that is no rise. A bomb then
# reaches the limit in small steps, and further trees get some CPU between the steps. An honest
# tree of a hundred processes runs again after 0.3 s.
SLOW_GROWTH_TASKS, FIRST_PIECE = 24, 4
# The next piece is continued after this time even if tasks rise: neighbours may start programs all
# the time.
HELD_SECONDS = 0.25
# Rounds of a native freeze without a namespace.
BARE_ROUNDS = 2
# If a scan takes longer than this while the number of tasks grows towards a limit, the bomb forks
# faster than the warden reads, and everything is stopped.
SCAN_PATIENCE_SECONDS = 0.1
# Natively a scan that takes longer is starved by the processes that the scan reads, whether they
# grow or not: bombs at the pod's limit of processes only spin.
STARVED_SECONDS = 0.5


class BrakeFigures(NamedTuple):
    """How far tasks may grow before the brake stops everything: see ``ForkBombs.brake_figures``."""

    base: int
    spare: int


class Unstoppable(Exception):
    """A bomb in gVisor has grown through a whole freeze. Only the end of the namespace ends the
    bomb: the warden dies of this error."""


class ForkBombs:
    """Decides when to freeze; freezes and thaws. The guilty trees are the supervisor's decision."""

    def __init__(self, jobs: JobTable, traits: KernelTraits, *, is_init: bool) -> None:
        """``jobs``: the warden's jobs by tag, kept up to date by the supervisor. ``is_init``: this
        process is the init of a PID namespace."""
        self._jobs = jobs
        self._is_init = is_init
        self._traits = traits
        self._nudges = traits.nudges if is_init else ()
        self._n_explained = self._last_count = 0
        self.held_back: list[int] = []
        """Pids that the thaw has not continued yet, children first."""
        self._piece = FIRST_PIECE
        self._continued_at = 0.0
        self._stopped_before: dict[tuple[int, int], int] = {}
        """(pid, start) -> context switches of each process that a scan outside of a freeze found
        stopped."""

    def is_suspected(self, n_tasks: int, scan_age_seconds: float = 0.0) -> bool:
        """Whether ``n_tasks`` look like a bomb, beyond the tasks that the last scan has explained.

        ``scan_age_seconds``: how long ago the scan under way began; 0: there is none. A bomb may
        outrun a slow scan.
        """
        limit = self._jobs.lowest_process_limit
        if limit == 0:
            return False
        unexplained = n_tasks - self._n_explained
        if self.is_burst(n_tasks):
            return self._traits.bombs_hold_calls or unexplained > limit + USUAL_TASKS
        if scan_age_seconds > STARVED_SECONDS and not self._traits.bombs_hold_calls:
            return n_tasks > limit
        if scan_age_seconds > SCAN_PATIENCE_SECONDS:
            return unexplained > limit // 2 and n_tasks > limit
        return unexplained > limit + USUAL_TASKS * len(self._jobs)

    def is_burst(self, n_tasks: int) -> bool:
        """Whether tasks have grown faster since the last count than honest programs fork."""
        return n_tasks - self._last_count > self._traits.burst_tasks

    def may_read(self, n_tasks: int) -> bool:
        """Whether the warden will get enough CPU to read /proc.

        Natively a burst keeps the warden from reading only if a freeze may follow, which needs a
        limit: otherwise foreign processes, which count without a namespace, could keep the warden
        from all scans for ever.
        """
        if self.held_back:
            return False
        if self.is_burst(n_tasks):
            return not (self._traits.bombs_hold_calls or self._jobs.lowest_process_limit)
        return not (self._traits.bombs_hold_calls and self._is_rise(n_tasks))

    def record_count(self, n_tasks: int) -> None:
        """Note the number of tasks, and continue the next piece of a tree that a thaw has held back
        (later if tasks rise, but within HELD_SECONDS)."""
        assert self._piece >= FIRST_PIECE
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

    def brake_room(self, n_tasks: int) -> int:
        """By how many tasks ``n_tasks`` may grow until the next count before the brake stops
        everything; 0: without end, since no job has a limit."""
        limit = self._jobs.lowest_process_limit
        if not limit:
            return 0
        if self._traits.brake_burst_tasks:
            return self._traits.brake_burst_tasks
        base, spare = self._brake_figures(n_tasks, len(self._jobs))
        return max(base + limit, 0) + spare

    def brake_figures(self, n_tasks: int) -> BrakeFigures:
        """``brake_room`` while no job has a limit, for a job that is about to begin: the sum of the
        job's limit and ``base``, or 0 if the sum is negative; plus ``spare``."""
        assert not self._jobs.lowest_process_limit
        if self._traits.brake_burst_tasks:  # the limit makes no difference
            return BrakeFigures(-MOST_LIMIT, self._traits.brake_burst_tasks)
        return self._brake_figures(n_tasks, len(self._jobs) + 1)

    def _brake_figures(self, n_tasks: int, n_jobs: int) -> BrakeFigures:
        base = self._n_explained + USUAL_TASKS * n_jobs - n_tasks
        return BrakeFigures(base, self._traits.burst_tasks)

    def brake_patience_seconds(self, n_tasks: int) -> float:
        """How late the warden's next count may come before the brake stops everything. 0: the next
        count may come at any time."""
        limit = self._jobs.lowest_process_limit
        if not 0 < limit < n_tasks:
            return 0.0
        return self._traits.late_seconds

    def record_scan(self, processes: Collection[Process], n_tasks: int) -> None:
        """Note a complete scan outside of a freeze, and the number of tasks in the scan."""
        held = set(self.held_back)
        self._stopped_before = {
            (process.pid, process.start): process_tree.read_turns(process.pid)
            for process in processes
            if process.state == "T" and process.pid not in held
        }
        self._n_explained = n_tasks

    def freeze(self, count_tasks: Callable[[], int]) -> bool:
        """Stop everything. Blocks until rounds find no new tasks, or a round after the time
        of a freeze finds some.

        Returns whether everything stands still. Without a namespace the answer is always False:
        only groups are stopped, and a process may have left the groups. Raises Unstoppable.
        """
        end = time.monotonic() + self._traits.freeze_seconds
        before, n_quiet, n_rounds = -1, 0, 0
        # Natively two rounds reach all groups, and foreign tasks may never stand still.
        is_bounded = not (self._is_init or self._traits.bombs_hold_calls)
        # Beside a bomb a round may take half a second in gVisor. A quiet round shows that the
        # rounds win, so the rounds go on beyond ``end``.
        while n_quiet < self._traits.quiet_rounds and (n_quiet or time.monotonic() < end):
            self._signal_everything(signal.SIGSTOP)
            if n_rounds and self._nudges:
                self._signal_everything(self._nudges[n_rounds % len(self._nudges)])
            time.sleep(self._traits.stop_pause_seconds)
            n_tasks = count_tasks()
            n_quiet = n_quiet + 1 if n_tasks <= before else 0
            n_rounds += 1
            self._last_count = before = n_tasks
            if is_bounded and n_rounds == BARE_ROUNDS:
                break
        if n_quiet == self._traits.quiet_rounds:
            return self._is_init
        is_unstoppable = before > self._n_explained + UNSTOPPABLE_TASKS
        if self._traits.bombs_hold_calls and self._is_init and is_unstoppable:
            raise Unstoppable(f"{before} processes, and rounds of SIGSTOP find more")
        return False

    def await_forks(self, processes: dict[int, Process]) -> bool:
        """Wait until no stopped process is in fork(2) any more, and add the children to
        ``processes``, the scan during the freeze. Returns whether everything stands still."""
        if not self._traits.stops_forks_under_way:
            return True
        groups = {job.pid for job in self._stopped_jobs()}
        return await_forks(
            processes,
            lambda process: process.pid != 1 if self._is_init else process.group in groups,
        )

    def thaw(
        self,
        processes: Mapping[int, Process],
        n_tasks: int,
        *,
        guilty: Collection[int],
        growing: Collection[int],
    ) -> None:
        """Continue the processes that the freeze has stopped.

        ``processes``, ``n_tasks``: the scan during the freeze. ``guilty``: pids that got SIGKILL,
        and are not continued. ``growing``: pids to continue slowly, in ``record_count``.
        """
        if self._is_init:
            self.held_back.clear()
            self._piece = FIRST_PIECE
            self._continued_at = time.monotonic()
            for pid in children_first(processes):
                process = processes[pid]
                if pid in guilty or process.is_dead or self._was_stopped(process):
                    continue
                if pid in growing:
                    self.held_back.append(pid)
                else:
                    send_signal(pid, signal.SIGCONT)
        else:
            self._signal_everything(signal.SIGCONT)
        self._n_explained = n_tasks

    def _was_stopped(self, process: Process) -> bool:
        """Whether the process was stopped before the freeze.

        The scan that found the process stopped may be seconds old. A process that has had a context
        switch since then was continued in between.
        """
        turns = self._stopped_before.get((process.pid, process.start))
        return turns is not None and turns == process_tree.read_turns(process.pid)

    def _signal_everything(self, number: int) -> None:
        if self._is_init:
            assert os.getpid() == 1, (
                "kill(-1) outside of the warden's own PID namespace stops the machine"
            )
            send_signal(-1, number)
            return
        for job in self._stopped_jobs():
            send_signal(-job.pid, number)

    def _stopped_jobs(self) -> Iterator[Job]:
        """Without a namespace: the jobs whose groups a freeze stops."""
        return (job for job in self._jobs.values() if job.reaped_at is None and not job.has_stopped)


def children_first(processes: Mapping[int, Process]) -> list[int]:
    """The pids of a scan, each child before its parent. The init is left out: the init's parent
    is not in the scan."""
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
