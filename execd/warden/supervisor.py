"""The supervisor: acts on scans of /proc with limits, signals and kills.

All jobs share each scan, and the warden's loop reads the scan in slices of SLICE_SECONDS. The
supervisor acts when the scan is complete (``_act_on_scan``). Between scans come cheaper checks: of
the number of tasks (``task_meter``) and of the pod's memory. When a tree forks faster than scans
and kills follow, the supervisor first stops everything (``freeze_and_thaw``, ``fork_bombs``).

Rules that keep the races with user code right:
  * A scan knows nothing of a job that began after the scan. So the scan does not advance the kill
    of the job; the next scan does.
  * A pid or group number may be reused once the leader is reaped (``tree_signals``).
  * While tasks rise, nothing reads /proc (``is_reading_unsafe``): the freeze comes first.
  * A scan under way when the brake stops everything has read that everything is stopped. The
    supervisor drops the scan. Otherwise the next thaw would take the stops for user code's own.
"""

from __future__ import annotations

import math
import os
import signal
import time
from typing import TYPE_CHECKING

from execd.proc import process_caps, process_tree
from execd.proc.memory import MemoryMonitor
from execd.proc.messages import LimitReached
from execd.warden import tree_signals
from execd.warden.fork_bombs import SLOW_GROWTH_TASKS, ForkBombs
from execd.warden.job import JobTable, send_signal
from execd.warden.scan_schedule import Schedule
from execd.warden.sentry_memory import SentryMemory
from execd.warden.tree_kill import Phase, TreeKill
from execd.warden.tree_totals import TreeTotals

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from execd.proc.channel import Channel
    from execd.proc.kernel_traits import KernelTraits
    from execd.proc.memory import Account
    from execd.proc.messages import CellKilled, Killed
    from execd.proc.task_meter import TaskMeter
    from execd.warden.brake import Brake
    from execd.warden.fork_bombs import BrakeFigures
    from execd.warden.job import Job
    from execd.warden.spawner import Outcome

SLICE_SECONDS = 0.02
# Pause between two freezes because of refused forks. A limit of processes outside of this namespace
# refuses forks too, and no freeze makes room below the limit.
ROOM_PAUSE_SECONDS = 1.0


class Supervisor:
    """Scans, limits and kills of all jobs.

    The warden's loop calls ``check_for_bombs`` first in each turn and ``work`` last, and wakes up
    at ``next_due`` at the latest.
    """

    def __init__(
        self,
        channel: Channel,
        meter: TaskMeter,
        traits: KernelTraits,
        brake: Brake,
        *,
        is_init: bool,
        has_pending_adoptions: Callable[[], bool],
    ) -> None:
        """``is_init``: this process is the init of a PID namespace of user code only.

        ``has_pending_adoptions``: whether workers may be there that are not adopted yet.
        """
        self.jobs = JobTable()
        """By tag: jobs whose leader or tree lives."""
        self.memory = MemoryMonitor()
        self.totals = TreeTotals()
        self._sentry = SentryMemory(os.uname().release)
        self._channel = channel
        self._attended_jobs: dict[int, Job] = {}
        """By tag: jobs with signals, or with a kill that asks for frequent scans."""
        self._unattributed: dict[tuple[int, int], int] = {}
        self._scan: process_tree.Scan | None = None
        self._reaped: set[int] = set()
        """Pids of children that the warden has reaped since the latest scan began."""
        self._schedule = Schedule(traits.count_seconds)
        self._meter = meter
        self._traits = traits
        self._is_reading_unsafe = False
        self._is_init = is_init
        self._has_pending_adoptions = has_pending_adoptions
        self._bombs = ForkBombs(self.jobs, traits, is_init=is_init)
        self._brake = brake
        self._next_freeze_for_room = 0.0
        self._held_tags: set[int] = set()
        """Tags of the jobs that the last thaw continues slowly."""
        self._is_quiet = True
        self._has_changed = False
        """A request has come since the scan under way, or the latest scan, began."""

    @property
    def is_quiet(self) -> bool:
        """Whether no user code lives: the latest scan has found none, and no request has come since
        that scan began.

        Processes without user code are the leaders of idle jobs: the zygote and the workers of the
        pool.
        """
        return self._is_quiet

    def record_change(self) -> None:
        """Take note of a request that may begin user code, or that may have left user code."""
        self._is_quiet = False
        self._has_changed = True
        self._schedule.record_change(time.monotonic())

    def _record_tasks(self, n_tasks: int, processes: Collection[int] = ()) -> None:
        """Bring the estimate of gVisor's own memory up to date, after a count or a scan."""
        if self._traits.uses_memory_of_pod:
            self._sentry.record_count(n_tasks)
            if processes:
                self._sentry.record_pid(max(processes))
            self.totals.runtime_bytes = self.memory.policy.runtime_bytes = self._sentry.used_bytes

    def hasten_scan(self) -> None:
        """Scan as soon as the cost of the last scan allows."""
        self._schedule.record_change(time.monotonic())

    def add_job(self, job: Job) -> None:
        self._is_quiet = False
        self._has_changed = True
        self._schedule.record_job(job.spawned_at, is_only=not self.jobs)
        self.jobs.add(job)
        if self._traits.limits_processes_of_namespace:
            job.n_others = self._meter.max_tasks()
        if not job.is_idle:
            self.memory.begin_sampling(job.account)

    def mark_active(self, job: Job) -> None:
        """The job begins to run user code: limits apply from now on."""
        self.jobs.activate(job)
        self.record_change()
        self.memory.begin_sampling(job.account)

    def record_reaped(self, pid: int) -> None:
        """Take note of a child that has ended: see ``_may_miss_members``."""
        if self._scan is not None:
            self._reaped.add(pid)

    def forget_unattributed(self) -> None:
        """Have the next scan attribute anew the processes that belong to no job."""
        self._unattributed.clear()
        self.record_change()

    def signal_members(self, job: Job, number: int, scope: str, mark: int = 0) -> None:
        """Send a signal to the members of ``scope`` as soon as a scan has found the members."""
        assert self.jobs.get(job.tag) is job
        self._attend(job)
        job.signals.setdefault((number, scope, mark), time.monotonic())

    def kill(self, job: Job, grace_seconds: float, mark: int | None = None) -> None:
        """Begin to end the job's tree, or with ``mark`` what a cell of the job has begun (0: trees
        have no marks); or shorten the grace of the kill under way."""
        assert self.jobs.get(job.tag) is job
        now = time.monotonic()
        self._attend(job)
        kill = job.kill if mark is None else job.cell_kills.get(mark)
        if kill is not None:
            kill.shorten_grace(now, grace_seconds)
            return
        if mark is None:
            job.kill = TreeKill(now, grace_seconds, job.pid if job.reaped_at is None else None)
            tree_signals.signal_leader_group(job)
        else:
            job.cell_kills[mark] = TreeKill(now, grace_seconds, None)
        self._schedule.record_kill(now)

    def _attend(self, job: Job) -> None:
        self._is_quiet = False
        self._has_changed = True
        self._attended_jobs[job.tag] = job

    @property
    def is_reading_unsafe(self) -> bool:
        """Whether tasks rose at the last count, or looked like a bomb."""
        return self._is_reading_unsafe

    def may_read(self) -> bool:
        """Whether a fresh count allows reading ``/proc``: beside a bomb each read may take as long
        as the bomb needs to double."""
        return not self._is_reading_unsafe and self._bombs.may_read(self._meter.max_tasks())

    @property
    def next_due(self) -> float:
        """When the next check, scan or kill is due, on the monotonic clock; 0: now."""
        if self._is_reading_unsafe:
            due = self._schedule.next_count
        elif self._scan is not None:
            return 0.0
        else:
            due = min(
                self._schedule.next_due(
                    kills=bool(self._attended_jobs),
                    counts=self.jobs.lowest_process_limit > 0,
                ),
                self.memory.next_sample,
            )
        for job in self._attended_jobs.values():
            for kill in job.kills:
                if kill.phase is Phase.TERMINATING:
                    due = min(due, kill.kill_at)
        return due

    def work(self, now: float) -> None:
        """Do a slice of the work that is due: advance kills, check memory, read a scan on."""
        for job in self._attended_jobs.values():
            if job.kill is not None and job.kill.advance_clock(now):
                tree_signals.signal_leader_group(job)
            for kill in job.cell_kills.values():
                kill.advance_clock(now)  # the next scan sends the signals
        if self._is_reading_unsafe:
            return
        if self._scan is None and (
            now >= self._schedule.next_scan_due(kills=bool(self._attended_jobs))
            or (
                now >= self.memory.next_sample and self.memory.sample(self._accounts(if_awake=True))
            )
        ):
            self._begin_scan()
        if self._scan is not None and self._scan.advance(SLICE_SECONDS):
            scan, self._scan = self._scan, None
            if self.handle_brake_stop():
                return  # the scan has read that everything is stopped: see the rules above
            self._act_on_scan(scan)
            self._bombs.record_scan(scan.processes.values(), scan.n_tasks)
            if not self.jobs:
                self._brake.release()  # no job calls for the next count

    def end_bomb(self) -> None:
        """Make room after a refused fork: freeze, and end the bomb that the freeze finds, if any.

        Freezes at most once in ROOM_PAUSE_SECONDS.
        """
        now = time.monotonic()
        if not self.jobs or now < self._next_freeze_for_room:
            return
        self.freeze_and_thaw()
        self._next_freeze_for_room = now + ROOM_PAUSE_SECONDS

    def _begin_scan(self) -> None:
        self._has_changed = False
        self._meter.mark()
        self._reaped.clear()
        has_kills = any(job.kills for job in self.jobs.values())
        self._scan = process_tree.Scan(heirs=has_kills or bool(self._attended_jobs))

    def check_for_bombs(self) -> None:
        """Count tasks if a count is due. Freeze if the count looks like a bomb; begin a scan if a
        tree may be over its limit.

        Costs one system call as a rule. While tasks rise nothing reads ``/proc``.
        """
        now = time.monotonic()
        self.handle_brake_stop()
        if not self.jobs:
            self._brake.release()
            return
        if now < self._schedule.next_count and self._scan is None:
            return
        n_tasks, position = self._meter.read()
        scan_age_seconds = 0.0 if self._scan is None else now - self._scan.began
        is_suspected = self._bombs.is_suspected(n_tasks, scan_age_seconds) or self._is_kill_outrun()
        self._is_reading_unsafe = is_suspected or not self._bombs.may_read(n_tasks)
        self._bombs.record_count(n_tasks)
        self._record_tasks(n_tasks)
        self._arm_by_count(n_tasks, position)
        if is_suspected:
            self.freeze_and_thaw()
        elif not self._is_reading_unsafe and self._scan is None:
            limit = self.jobs.lowest_process_limit
            if 0 < limit < n_tasks and self._schedule.is_worth_a_scan(n_tasks, limit, now):
                self._begin_scan()
        self._schedule.record_count(time.monotonic())

    @property
    def is_count_due(self) -> bool:
        """Whether tasks are to be counted now: see ``check_for_bombs``."""
        return self.jobs.lowest_process_limit > 0 and time.monotonic() >= self._schedule.next_count

    @property
    def is_calm(self) -> bool:
        """Whether programs in flight may go on while the warden works: no scan, kill or stop by the
        brake is under way, and no thaw holds processes back."""
        return not (
            self._is_reading_unsafe
            or self._scan is not None
            or self._attended_jobs
            or self.holds_groups
            or self._brake.may_have_fired
        )

    def work_beside_programs_in_flight(self, now: float) -> bool:
        """Do the due work that needs no job of a program in flight: a count that is no reason to
        act, and a sample of memory. Returns whether no other work is due. Call while ``is_calm``.

        The few processes of the programs in flight count as if their trees had grown.
        """
        if self.is_count_due:
            n_tasks, position = self._meter.read()
            if (
                self._bombs.is_suspected(n_tasks)
                or not self._bombs.may_read(n_tasks)
                or n_tasks > self.jobs.lowest_process_limit
            ):
                return False  # ``check_for_bombs`` counts again, and acts
            self._bombs.record_count(n_tasks)
            self._record_tasks(n_tasks)
            self._arm_by_count(n_tasks, position)
            self._schedule.record_count(now)
        if now >= self.memory.next_sample and self.memory.sample(self._accounts(if_awake=True)):
            self._begin_scan()
            return False
        return self.next_due > now

    def brake_figures(self) -> BrakeFigures | None:
        """How to arm the brake for a start: the program may be a bomb that grows before the next
        count. None: the brake is armed, or there is none."""
        if not self._brake.exists or self._brake.is_armed:
            return None
        if self.jobs.lowest_process_limit:  # a job that has just begun
            self._arm_by_count(*self._meter.read())
            return None
        return self._bombs.brake_figures(self._meter.max_tasks())

    def record_starts(self, outcome: Outcome) -> None:
        """Take over the figures and the brake after starts, and after the caller has added the
        jobs."""
        if outcome.n_forgotten and not self._meter.is_exact:
            self._meter.forget(outcome.n_forgotten, outcome.newest_pid)
        if outcome.brake_order is not None:
            self._brake.record_armed(*outcome.brake_order)
            if not self.jobs.lowest_process_limit:
                self._brake.release()

    def _arm_by_count(self, n_tasks: int, position: int) -> None:
        """Have the brake stop everything after as many more tasks as ``brake_room`` allows, or when
        the next count is late. Releases the brake if no job has a limit.

        ``n_tasks``, ``position``: of ``TaskMeter.read``.
        """
        room = self._bombs.brake_room(n_tasks)
        self._brake.arm(position, room, self._bombs.brake_patience_seconds(n_tasks))

    def handle_brake_stop(self) -> bool:
        """Freeze and thaw if the brake has stopped everything. Returns whether the brake had."""
        if not self._brake.take_stop():
            return False
        self.freeze_and_thaw()
        return True

    def pause_brake(self) -> bool:
        """Keep the brake from stopping anything until ``resume_brake``. Returns whether nothing is
        stopped, neither by the brake nor by a thaw that still holds processes. (User code may have
        stopped some.)"""
        self._brake.pause()
        return not self.handle_brake_stop() and not self.holds_groups

    def resume_brake(self) -> None:
        """Let the brake go on with its last order."""
        self._brake.resume()

    @property
    def holds_groups(self) -> bool:
        """Whether a thaw in gVisor still holds processes: see ``hangups``."""
        return (
            self._traits.hangs_up_stopped_groups and bool(self.jobs) and bool(self._bombs.held_back)
        )

    def holds(self, job: Job) -> bool:
        """Whether a thaw still holds processes of the job."""
        return self.holds_groups and job.tag in self._held_tags

    def _is_kill_outrun(self) -> bool:
        return any(kill.is_outrun for job in self._attended_jobs.values() for kill in job.kills)

    def freeze_and_thaw(self) -> None:
        """Stop everything, scan, end the guilty trees, and continue the rest."""
        self._brake.release()
        is_still = self._bombs.freeze(self._meter.max_tasks)
        # This freeze covers a stop by the brake until now. A later stop is left to the next check.
        self._brake.take_stop()
        self._begin_scan()
        scan, self._scan = self._scan, None
        assert scan is not None
        is_complete = scan.advance(math.inf)
        assert is_complete
        is_still &= self._bombs.await_forks(scan.processes)
        self._act_on_scan(scan, is_frozen=True, is_still=is_still)
        guilty: set[int] = set()
        growing: set[int] = set()
        self._held_tags.clear()
        for job in self.jobs.values():
            if job.kill is not None and job.kill.phase is not Phase.TERMINATING:
                guilty.update(job.members)
                continue
            for kill in job.cell_kills.values():
                guilty.update(kill.killed & job.members.keys())
            if job.grown_tasks > SLOW_GROWTH_TASKS or not job.members.keys().isdisjoint(
                self._bombs.held_back
            ):
                growing.update(job.members)
                self._held_tags.add(job.tag)
        if self._is_init:
            guilty |= self._end_unattributed(scan)
        self._bombs.thaw(scan.processes, scan.n_tasks, guilty=guilty, growing=growing)
        self._is_reading_unsafe = False
        # A continued tree may be a bomb below its limit, and may grow before the next count.
        self._arm_by_count(*self._meter.read())

    def _end_unattributed(self, scan: process_tree.Scan) -> set[int]:
        """Send SIGKILL to the processes of no job if they alone are more than a tree may have.
        Returns their pids.

        A bomb that sheds all evidence belongs to no job, and would starve every job.
        """
        assert self._is_init, "elsewhere the scan shows the user's own processes"
        owned = {pid for job in self.jobs.values() for pid in job.members}
        unattributed = scan.processes.keys() - owned - {os.getpid()}
        if len(unattributed) <= self.jobs.lowest_process_limit:
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
        """Attribute the scan's processes to jobs; then signal, enforce limits, and advance kills.

        ``is_frozen``: the scan was read during a freeze, and a thaw follows. ``is_still``: no
        process could change during the scan.
        """
        assert self._scan is None
        for job in self.jobs.values():
            job.learn_start(scan.processes, scan.began)
        before = {job.tag: job.members for job in self.jobs.values()}
        is_clear = self._attribute(scan)
        for job in list(self.jobs.values()):
            members = [scan.processes[pid] for pid in job.members]
            job.record_scan(members, before[job.tag])
            if not is_frozen:  # the thaw would undo a stop signal
                job.has_stopped = any(process.state == "T" for process in members)
                tree_signals.send_waiting_signals(job, scan.began, members)
            if job.kill is None and job.has_too_many_tasks:
                self._channel.send(LimitReached(job.tag, "processes", job.n_tasks))
                self.kill(job, 0.0)
            self._enforce_cpu_limit(job, members)
            if job.kill is not None and job.spawned_at < scan.began:
                alive = [process for process in members if not process.is_dead]
                send = job.kill.record_scan(scan.began, alive, is_clear=is_clear, is_still=is_still)
                self._report(tree_signals.advance_kill(job, send, alive))
            for mark, kill in list(job.cell_kills.items()):
                if kill.asked_at < scan.began:
                    alive = job.find_of_cell(mark, members)
                    send = kill.record_scan(scan.began, alive, is_clear=is_clear, is_still=is_still)
                    self._report(tree_signals.advance_cell_kill(job, mark, send, alive, members))
            if not job.signals and not any(kill.is_eager(scan.began) for kill in job.kills):
                self._attended_jobs.pop(job.tag, None)
            if (
                not job.kills
                and not members
                and job.reaped_at is not None
                and job.reaped_at < scan.began
            ):
                self.jobs.remove(job)
        if self._traits.limits_processes_of_namespace:
            process_caps.raise_limits(self.jobs.values(), scan.n_tasks)
        self._record_tasks(scan.n_tasks, scan.processes)
        self._enforce_memory_limits(scan)
        self.totals.write(self.jobs.values(), scan.processes)
        self._meter.reset(scan.n_tasks)
        now = time.monotonic()
        youngest_seconds = now - max((job.spawned_at for job in self.jobs.values()), default=0.0)
        self._schedule.record_scan(now, scan.busy_seconds, scan.n_tasks, youngest_seconds)
        self._is_quiet = is_clear and not self._has_changed and self._shows_no_user_code(scan)
        if self._is_quiet:
            self._schedule.record_quiet(now)

    def _shows_no_user_code(self, scan: process_tree.Scan) -> bool:
        """Return whether all processes of the scan are the leaders of idle jobs.

        Also an ended process counts as user code: the process may have left a child that began
        after the scan listed the pids. The next scan finds the child.
        """
        if self._attended_jobs or not all(job.is_idle for job in self.jobs.values()):
            return False
        if self._is_init:
            found = scan.processes.keys() - {os.getpid()}
        else:  # the scan shows all processes of the machine
            below = process_tree.descendants(scan.processes, os.getpid())
            found = {process.pid for process in below}
        return found == {job.pid for job in self.jobs.values()}

    def _attribute(self, scan: process_tree.Scan) -> bool:
        """Bring each job's members up to date. Returns whether the scan has missed no member."""
        unattributed_before = self._unattributed.copy()
        # A worker that is not adopted yet is an orphan without evidence. Elimination would give the
        # worker to the only tree that is there, and the worker would die with that tree.
        evidence = (
            process_tree.DIRECT_EVIDENCE if self._has_pending_adoptions() else process_tree.EVIDENCE
        )
        process_tree.attribute(
            scan.processes, self.jobs.values(), os.getpid(), self._unattributed, evidence
        )
        # An orphan that has just been found without evidence may have ended while its environment
        # was read, and may have left a child.
        has_new = not self._unattributed.keys() <= unattributed_before.keys()
        return not has_new and not self._may_miss_members(scan)

    def _may_miss_members(self, scan: process_tree.Scan) -> bool:
        """Return whether processes that ended before the scan read them may have left children of a
        tree that are not in the scan.

        Without a PID namespace nearly all such processes are foreign, and begin and end all the
        time. A process of a tree is a member's child, or the warden's when the member has ended. So
        if the warden has not seen the end, a living member has, and the scan shows this member. A
        child that was left is the warden's from then on, and the next scan notices its end.
        """
        if self._is_init:
            return bool(scan.lost)
        return any(pid in self._reaped or pid in scan.processes for pid in scan.lost)

    def _enforce_cpu_limit(self, job: Job, members: list[process_tree.Process]) -> None:
        over = job.find_over_cpu_limit(members)
        if not over or job.kill is not None:
            return
        at_work = job.find_at_work(members)
        if seconds := [over[pid] for pid in over.keys() & at_work]:
            self._channel.send(LimitReached(job.tag, "cpu", int(max(seconds))))
        if not job.is_adopted:
            self.kill(job, 0.0)
            return
        for pid in over.keys() - {job.pid}:
            send_signal(pid, signal.SIGKILL)

    def _enforce_memory_limits(self, scan: process_tree.Scan) -> None:
        end, short = self.memory.decide(self._accounts(), scan.busy_seconds)
        for account in end:
            self._channel.send(LimitReached(account.tag, "memory", account.tree_bytes))
            self.kill(self.jobs[account.tag], 0.0)
        if short is not None:
            self._channel.send(short)

    def _report(self, end: Killed | CellKilled | None) -> None:
        if end is not None:
            self._channel.send(end)

    def _accounts(self, *, if_awake: bool = False) -> list[Account]:
        return [job.account for job in self.jobs.values() if not (if_awake and job.is_idle)]
