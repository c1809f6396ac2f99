"""The launcher: starts what the C leaves to the warden's loop, tells why a start has failed, and
turns the processes that live on into jobs.

A fork bomb can prevent a start in two ways. The kernel refuses the fork with EAGAIN at a limit of
processes. Or the child is stopped before the exec, and the spawn watch kills the child
(``spawn_watch``). In both cases no program has run yet, so the launcher makes room by ending the
bomb and forks again, FORK_TRIES times in total.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from typing import TYPE_CHECKING

from execd.proc import process_tree, spawn
from execd.proc.messages import SpawnFailed
from execd.warden import failed_start
from execd.warden.job import Job
from execd.warden.spawn_watch import SpawnWatch
from execd.warden.spawner import Spawner

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from execd.proc.kernel_traits import KernelTraits
    from execd.proc.memory import Account
    from execd.proc.messages import Spawn
    from execd.warden.own_peak import OwnPeak
    from execd.warden.spawner import StartedProgram
    from execd.warden.supervisor import Supervisor

# User code gets a ninth of the weight of the daemon and the warden (sched(7)), so both answer
# beside hundreds of busy processes. gVisor ignores nice.
NICE_INCREMENT, MAX_NICE = 10, 19

FORK_TRIES, FORK_RETRY_SECONDS = 3, 0.05


class Launcher:
    """Has descriptors and a thread for the life of the process."""

    def __init__(
        self,
        supervisor: Supervisor,
        leaders: Container[int],
        make_room: Callable[[], None],
        own_peak: OwnPeak,
        *,
        channel: int,
        child_signals: int,
        loadavg_fd: int,
        traits: KernelTraits,
        oom_score: spawn.OomScore | None,
        former_limits: Sequence[spawn.Limit],
        leads_session: bool,
    ) -> None:
        """``leaders``: pids of the programs that run and are not reaped yet.

        ``make_room`` ends a fork bomb, if there is a bomb, and reaps ended children.
        The others: see ``Spawner``.
        """
        self._supervisor = supervisor
        self._make_room = make_room
        self._own_peak = own_peak
        self._leads_session = leads_session
        self._traits = traits
        self._spawn_watch = SpawnWatch(leaders)
        self._account: Account | None = None
        """The memory account of the program that ``start`` has started last, opened before the
        process existed."""
        self.spawner = Spawner(
            channel=channel,
            child_signals=child_signals,
            loadavg_fd=loadavg_fd,
            traits=traits,
            leads_session=leads_session,
            oom_score=oom_score,
            former_limits=former_limits,
            nice=min(os.getpriority(os.PRIO_PROCESS, 0) + NICE_INCREMENT, MAX_NICE),
            watch=self._spawn_watch.words,
        )

    def start(self, request: Spawn, descriptors: list[int]) -> SpawnFailed | None:
        """Start the program, which is then in flight: see ``Spawner.start``.

        ``descriptors``: passed with the request; -1 for each that was lost on the way.
        """
        if -1 in descriptors:
            return SpawnFailed(
                request.tag, "request", errno.EMFILE, "descriptors were lost on the way"
            )
        self._account = self._supervisor.memory.open_account(request.tag, request.memory_bytes)
        failure = self._fork(request, descriptors)
        if failure is None:
            return None
        step, error = failure
        error, message = failed_start.judge(step, error, request.program)
        return SpawnFailed(request.tag, step, error, message)

    def _fork(
        self, request: Spawn, descriptors: list[int], tries: int = FORK_TRIES
    ) -> tuple[str, int] | None:
        """Fork, up to ``tries`` times; returns the failed step and the errno."""
        assert tries > 0
        self._spawn_watch.begin()
        try:
            failure = self.spawner.start(
                request,
                descriptors,
                self._supervisor.brake_figures(),
                self._own_peak.hiding_bytes,
            )
        finally:
            self._spawn_watch.end()
        if failure != ("fork", errno.EAGAIN) or tries == 1:
            return failure
        self._make_room()
        time.sleep(FORK_RETRY_SECONDS)
        return self._fork(request, descriptors, tries - 1)

    def make_job(self, request: Spawn, program: StartedProgram, descriptors: list[int]) -> Job:
        """Return the job of a started program that nobody has reaped yet. ``descriptors``: of the
        request, still open."""
        leader = None
        if not self._traits.starts_follow_monotonic_clock:
            # By a wrong estimate all descendants look older than the program. The process is there,
            # if only as a zombie: only the warden's loop waits for children.
            leader = process_tree.read_process(program.pid)
        account = self._account
        if account is None or account.tag != request.tag:
            account = self._supervisor.memory.open_account(request.tag, request.memory_bytes)
        return Job(
            request,
            program.pid,
            leader.start if leader else 0,
            _names_of_pipes(descriptors),
            account,
            spawned_at=program.spawned_at,
            spawn_seconds=program.spawn_seconds,
            session=program.pid if self._leads_session or request.terminal else os.getsid(0),
            is_direct=program.is_direct,
        )

    def add_orphan(self, group: int) -> int:
        """See ``spawn.add_orphan``."""
        self._spawn_watch.begin()
        try:
            return spawn.add_orphan(group)
        finally:
            self._spawn_watch.end()


def _names_of_pipes(descriptors: Sequence[int]) -> frozenset[str]:
    """The names, as readlink("/proc/PID/fd/N") gives them, of the pipes among a program's
    descriptors."""
    found = map(os.fstat, descriptors)
    return frozenset([f"pipe:[{each.st_ino}]" for each in found if stat.S_ISFIFO(each.st_mode)])
