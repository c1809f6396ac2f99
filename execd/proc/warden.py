"""The warden: the parent of all user code. Another process than the daemon; standard library only; one thread, one loop.

Who is there. The daemon (outside, reached by one socket: descriptor 3), this process, and its children: the leaders it spawned,
and orphans, which come to it because it is the init of its PID namespace or, where namespaces are refused, a subreaper.

What it owns. The jobs (a leader and all that descends from it, see ``tree``), waiting for children, and every signal sent to user
code. It decides nothing but the limits of processes and memory (see ``memory``): deadlines, grace periods and reasons are the daemon's.

Rules.
  * Only ``_reap`` waits. A leader's group may be signaled by number only until then; afterwards only pids that a scan has just shown
    to be members: a number is reused once its owner is reaped.
  * No step takes long: /proc is read in slices between looks at the socket, so that a hundred kills of trees at once cannot make
    a live warden look dead. All jobs share each scan. A fork bomb is the exception: see ``bombs``.
  * Exits are never dropped: replies queue here until the daemon takes them, and there are no more of them than jobs.
  * When the socket closes the daemon is gone, and all user code goes with this process: the kernel sees to it in a namespace, a
    sweep does where it is a subreaper.
  * User code may send it any signal (gVisor lets even KILL and STOP through to an init). All that can be ignored are.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import stat
import sys
import time
from typing import TYPE_CHECKING

from execd.proc import own_process, spawn, tree
from execd.proc.bombs import BOMB_PROCESSES, Bombs, kill_groups
from execd.proc.channel import Channel, Closed
from execd.proc.greeting import GREETING_SECONDS, Greeting, NotGreeted
from execd.proc.job import Job, lowest_process_limit, send_signal
from execd.proc.killing import Phase, TreeKill
from execd.proc.memory import Guard
from execd.proc.messages import (
    NULL_DEVICE,
    Adopt,
    Configure,
    Fault,
    Kill,
    Killed,
    LimitReached,
    Measure,
    Measured,
    MemfdLost,
    Ping,
    Pong,
    ProtocolError,
    Ready,
    Request,
    Signal,
    Spawn,
    Spawned,
    SpawnFailed,
    Wake,
)
from execd.proc.schedule import Schedule

if TYPE_CHECKING:
    from execd.proc.memory import Account

SOCKET_FD = 3
SLICE_SECONDS = 0.02
MESSAGES_PER_TURN = 32

# A program that has ended by then is told of in one message, Exited, instead of two: each costs both sides a wake-up.
ANNOUNCE_SECONDS = 0.0015

# When the daemon is gone, and there is no namespace to end what is left.
SWEEP_SECONDS = 2.0


class Warden:
    """The loop. ``run`` returns when the daemon is gone."""

    def __init__(self, channel: Channel, drop_capabilities: int) -> None:
        self._channel = channel
        self._drop_capabilities = drop_capabilities
        self._jobs: dict[int, Job] = {}
        self._leaders: dict[int, Job] = {}
        self._greetings: dict[int, Greeting] = {}  # by descriptor
        self._attended: dict[int, Job] = {}  # those with a kill or signals under way
        self._unannounced: dict[int, Job] = {}  # of whose start the daemon has not been told yet
        self._strangers: dict[tuple[int, int], int] = {}
        self._scan: tree.Scan | None = None
        self._schedule = Schedule()
        self._bombs = Bombs(self._jobs, self._reap)
        self._memory = Guard()
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)  # for life, as is the wake-up pipe
        self._woken, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to have the byte written
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        self._awaits_room = False

    def run(self) -> None:
        self._channel.send(Ready(os.getpid()))
        self._poll.register(self._channel, select.POLLIN)
        while True:
            if self._awaits_room != bool(self._channel.queued):
                self._awaits_room = not self._awaits_room
                self._poll.modify(self._channel, select.POLLIN | (select.POLLOUT if self._awaits_room else 0))
            ready = dict(self._poll.poll(self._timeout_seconds() * 1000))
            try:
                if self._woken in ready:
                    os.read(self._woken, 4096)
                    self._reap()
                if self._channel.fileno() in ready:
                    self._channel.flush()
                    self._serve_requests()
                for fd in self._greetings.keys() & ready.keys():
                    self._adopt(self._end_greeting(fd))
                self._work()
            except (Closed, ProtocolError):
                return

    # Requests.

    def _serve_requests(self) -> None:
        began = time.monotonic()
        for _ in range(MESSAGES_PER_TURN):
            if time.monotonic() - began > SLICE_SECONDS:
                return  # a spawn takes 5 ms in gVisor, and memory must be looked at meanwhile; poll brings us back at once
            try:
                received = self._channel.receive()
            except MemfdLost as lost:  # only a Spawn is ever that long
                self._channel.send(SpawnFailed(lost.tag, "request", errno.EMFILE, str(lost)))
                continue
            if received is None:
                return
            message, descriptors = received
            try:
                self._serve(message, descriptors)  # type: ignore[arg-type]  # a reply sent to us falls through and is ignored
            finally:
                for fd in descriptors:
                    if fd >= 0:
                        os.close(fd)

    def _serve(self, request: Request, descriptors: list[int]) -> None:
        match request:
            case Spawn():
                self._spawn(request, descriptors)
            case Adopt():
                self._expect_greeting(request, descriptors)
            case Wake(tag):
                if tag in self._jobs:
                    self._jobs[tag].rests = False
            case Signal(tag, number, scope):
                job = self._jobs.get(tag)
                if job is None or number not in signal.valid_signals():
                    return
                if scope in ("session", "tree"):
                    self._attended[tag] = job
                    job.signals.setdefault((number, scope), time.monotonic())
                elif job.reaped_at is None:
                    send_signal(-job.pid if scope == "group" else job.pid, number)
            case Kill(tag, grace_seconds):
                if tag in self._jobs:
                    self._begin_kill(self._jobs[tag], grace_seconds)
                else:
                    self._give_up_greeting(tag)
                    self._channel.send(Killed(tag, 0, []))
            case Measure(tag, anew):
                self._measure(tag, anew=anew)
            case Configure(reserve_bytes, pod_bytes):
                fault = self._memory.configure(reserve_bytes, pod_bytes)
                if fault is not None:
                    self._channel.send(Fault(fault))
            case Ping(sequence):
                self._channel.send(Pong(sequence))

    def _measure(self, tag: int, *, anew: bool) -> None:
        job = self._jobs.get(tag)
        if job is None:
            self._channel.send(Measured(tag, 0, 0.0, 0.0, 0, 0, 0))
            return
        leader = tree.read_process(job.pid) if job.reaped_at is None else None
        self._channel.send(job.measure(leader))
        if anew and leader is not None:
            job.count_anew(leader)

    def _spawn(self, request: Spawn, descriptors: list[int]) -> None:
        account = self._memory.begin(request.tag, request.memory_bytes)
        try:
            if any(index < NULL_DEVICE for index in request.stdio):
                raise IndexError("stdio: no such descriptor")
            fds = [self._null if index == NULL_DEVICE else descriptors[index] for index in request.stdio]
            if min(fds) < 0:
                raise OSError(errno.EMFILE, "descriptors were lost on the way")
            pid = spawn.spawn(
                argv=request.argv,
                env=request.env,
                cwd=request.cwd,
                fds=fds,
                limits=[spawn.Limit(*limit) for limit in request.limits],
                identity=spawn.Identity(request.uid, request.gid, None if request.groups is None else tuple(request.groups)),
                controlling_terminal=request.terminal,
                drop_capabilities=self._drop_capabilities,
            )
        except spawn.StepFailed as error:
            message = f"[Errno {error.errno}] {error.strerror}"
            if error.filename is not None:
                message += f": {error.filename!r}"
            self._channel.send(SpawnFailed(request.tag, error.step, error.errno or 0, message))
            return
        except (OSError, ValueError, IndexError) as error:
            self._channel.send(SpawnFailed(request.tag, "request", getattr(error, "errno", 0) or 0, str(error)))
            return
        now = time.monotonic()
        leader = tree.read_process(pid)  # there, if only as a zombie: nobody else waits for it
        pipes = frozenset(name for fd in fds if fd != self._null if (name := _pipe_name(fd)))
        job = Job(request, pid, leader.start if leader else 0, pipes, account, spawned_at=now)
        self._add(job)
        if request.announce:
            self._channel.send(Spawned(job.tag, pid, now))
        else:
            self._unannounced[job.tag] = job

    def _add(self, job: Job) -> None:
        self._schedule.job_began(job.spawned_at, is_only=not self._jobs)
        self._jobs[job.tag] = self._leaders[job.pid] = job

    # Adoption.

    def _expect_greeting(self, request: Adopt, descriptors: list[int]) -> None:
        if len(descriptors) != 1 or descriptors[0] < 0:
            self._channel.send(SpawnFailed(request.tag, "adopt", errno.EMFILE, "a descriptor was lost on the way"))
            return
        account = self._memory.begin(request.tag, request.memory_bytes)
        fd = descriptors.pop()
        self._greetings[fd] = Greeting(request, fd, account, time.monotonic() + GREETING_SECONDS)
        self._poll.register(fd, select.POLLIN)

    def _end_greeting(self, fd: int) -> Greeting:
        self._poll.unregister(fd)
        self._strangers.clear()  # to be looked at again, with all evidence
        return self._greetings.pop(fd)

    def _give_up_greeting(self, tag: int) -> None:
        for fd, greeting in list(self._greetings.items()):
            if greeting.request.tag == tag:
                self._end_greeting(fd).close()

    def _adopt(self, greeting: Greeting) -> None:
        request = greeting.request
        try:
            worker = greeting.receive(os.getpid())
            if worker.pid in self._leaders:
                raise NotGreeted("it leads a tree already")
        except NotGreeted as error:
            self._channel.send(SpawnFailed(request.tag, "adopt", 0, str(error)))
            return
        for job in self._jobs.values():  # its parent's, until now
            job.members.pop(worker.pid, None)
        pipes = frozenset(f"pipe:[{inode}]" for inode in request.pipes)
        job = Job(request, worker.pid, worker.start, pipes, greeting.account, spawned_at=time.monotonic())
        self._add(job)
        self._channel.send(Spawned(job.tag, job.pid, job.spawned_at))

    # Waiting.

    def _reap(self) -> None:
        while True:
            try:
                pid, wait_status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(wait_status):
                _let_go(pid, os.WSTOPSIG(wait_status))
                continue
            job = self._leaders.pop(pid, None)
            if job is None:
                continue  # an orphan, or a child whose set-up failed
            self._unannounced.pop(job.tag, None)
            self._channel.send(job.exited(time.monotonic(), wait_status, usage))

    def _announce(self, now: float) -> None:
        for tag, job in list(self._unannounced.items()):
            if job.spawned_at + ANNOUNCE_SECONDS > now:
                break  # in the order of their spawns
            del self._unannounced[tag]
            self._channel.send(Spawned(tag, job.pid, job.spawned_at))

    # Scans, kills and limits.

    def _timeout_seconds(self) -> float:
        now = time.monotonic()
        if not self._jobs:
            return max(0.0, min((greeting.due for greeting in self._greetings.values()), default=now + 3600.0) - now)
        if self._scan is not None or self._bombs.groups:
            return 0.0
        due = min(self._schedule.due(kills=bool(self._attended)), self._memory.next_look)
        if self._unannounced:
            due = min(due, next(iter(self._unannounced.values())).spawned_at + ANNOUNCE_SECONDS)
        if self._greetings:
            due = min(due, min(greeting.due for greeting in self._greetings.values()))
        for job in self._attended.values():
            if job.kill is not None and job.kill.phase is Phase.TERMINATING:
                due = min(due, job.kill.kill_at)
        return max(0.0, due - now)

    def _work(self) -> None:
        now = time.monotonic()
        for fd in [fd for fd, greeting in self._greetings.items() if now >= greeting.due]:
            greeting = self._end_greeting(fd)
            greeting.close()
            self._channel.send(SpawnFailed(greeting.request.tag, "adopt", errno.ETIMEDOUT, "nobody greeted"))
        if not self._jobs:
            return
        self._announce(now)
        for job in self._attended.values():
            if job.kill is not None and job.kill.tick(now):
                self._signal_known(job)
        if self._scan is None:
            if now >= self._schedule.scan_due(kills=bool(self._attended)):
                self._scan = tree.Scan()
            else:
                if now >= self._schedule.next_count:
                    self._count_processes(now)
                if now >= self._memory.next_look and self._memory.look(self._accounts()) and self._scan is None:
                    self._scan = tree.Scan()
        kill_groups(self._bombs.groups)
        if self._scan is not None:
            self._bombs.look(self._scan, now)
        if self._scan is not None and self._scan.advance(SLICE_SECONDS):
            scan, self._scan = self._scan, None
            self._take(scan)

    def _count_processes(self, now: float) -> None:
        """The cheap look: a full scan only when there are enough processes for some tree to be over its limit.

        More of them than at the last scan, that is: a crowd of small trees that stands still is not looked at again and again.
        """
        limit = lowest_process_limit(self._jobs.values())
        count = len(tree.pids()) if limit else 0
        if limit and count > limit and self._schedule.is_worth_a_scan(count, now):
            self._scan = tree.Scan()
        self._schedule.counted(now, time.monotonic())

    def _judge_cpu(self, job: Job, members: list[tree.Process]) -> None:
        over = job.over_cpu_limit(members)
        if not over or job.kill is not None:
            return
        self._channel.send(LimitReached(job.tag, "cpu", int(max(over.values()))))
        if not job.is_adopted:
            self._begin_kill(job, 0.0)
            return
        for pid in over.keys() - {job.pid}:
            send_signal(pid, signal.SIGKILL)

    def _judge_memory(self, scan: tree.Scan) -> None:
        end, short = self._memory.judge(self._accounts(), scan.busy_seconds)
        for account in end:
            self._channel.send(LimitReached(account.tag, "memory", account.tree_bytes))
            self._begin_kill(self._jobs[account.tag], 0.0)
        if short is not None:
            self._channel.send(short)

    def _accounts(self) -> list[Account]:
        return [job.account for job in self._jobs.values()]

    def _send_waiting_signals(self, job: Job, scan: tree.Scan, members: list[tree.Process]) -> None:
        for (number, scope), since in list(job.signals.items()):
            if since < scan.began:
                del job.signals[number, scope]
                for process in members:
                    if not process.dead and (scope == "tree" or process.session == job.pid):
                        send_signal(process.pid, number)

    def _take(self, scan: tree.Scan) -> None:
        before = {job.tag: job.members for job in self._jobs.values()}
        # A worker that has not greeted yet is an orphan that nobody claims: given to the only other tree it would die with that.
        evidence = tree.EVIDENCE if not self._greetings else tree.EVIDENCE_OF_ITS_OWN
        tree.attribute(scan.processes, self._jobs.values(), os.getpid(), self._strangers, evidence)
        for job in list(self._jobs.values()):
            members = [scan.processes[pid] for pid in job.members]
            job.look(members, before[job.tag])
            self._send_waiting_signals(job, scan, members)
            if job.kill is None and job.max_processes and len(members) > job.max_processes:
                self._channel.send(LimitReached(job.tag, "processes", len(members)))
                self._begin_kill(job, 0.0)
            self._judge_cpu(job, members)
            if job.kill is not None and job.spawned_at < scan.began:
                self._advance_kill(job, job.kill, scan, members)
            if (job.kill is None or not job.kill.is_eager(scan.began)) and not job.signals:
                self._attended.pop(job.tag, None)
            if job.kill is None and not members and job.reaped_at is not None and job.reaped_at < scan.began:
                del self._jobs[job.tag]
        self._judge_memory(scan)
        self._bombs.thaw()
        now = time.monotonic()
        youngest_seconds = now - max((job.spawned_at for job in self._jobs.values()), default=0.0)
        self._schedule.scanned(now, scan.busy_seconds, len(scan.processes), youngest_seconds)

    def _begin_kill(self, job: Job, grace_seconds: float) -> None:
        now = time.monotonic()
        if job.kill is not None:
            job.kill.hasten(now, grace_seconds)
            self._attended[job.tag] = job
            return
        self._attended[job.tag] = job
        job.kill = TreeKill(now, grace_seconds, job.pid if job.reaped_at is None else None)
        self._signal_known(job)
        self._schedule.kill_began(now)

    def _signal_known(self, job: Job) -> None:
        """Signal without a scan whom we may: the group by its number while the leader is ours."""
        assert job.kill is not None
        if job.reaped_at is None:
            for number in job.kill.signals:
                send_signal(-job.pid, number)
            if job.kill.phase is Phase.KILLING:
                job.kill.killed.add(job.pid)

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


def _pipe_name(fd: int) -> str | None:
    """As readlink("/proc/PID/fd/N") shows a pipe; our own /proc/self/fd may be closed to us, since we are not dumpable."""
    found = os.fstat(fd)
    return f"pipe:[{found.st_ino}]" if stat.S_ISFIFO(found.st_mode) else None


def _let_go(pid: int, number: int) -> None:
    """Of a program that has made its parent its tracer: it stops at each signal and exec until that parent, which never asked for it,
    says go. Such a stop is not an end, and without an answer it would be for ever."""
    try:
        spawn.let_go(pid, number)
    except OSError:
        pass  # killed meanwhile


def main() -> None:
    """The warden's program: ``execd_clone`` leaves the socket at descriptor 3 and stderr at 2."""
    own_process.ignore_signals()
    drop_capabilities = own_process.capabilities_to_drop()
    spawn.set_undumpable()
    is_init = os.getpid() == 1
    if not is_init:
        spawn.set_subreaper()
    channel = Channel(socket.socket(fileno=SOCKET_FD))
    os.set_inheritable(SOCKET_FD, False)
    # The daemon's stderr, good for a traceback until here, must not be within reach of user code (/proc/1/fd).
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 2)
    os.close(null)
    try:
        Warden(channel, drop_capabilities).run()
    except Exception as error:  # last words; then the daemon starts another
        import traceback

        try:
            channel.send(Fault("".join(traceback.format_exception(error))[-4000:]))
        except (Closed, OSError):
            pass  # nobody is left to hear them; the sweep must come all the same
    if not is_init:
        own_process.sweep(SWEEP_SECONDS)
    sys.exit(0)
