"""The launcher: turns the daemon's ``Spawn`` into a process, or into ``SpawnFailed`` with the
reason; and turns the process into a job.

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
from typing import TYPE_CHECKING, NamedTuple

from execd.proc import process_tree, spawn
from execd.proc.messages import NULL_DEVICE, SpawnFailed
from execd.warden import failed_start
from execd.warden.job import Job
from execd.warden.spawn_watch import SpawnWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from execd.proc.memory import Account
    from execd.proc.messages import Spawn
    from execd.warden.spawn_watch import WatchWords
    from execd.warden.supervisor import Supervisor

# User code gets a ninth of the weight of the daemon and the warden (sched(7)), so both answer
# beside hundreds of busy processes. gVisor ignores nice.
NICE_INCREMENT, MAX_NICE = 10, 19

FORK_TRIES, FORK_RETRY_SECONDS = 3, 0.05
NULL_FD = 0
"""The warden's own descriptors 0, 1 and 2 are the null device (``main``)."""


class Start(NamedTuple):
    """A program that has just been started."""

    program: spawn.StartedProgram
    fds: list[int]
    """The program's descriptors, as ``spawn`` took them."""
    account: Account
    """Opened before the process existed."""
    spawned_at: float
    """When the program's exec was over, on the monotonic clock."""
    spawn_seconds: float
    """The time from the beginning of the fork to the exec."""


class Launcher:
    """Forks the warden's programs. Has a descriptor and a thread for the life of the process."""

    def __init__(
        self,
        supervisor: Supervisor,
        leaders: Container[int],
        make_room: Callable[[], None],
        *,
        oom_score: spawn.OomScore | None,
        former_limits: Sequence[spawn.Limit],
        leads_session: bool,
        reads_starts: bool,
    ) -> None:
        """``leaders``: pids of the programs that run and are not reaped yet.

        ``make_room`` ends a fork bomb, if there is a bomb, and reaps ended children.
        ``former_limits``: for the programs, instead of limits that the caller has by itself.
        ``leads_session``: each program leads a session of its own. Otherwise only a program with a
        terminal does, and every further program leads a process group in the warden's session.
        ``reads_starts``: read each program's start from /proc, instead of an estimate by the
        monotonic clock. In gVisor a start in /proc counts by the time of day, which jumps and
        drifts: by a wrong estimate all descendants look older than the program.
        """
        self._supervisor = supervisor
        self._make_room = make_room
        self._oom_score = oom_score
        self._former_limits = former_limits
        self.leads_session = leads_session
        self._reads_starts = reads_starts
        self._spawn_watch = SpawnWatch(leaders)
        self.nice = min(os.getpriority(os.PRIO_PROCESS, 0) + NICE_INCREMENT, MAX_NICE)

    @property
    def watch_words(self) -> WatchWords:
        """What the spawn watch looks at."""
        return self._spawn_watch.words

    def start(self, request: Spawn, descriptors: list[int]) -> Start | SpawnFailed:
        """Start the program. ``descriptors``: passed with the request; the caller closes them."""
        account = self._supervisor.memory.open_account(request.tag, request.memory_bytes)
        try:
            fds = self._stdio(request, descriptors)
            program = self._fork(request, fds)
        except spawn.StepFailed as error:
            number = error.errno or 0
            message = failed_start.explain(error.step, number, request.program)
            return SpawnFailed(request.tag, error.step, number, message)
        except (OSError, ValueError, IndexError) as error:
            number = getattr(error, "errno", 0) or 0
            return SpawnFailed(request.tag, "request", number, str(error))
        now = time.monotonic()
        return Start(program, fds, account, now, now - self._spawn_watch.last_begun_at)

    def make_job(self, request: Spawn, start: Start) -> Job:
        """Return the job of a started program that nobody has reaped yet. The descriptors of the
        request are still open."""
        pid, is_direct = start.program
        # The process is there, if only as a zombie: only the warden's loop waits for children.
        leader = process_tree.read_process(pid) if self._reads_starts else None
        return Job(
            request,
            pid,
            leader.start if leader else 0,
            _names_of_pipes(start.fds),
            start.account,
            spawned_at=start.spawned_at,
            spawn_seconds=start.spawn_seconds,
            session=pid if self.leads_session or request.terminal else os.getsid(0),
            is_direct=is_direct,
        )

    def _stdio(self, request: Spawn, descriptors: list[int]) -> list[int]:
        """Return the descriptors that become the program's 0, 1, 2 and so on, as in ``spawn``.

        Raises IndexError for an index out of range, ValueError for an empty list, and OSError with
        EMFILE for a descriptor that the kernel has dropped on the way.
        """
        if not request.stdio:
            raise ValueError("stdio: no descriptors")
        fds = []
        for number, index in enumerate(request.stdio):
            if index == NULL_DEVICE:
                fds.append(_null(number))
                continue
            if index < 0:
                raise IndexError("stdio: no such descriptor")
            if descriptors[index] < 0:
                raise OSError(errno.EMFILE, "descriptors were lost on the way")
            fds.append(descriptors[index])
        return fds

    def _fork(
        self, request: Spawn, fds: list[int], tries: int = FORK_TRIES
    ) -> spawn.StartedProgram:
        """Fork, up to ``tries`` times. Raises as ``spawn.spawn``."""
        assert tries > 0
        self._supervisor.arm_for_spawn(request)
        self._spawn_watch.begin()
        try:
            started = spawn.spawn(
                program=request.program,
                fds=fds,
                limits=[*self._former_limits, *request.limits],
                identity=spawn.Identity(
                    request.uid,
                    request.gid,
                    None if request.groups is None else tuple(request.groups),
                ),
                controlling_terminal=request.terminal,
                nice=self.nice,
                oom_score=self._oom_score,
                is_prepared=True,
                leads_session=self.leads_session or request.terminal,
            )
            if tries == 1 or started.pid != self._spawn_watch.killed_pid:
                return started
        except spawn.StepFailed as error:
            if tries == 1 or (error.step, error.errno) != ("fork", errno.EAGAIN):
                raise
        finally:
            self._spawn_watch.end()
        self._make_room()
        time.sleep(FORK_RETRY_SECONDS)
        return self._fork(request, fds, tries - 1)

    def add_orphan(self, group: int) -> int:
        """See ``spawn.add_orphan``."""
        self._spawn_watch.begin()
        try:
            return spawn.add_orphan(group)
        finally:
            self._spawn_watch.end()


def _names_of_pipes(fds: Sequence[int]) -> frozenset[str]:
    """The names, as readlink("/proc/PID/fd/N") gives them, of the pipes among a program's
    descriptors."""
    found = [os.fstat(fd) for fd in fds if fd not in (spawn.KEEP_FD, NULL_FD)]
    return frozenset([f"pipe:[{each.st_ino}]" for each in found if stat.S_ISFIFO(each.st_mode)])


def _null(number: int) -> int:
    """The null device, for descriptor ``number`` of a program. The program inherits 0, 1 and 2."""
    return spawn.KEEP_FD if number in (0, 1, 2) else NULL_FD
