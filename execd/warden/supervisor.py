"""What the warden does with what it sees: scans of /proc, and the limits, signals and kills that
they lead to.

One scan for all jobs, in slices; what it has found is acted on at its end (``_act_on_scan``).
Between scans there are cheaper looks: at the number of tasks (``task_meter``), at the pod's memory.
A tree that forks faster than scans and kills follow is stopped first, with everything else
(``freeze_and_thaw``).
Two rules make acting on a scan safe:
  * Of a job that began after the scan did, the scan knows nothing: its kill is advanced by the next
    one.
  * A leader's group may be signaled by number while the leader is not reaped; afterwards only pids
    that a scan has just shown to be members, since a number is reused once its owner is reaped.
"""

from __future__ import annotations

import math
import os
import signal
import time
from typing import TYPE_CHECKING

from execd.proc import process_caps, process_tree
from execd.proc.memory import MemoryMonitor
from execd.proc.messages import Killed, LimitReached
from execd.warden.fork_bombs import SLOW_GROWTH_TASKS, ForkBombs
from execd.warden.job import lowest_process_limit, send_signal
from execd.warden.scan_schedule import Schedule
from execd.warden.tree_kill import Phase, Send, TreeKill

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.proc.channel import Channel
    from execd.proc.memory import Account
    from execd.proc.messages import Spawn
    from execd.proc.task_meter import TaskMeter
    from execd.warden.brake import Brake
    from execd.warden.job import Job

SLICE_SECONDS = 0.02
# A limit of processes outside of this namespace refuses forks too, and no freeze makes room below
# such a limit.
ROOM_PAUSE_SECONDS = 1.0


class Supervisor:
    """The warden's, in its loop: ``work`` at each turn, and not later than ``due``."""

    def __init__(
        self,
        channel: Channel,
        meter: TaskMeter,
        brake: Brake | None,
        *,
        is_init: bool,
        has_pending_adoptions: Callable[[], bool],
    ) -> None:
        """``is_init``: this process is the init of a PID namespace that holds nothing but user
        code. Elsewhere no ``brake``. ``has_pending_adoptions``: whether workers may be there
        that have not greeted yet."""
        self.jobs: dict[int, Job] = {}
        """By tag: those that live, or whose trees do."""
        self.memory = MemoryMonitor()
        self._channel = channel
        self._attended_jobs: dict[int, Job] = {}  # those with a kill or signals under way
        self._unattributed: dict[tuple[int, int], int] = {}
        self._scan: process_tree.Scan | None = None
        self._schedule = Schedule()
        self._meter = meter
        self._is_reading_unsafe = False
        self._is_init = is_init
        self._has_pending_adoptions = has_pending_adoptions
        self._bombs = ForkBombs(self.jobs, is_init=is_init, in_gvisor=self._meter.is_exact)
        self._brake = brake
        self._is_armed = False
        self._next_freeze_for_room = 0.0

    def add_job(self, job: Job) -> None:
        self._schedule.record_job(job.spawned_at, is_only=not self.jobs)
        self.jobs[job.tag] = job
        if self._meter.is_exact:
            job.n_others = self._meter.at_most()
        if not job.rests:
            self.memory.begin(job.account)

    def mark_active(self, job: Job) -> None:
        """It begins to run user code."""
        job.rests = False
        self.memory.begin(job.account)

    def forget_unattributed(self) -> None:
        """Who was nobody's may be somebody's now."""
        self._unattributed.clear()

    def signal_members(self, job: Job, number: int, scope: str) -> None:
        """As soon as a scan has shown who they are."""
        self._attended_jobs[job.tag] = job
        job.signals.setdefault((number, scope), time.monotonic())

    def kill(self, job: Job, grace_seconds: float) -> None:
        """End its tree, or hasten that."""
        now = time.monotonic()
        if job.kill is not None:
            job.kill.shorten_grace(now, grace_seconds)
            self._attended_jobs[job.tag] = job
            return
        self._attended_jobs[job.tag] = job
        job.kill = TreeKill(now, grace_seconds, job.pid if job.reaped_at is None else None)
        _signal_known(job)
        self._schedule.record_kill(now)

    @property
    def is_reading_unsafe(self) -> bool:
        """At the last look tasks rose, or a bomb was about."""
        return self._is_reading_unsafe

    def may_read(self) -> bool:
        """Whether ``/proc`` may be read, by a fresh count: beside a bomb each read may take as long
        as the bomb needs to double."""
        return not self._is_reading_unsafe and self._bombs.may_read(self._meter.at_most())

    @property
    def next_due(self) -> float:
        """When there is something to do again, on the monotonic clock; 0: now."""
        if self._is_reading_unsafe:
            return self._schedule.next_count
        if self._scan is not None:
            return 0.0
        due = min(
            self._schedule.next_due(
                kills=bool(self._attended_jobs), counts=lowest_process_limit(self.jobs.values()) > 0
            ),
            self.memory.next_look,
        )
        for job in self._attended_jobs.values():
            if job.kill is not None and job.kill.phase is Phase.TERMINATING:
                due = min(due, job.kill.kill_at)
        return due

    def work(self, now: float) -> None:
        """A slice of what there is to do."""
        for job in self._attended_jobs.values():
            if job.kill is not None and job.kill.advance_clock(now):
                _signal_known(job)
        if self._is_reading_unsafe:
            return
        if self._scan is None and (
            now >= self._schedule.next_scan_due(kills=bool(self._attended_jobs))
            or (now >= self.memory.next_look and self.memory.look(self._accounts(if_awake=True)))
        ):
            self._begin_scan()
        if self._scan is not None and self._scan.advance(SLICE_SECONDS):
            scan, self._scan = self._scan, None
            if self.handle_brake_stop():
                return  # the scan has read that everybody is stopped
            self._act_on_scan(scan)
            self._bombs.record_scan(scan.processes.values(), scan.n_tasks)
            if not self.jobs:
                self._arm(0)  # the next look may be far away

    def end_bomb(self) -> None:
        """The kernel has refused a fork: make room by ending a bomb, if there is one."""
        now = time.monotonic()
        if not self.jobs or now < self._next_freeze_for_room:
            return
        self.freeze_and_thaw()
        self._next_freeze_for_room = now + ROOM_PAUSE_SECONDS

    def _begin_scan(self) -> None:
        self._meter.mark()
        self._scan = process_tree.Scan(heirs=bool(self._attended_jobs))

    def check_for_bombs(self) -> None:
        """The cheap look, first in each turn: is a bomb about, and are there enough tasks for a
        tree to be over its limit?

        While there may be a bomb, nothing reads ``/proc``: a freeze comes first, as soon as one is
        allowed.
        """
        now = time.monotonic()
        self.handle_brake_stop()
        if not self.jobs:
            self._arm(0)
            return
        if now < self._schedule.next_count and self._scan is None:
            return
        n_tasks = self._meter.at_most()
        scan_age_seconds = 0.0 if self._scan is None else now - self._scan.began
        is_suspected = self._bombs.is_suspected(n_tasks, scan_age_seconds) or self._is_kill_outrun()
        self._is_reading_unsafe = is_suspected or not self._bombs.may_read(n_tasks)
        self._bombs.record_count(n_tasks)
        self._arm(self._bombs.brake_room(n_tasks), self._bombs.brake_patience_seconds(n_tasks))
        if is_suspected:
            self.freeze_and_thaw()
        elif not self._is_reading_unsafe and self._scan is None:
            limit = lowest_process_limit(self.jobs.values())
            if 0 < limit < n_tasks and self._schedule.is_worth_a_scan(n_tasks, limit, now):
                self._begin_scan()
        self._schedule.record_count(time.monotonic(), in_gvisor=self._meter.is_exact)

    def arm_for_spawn(self, request: Spawn) -> None:
        """A program is about to start: a bomb may grow before the first look at it."""
        if not self._is_armed:
            n_tasks = self._meter.at_most()
            self._arm(
                self._bombs.brake_room(n_tasks, [request.processes]),
                self._bombs.brake_patience_seconds(n_tasks),
            )

    def _arm(self, room: int, patience_seconds: float = 0.0) -> None:
        """Have the brake stop everything at so many more tasks than now, or when the next look is
        late. ``room`` 0: never."""
        if self._brake is None:
            return
        if room:
            position = self._meter.position()
            self._brake.arm(position, position + room, patience_seconds)
        elif self._is_armed:
            self._brake.release()
        self._is_armed = room > 0

    def handle_brake_stop(self) -> bool:
        """Judge and thaw if the brake has stopped everything. Whether that was so."""
        if self._brake is None or not self._brake.take_stop():
            return False
        self.freeze_and_thaw()
        return True

    def _is_kill_outrun(self) -> bool:
        return any(
            job.kill is not None and job.kill.is_outrun for job in self._attended_jobs.values()
        )

    def freeze_and_thaw(self) -> None:
        """Stop everything, look, end the guilty trees, and let the rest go on."""
        self._arm(0)
        is_still = self._bombs.freeze(self._meter.at_most)
        if self._brake is not None:
            # everything is stopped anyhow; a brake that fires from now on is for the next look
            self._brake.take_stop()
        self._begin_scan()
        scan, self._scan = self._scan, None
        assert scan is not None
        scan.advance(math.inf)
        self._act_on_scan(scan, is_frozen=True, is_still=is_still)
        guilty: set[int] = set()
        growing: set[int] = set()
        for job in self.jobs.values():
            if job.kill is not None and job.kill.phase is not Phase.TERMINATING:
                guilty.update(job.members)
            elif job.grown_tasks > SLOW_GROWTH_TASKS or not job.members.keys().isdisjoint(
                self._bombs.held_back
            ):
                growing.update(job.members)
        if self._is_init:
            guilty |= self._end_unattributed(scan)
        self._bombs.thaw(scan.processes, scan.n_tasks, guilty=guilty, growing=growing)
        self._is_reading_unsafe = False
        # What was continued may be a bomb below its limit still, and grows before the next look.
        n_tasks = self._meter.at_most()
        self._arm(self._bombs.brake_room(n_tasks), self._bombs.brake_patience_seconds(n_tasks))

    def _end_unattributed(self, scan: process_tree.Scan) -> set[int]:
        """KILL to the processes of no job, where these alone are more than a tree may have. Returns
        their pids.

        A bomb that sheds all evidence is nobody's, and would starve everybody.
        """
        owned = {pid for job in self.jobs.values() for pid in job.members}
        unattributed = scan.processes.keys() - owned - {os.getpid()}
        if len(unattributed) <= lowest_process_limit(self.jobs.values()):
            return set()
        for pid in unattributed:
            send_signal(pid, signal.SIGKILL)
        return unattributed

    def _act_on_scan(
        self,
        scan: process_tree.Scan,
        *,
        is_frozen: bool = False,
        is_still: bool = False,
    ) -> None:
        """Act on a complete scan. ``is_frozen``: a thaw follows. ``is_still``: no process could
        change meanwhile."""
        before = {job.tag: job.members for job in self.jobs.values()}
        unattributed_before = self._unattributed.copy()
        # A worker that has not greeted yet is an orphan that nobody claims: given to the only other
        # tree it would die with that.
        evidence = (
            process_tree.EVIDENCE_OF_ITS_OWN
            if self._has_pending_adoptions()
            else process_tree.EVIDENCE
        )
        process_tree.attribute(
            scan.processes, self.jobs.values(), os.getpid(), self._unattributed, evidence
        )
        # An orphan that is nobody's may have ended while its environment was read.
        is_clear = (
            not scan.has_lost_some and self._unattributed.keys() <= unattributed_before.keys()
        )
        for job in list(self.jobs.values()):
            members = [scan.processes[pid] for pid in job.members]
            job.record_scan(members, before[job.tag])
            if not is_frozen:  # the thaw would undo a stop
                job.has_stopped = any(process.state == "T" for process in members)
                _send_waiting_signals(job, scan, members)
            if job.kill is None and job.has_too_many_tasks:
                self._channel.send(LimitReached(job.tag, "processes", job.n_tasks))
                self.kill(job, 0.0)
            self._enforce_cpu_limit(job, members)
            if job.kill is not None and job.spawned_at < scan.began:
                alive = [process for process in members if not process.dead]
                send = job.kill.record_scan(scan.began, alive, is_clear=is_clear, is_still=is_still)
                self._advance_kill(job, job.kill, send, alive)
            if (job.kill is None or not job.kill.is_eager(scan.began)) and not job.signals:
                self._attended_jobs.pop(job.tag, None)
            if (
                job.kill is None
                and not members
                and job.reaped_at is not None
                and job.reaped_at < scan.began
            ):
                del self.jobs[job.tag]
        if self._meter.is_exact:
            process_caps.follow(self.jobs.values(), scan.n_tasks)
        self._enforce_memory_limits(scan)
        self._meter.reset(scan.n_tasks)
        now = time.monotonic()
        youngest_seconds = now - max((job.spawned_at for job in self.jobs.values()), default=0.0)
        self._schedule.record_scan(now, scan.busy_seconds, scan.n_tasks, youngest_seconds)

    def _enforce_cpu_limit(self, job: Job, members: list[process_tree.Process]) -> None:
        over = job.find_over_cpu_limit(members)
        if not over or job.kill is not None:
            return
        self._channel.send(LimitReached(job.tag, "cpu", int(max(over.values()))))
        if not job.is_adopted:
            self.kill(job, 0.0)
            return
        for pid in over.keys() - {job.pid}:
            send_signal(pid, signal.SIGKILL)

    def _enforce_memory_limits(self, scan: process_tree.Scan) -> None:
        end, short = self.memory.judge(self._accounts(), scan.busy_seconds)
        for account in end:
            self._channel.send(LimitReached(account.tag, "memory", account.tree_bytes))
            self.kill(self.jobs[account.tag], 0.0)
        if short is not None:
            self._channel.send(short)

    def _accounts(self, *, if_awake: bool = False) -> list[Account]:
        return [job.account for job in self.jobs.values() if not (if_awake and job.rests)]

    def _advance_kill(
        self, job: Job, kill: TreeKill, send: Send | None, alive: list[process_tree.Process]
    ) -> None:
        if send is not None:
            if kill.phase is Phase.KILLING:
                # Whole groups first: to Linux that is one step, in which no member forks. Signaled
                # by pid, a bomb forks on. A group that the scan found a member in is the job's,
                # since nobody joins a group of another session.
                for group in {process.group for process in alive} - {0, 1, os.getpgrp()}:
                    send_signal(-group, signal.SIGKILL)
            for pid in send.pids:
                for number in send.numbers:
                    send_signal(pid, number)
        elif job.reaped_at is not None:
            # If not: dead but not yet reaped, and the next turn of the loop does; Killed comes
            # after Exited.
            job.kill = None
        if not kill.is_reported and (job.kill is None or kill.survivors):
            kill.is_reported = True
            self._channel.send(Killed(job.tag, len(kill.killed), list(kill.survivors)))


def _signal_known(job: Job) -> None:
    """Signal without a scan whom we may: the group by its number while the leader is ours."""
    assert job.kill is not None
    if job.reaped_at is None:
        for number in job.kill.signals:
            send_signal(-job.pid, number)
        if job.kill.phase is Phase.KILLING:
            job.kill.killed.add(job.pid)


def _send_waiting_signals(
    job: Job, scan: process_tree.Scan, members: list[process_tree.Process]
) -> None:
    for (number, scope), since in list(job.signals.items()):
        if since < scan.began:
            del job.signals[number, scope]
            for process in members:
                if not process.dead and (scope == "tree" or process.session == job.session):
                    send_signal(process.pid, number)
