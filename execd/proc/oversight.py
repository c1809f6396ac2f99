"""What the warden does with what it sees: scans of /proc, and the limits, signals and kills that they lead to.

One scan for all jobs, in slices; what it has found is acted on at its end (``_take``). Between scans there are cheaper looks: at the number
of processes, at the pod's memory. Two rules make acting on a scan safe:
  * Of a job that began after the scan did, the scan knows nothing: its kill is advanced by the next one.
  * A leader's group may be signaled by number while the leader is not reaped; afterwards only pids that a scan has just shown to be
    members, since a number is reused once its owner is reaped.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from execd.proc import tree
from execd.proc.bombs import BOMB_PROCESSES, Bombs, kill_groups
from execd.proc.job import lowest_process_limit, send_signal
from execd.proc.killing import Phase, TreeKill
from execd.proc.memory import Guard
from execd.proc.messages import Killed, LimitReached
from execd.proc.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.proc.channel import Channel
    from execd.proc.job import Job
    from execd.proc.memory import Account

SLICE_SECONDS = 0.02


class Oversight:
    """The warden's, in its loop: ``work`` at each turn, and not later than ``due``."""

    def __init__(self, channel: Channel, reap: Callable[[], None]) -> None:
        """``reap``: take in the children that have ended, in the middle of a long step."""
        self.jobs: dict[int, Job] = {}
        """By tag: those that live, or whose trees do."""
        self.memory = Guard()
        self._channel = channel
        self._attended: dict[int, Job] = {}  # those with a kill or signals under way
        self._strangers: dict[tuple[int, int], int] = {}
        self._scan: tree.Scan | None = None
        self._schedule = Schedule()
        self._bombs = Bombs(self.jobs, reap)

    def begin(self, job: Job) -> None:
        self._schedule.job_began(job.spawned_at, is_only=not self.jobs)
        self.jobs[job.tag] = job

    def reconsider_strangers(self) -> None:
        """Who was nobody's may be somebody's now."""
        self._strangers.clear()

    def signal_members(self, job: Job, number: int, scope: str) -> None:
        """As soon as a scan has shown who they are."""
        self._attended[job.tag] = job
        job.signals.setdefault((number, scope), time.monotonic())

    def kill(self, job: Job, grace_seconds: float) -> None:
        """End its tree, or hasten that."""
        now = time.monotonic()
        if job.kill is not None:
            job.kill.hasten(now, grace_seconds)
            self._attended[job.tag] = job
            return
        self._attended[job.tag] = job
        job.kill = TreeKill(now, grace_seconds, job.pid if job.reaped_at is None else None)
        _signal_known(job)
        self._schedule.kill_began(now)

    def due(self) -> float:
        """When there is something to do again, on the monotonic clock; 0: now."""
        if self._scan is not None or self._bombs.groups:
            return 0.0
        due = min(self._schedule.due(kills=bool(self._attended)), self.memory.next_look)
        for job in self._attended.values():
            if job.kill is not None and job.kill.phase is Phase.TERMINATING:
                due = min(due, job.kill.kill_at)
        return due

    def work(self, now: float, *, greetings: bool) -> None:
        """A slice of what there is to do. ``greetings``: some workers may be there that have not greeted yet."""
        for job in self._attended.values():
            if job.kill is not None and job.kill.tick(now):
                _signal_known(job)
        if self._scan is None:
            if now >= self._schedule.scan_due(kills=bool(self._attended)):
                self._scan = tree.Scan()
            else:
                if now >= self._schedule.next_count:
                    self._count_processes(now)
                if now >= self.memory.next_look and self.memory.look(self._accounts()) and self._scan is None:
                    self._scan = tree.Scan()
        kill_groups(self._bombs.groups)
        if self._scan is not None:
            self._bombs.look(self._scan, now)
        if self._scan is not None and self._scan.advance(SLICE_SECONDS):
            scan, self._scan = self._scan, None
            self._take(scan, greetings=greetings)

    def _count_processes(self, now: float) -> None:
        """The cheap look: a full scan only when there are enough processes for some tree to be over its limit.

        More of them than at the last scan, that is: a crowd of small trees that stands still is not looked at again and again.
        """
        limit = lowest_process_limit(self.jobs.values())
        count = len(tree.pids()) if limit else 0
        if limit and count > limit and self._schedule.is_worth_a_scan(count, now):
            self._scan = tree.Scan()
        self._schedule.counted(now, time.monotonic())

    def _take(self, scan: tree.Scan, *, greetings: bool) -> None:
        before = {job.tag: job.members for job in self.jobs.values()}
        # A worker that has not greeted yet is an orphan that nobody claims: given to the only other tree it would die with that.
        evidence = tree.EVIDENCE_OF_ITS_OWN if greetings else tree.EVIDENCE
        tree.attribute(scan.processes, self.jobs.values(), os.getpid(), self._strangers, evidence)
        for job in list(self.jobs.values()):
            members = [scan.processes[pid] for pid in job.members]
            job.look(members, before[job.tag])
            _send_waiting_signals(job, scan, members)
            if job.kill is None and job.max_processes and len(members) > job.max_processes:
                self._channel.send(LimitReached(job.tag, "processes", len(members)))
                self.kill(job, 0.0)
            self._judge_cpu(job, members)
            if job.kill is not None and job.spawned_at < scan.began:
                self._advance_kill(job, job.kill, scan, members)
            if (job.kill is None or not job.kill.is_eager(scan.began)) and not job.signals:
                self._attended.pop(job.tag, None)
            if job.kill is None and not members and job.reaped_at is not None and job.reaped_at < scan.began:
                del self.jobs[job.tag]
        self._judge_memory(scan)
        self._bombs.thaw()
        now = time.monotonic()
        youngest_seconds = now - max((job.spawned_at for job in self.jobs.values()), default=0.0)
        self._schedule.scanned(now, scan.busy_seconds, len(scan.processes), youngest_seconds)

    def _judge_cpu(self, job: Job, members: list[tree.Process]) -> None:
        over = job.over_cpu_limit(members)
        if not over or job.kill is not None:
            return
        self._channel.send(LimitReached(job.tag, "cpu", int(max(over.values()))))
        if not job.is_adopted:
            self.kill(job, 0.0)
            return
        for pid in over.keys() - {job.pid}:
            send_signal(pid, signal.SIGKILL)

    def _judge_memory(self, scan: tree.Scan) -> None:
        end, short = self.memory.judge(self._accounts(), scan.busy_seconds)
        for account in end:
            self._channel.send(LimitReached(account.tag, "memory", account.tree_bytes))
            self.kill(self.jobs[account.tag], 0.0)
        if short is not None:
            self._channel.send(short)

    def _accounts(self) -> list[Account]:
        return [job.account for job in self.jobs.values()]

    def _advance_kill(self, job: Job, kill: TreeKill, scan: tree.Scan, members: list[tree.Process]) -> None:
        send = kill.scanned(scan.began, [process for process in members if not process.dead])
        if send is not None:
            if kill.phase is Phase.KILLING:
                # Whole groups first: to the kernel that is one step, in which no member forks. One by one, a fork bomb wins.
                # A group that the scan found a member in is the job's, since nobody joins a group of another session.
                groups = {process.group for process in members if not process.dead} - {0, 1, os.getpgrp()}
                if len(send.pids) > BOMB_PROCESSES:
                    self._bombs.kill(groups)
                else:
                    kill_groups(groups)
            for pid in send.pids:
                for number in send.numbers:
                    send_signal(pid, number)
        elif job.reaped_at is not None:
            # If not: dead but not yet reaped, and the next turn of the loop does; Killed comes after Exited.
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


def _send_waiting_signals(job: Job, scan: tree.Scan, members: list[tree.Process]) -> None:
    for (number, scope), since in list(job.signals.items()):
        if since < scan.began:
            del job.signals[number, scope]
            for process in members:
                if not process.dead and (scope == "tree" or process.session == job.pid):
                    send_signal(process.pid, number)
