"""The warden: the parent of all user code. Another process than the daemon; standard library only;
one thread, one loop.

Who is there. The daemon (outside, reached by one socket: descriptor 3), this process, and its
children: the leaders it spawned, and orphans, which come to it because it is the init of its PID
namespace or, where namespaces are refused, a subreaper.

What it owns. The jobs (a leader and all that descends from it, see ``process_tree``), waiting for
children, and every signal sent to user code; scans, kills and limits are ``supervisor``'s. It
decides nothing but the limits of processes, memory and CPU: deadlines, grace periods and reasons
are the daemon's.

Rules.
  * Only ``_reap`` waits. A leader may be signaled by its number only until then: a number is reused
    once its owner is reaped.
  * No step takes long: /proc is read in slices between looks at the socket, so that a hundred kills
    of trees at once cannot make a live warden look dead. All jobs share each scan. A fork bomb is
    the exception: see ``fork_bombs``.
  * Exits are never dropped: replies queue here until the daemon takes them, and there are no more
    of them than jobs.
  * When the socket closes the daemon is gone, and all user code goes with this process: the kernel
    sees to it in a namespace, a sweep does where it is a subreaper.
  * User code may send it any signal (gVisor lets even KILL and STOP through to an init). All that
    can be blocked are.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING

from execd.proc import process_tree, self_process, spawn
from execd.proc.channel import Channel, Closed
from execd.proc.messages import (
    Adopt,
    AtRest,
    Configure,
    Fault,
    Kill,
    Killed,
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
from execd.proc.task_meter import TaskMeter
from execd.warden import brake
from execd.warden.adoption import AdoptionFailed, PendingAdoptions
from execd.warden.job import Job, send_signal
from execd.warden.launcher import Launcher
from execd.warden.startup_watch import StartupWatch
from execd.warden.supervisor import SLICE_SECONDS, Supervisor
from execd.warden.traced_stops import TracedStops

if TYPE_CHECKING:
    from execd.warden.adoption import Adoption

SOCKET_FD = 3
IDLE_SECONDS = 3600.0
MESSAGES_PER_TURN = 32

# A program that has ended by then is told of in one message, Exited, instead of two: each costs
# both sides a wake-up.
ANNOUNCE_SECONDS = 0.0015

# When the daemon is gone, and there is no namespace to end what is left.
SWEEP_SECONDS = 2.0


class Warden:
    """The loop. ``run`` returns when the daemon is gone."""

    def __init__(self, channel: Channel, oom_score: spawn.OomScore | None = None) -> None:
        self._channel = channel
        self._leaders: dict[int, Job] = {}
        self._unannounced: dict[int, Job] = {}  # of whose start the daemon has not been told yet
        self._poll = select.poll()
        self._adoptions = PendingAdoptions(self._poll)
        meter = TaskMeter()
        is_init = os.getpid() == 1
        timing = brake.GVISOR_TIMING if meter.is_exact else brake.NATIVE_TIMING
        self._supervisor = Supervisor(
            channel,
            meter,
            # Anywhere but in a namespace of its own the brake would stop the user's machine.
            brake.Brake(meter.loadavg_fd, timing) if is_init else None,
            is_init=is_init,
            has_pending_adoptions=lambda: bool(self._adoptions),
        )
        self._jobs = self._supervisor.jobs
        self._launcher = Launcher(
            self._supervisor,
            self._leaders,
            self._make_room,
            oom_score=oom_score,
            # gVisor sends SIGHUP to an orphaned process group when one member ends while another is
            # stopped, and a freeze stops everything. (Linux does so only when the group becomes an
            # orphan: setpgid(2).) A group is no orphan while its leader has a parent in the same
            # session, which is the warden. A terminal needs a session of its own all the same.
            leads_session=not (meter.is_exact and is_init),
        )
        self._wakeup_fd, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)  # for life
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to have the byte written
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self._poll.register(self._wakeup_fd, select.POLLIN)
        self._startup_watch = StartupWatch()
        self._traced_stops = TracedStops()
        self._is_awaiting_room = False
        self._has_more_to_reap = False

    def run(self) -> None:
        self._channel.send(Ready(os.getpid(), self_process.root_capabilities()))
        self._poll.register(self._channel, select.POLLIN)
        while True:
            if self._is_awaiting_room != bool(self._channel.queued):
                self._is_awaiting_room = not self._is_awaiting_room
                self._poll.modify(
                    self._channel, select.POLLIN | (select.POLLOUT if self._is_awaiting_room else 0)
                )
            ready = dict(self._poll.poll(self._timeout_seconds() * 1000))
            woken_at = time.monotonic()
            try:
                # Before anything else: each step that a starved warden takes first may be its last
                # for seconds.
                self._supervisor.check_for_bombs()
                if self._wakeup_fd in ready or self._has_more_to_reap:
                    if self._wakeup_fd in ready:
                        os.read(self._wakeup_fd, 4096)
                    self._reap(woken_at)
                # Before requests, which may close a descriptor that is ready here, and open another
                # of the same number.
                for adoption in self._adoptions.take_ready(ready.keys()):
                    self._finish_adoption(adoption)
                if self._channel.fileno() in ready:
                    self._channel.flush()
                    self._serve_requests()
                self._run_due_work()
            except (Closed, ProtocolError):
                return

    # Requests.

    def _serve_requests(self) -> None:
        began = time.monotonic()
        for _ in range(MESSAGES_PER_TURN):
            if time.monotonic() - began > SLICE_SECONDS:
                # a spawn takes 5 ms in gVisor, and memory must be looked at meanwhile; poll brings
                # us back at once
                return
            try:
                received = self._channel.receive()
            except MemfdLost as lost:  # only a Spawn is ever that long
                self._channel.send(SpawnFailed(lost.tag, "request", errno.EMFILE, str(lost)))
                continue
            if received is None:
                return
            message, descriptors = received
            try:
                # A reply, which no daemon sends, matches no case and is ignored.
                self._serve_request(message, descriptors)  # type: ignore[arg-type]
            finally:
                for fd in descriptors:
                    if fd >= 0:
                        os.close(fd)

    def _serve_request(self, request: Request, descriptors: list[int]) -> None:
        match request:
            case Spawn():
                self._spawn(request, descriptors)
            case Adopt():
                self._begin_adoption(request, descriptors)
            case Wake(tag):
                if tag in self._jobs:
                    self._supervisor.mark_active(self._jobs[tag])
            case Signal(tag, number, scope):
                job = self._jobs.get(tag)
                if job is None or number not in signal.valid_signals():
                    return
                if scope in ("session", "tree"):
                    self._supervisor.signal_members(job, number, scope)
                elif job.reaped_at is None:
                    send_signal(-job.pid if scope == "group" else job.pid, number)
            case Kill(tag, grace_seconds, unless_ended_before):
                job = self._jobs.get(tag)
                if job is not None and not job.has_ended_before(unless_ended_before):
                    self._supervisor.kill(job, grace_seconds)
                else:
                    if self._adoptions.cancel(tag):
                        self._supervisor.forget_unattributed()
                    self._channel.send(Killed(tag, 0, []))
            case Measure(tag, anew):
                self._send_measurement(tag, anew=anew)
            case Configure():
                fault = self._supervisor.memory.configure(request)
                if fault is not None:
                    self._channel.send(Fault(fault))
            case Ping(sequence):
                self._channel.send(Pong(sequence))

    def _send_measurement(self, tag: int, *, anew: bool) -> None:
        job = self._jobs.get(tag)
        if job is None:
            self._channel.send(Measured(tag, 0, 0.0, 0.0, 0, 0, 0))
            return
        leader = process_tree.read_process(job.pid) if job.reaped_at is None else None
        self._channel.send(job.measure(leader))
        if anew and leader is not None:
            job.restart_counts(leader)

    def _spawn(self, request: Spawn, descriptors: list[int]) -> None:
        began = time.monotonic()
        job = self._launcher.launch(request, descriptors)
        if isinstance(job, SpawnFailed):
            self._channel.send(job)
            return
        self._add_job(job)
        if not request.rests:
            self._startup_watch.add(job, spawn_seconds=job.spawned_at - began)
        if request.announce:
            self._channel.send(Spawned(job.tag, job.pid, job.spawned_at))
        else:
            self._unannounced[job.tag] = job
        # Not before the program has a job: its process would pass for an orphan, and for a part of
        # the bomb.
        self._supervisor.handle_brake_stop()

    def _make_room(self) -> None:
        self._supervisor.end_bomb()
        self._reap(time.monotonic())

    def _add_job(self, job: Job) -> None:
        self._supervisor.add_job(job)
        self._leaders[job.pid] = job

    # Adoption.

    def _begin_adoption(self, request: Adopt, descriptors: list[int]) -> None:
        if len(descriptors) != 1 or descriptors[0] < 0:
            self._channel.send(
                SpawnFailed(request.tag, "adopt", errno.EMFILE, "a descriptor was lost on the way")
            )
            return
        account = self._supervisor.memory.open_account(request.tag, request.memory_bytes)
        self._adoptions.add(request, descriptors.pop(), account, time.monotonic())

    def _finish_adoption(self, adoption: Adoption) -> None:
        request = adoption.request
        self._supervisor.forget_unattributed()  # with all evidence
        try:
            worker = adoption.receive(os.getpid())
            if worker.pid in self._leaders:
                raise AdoptionFailed("it leads a tree already")
        except AdoptionFailed as error:
            self._channel.send(SpawnFailed(request.tag, "adopt", 0, str(error)))
            return
        for job in self._jobs.values():  # its parent's, until now
            job.members.pop(worker.pid, None)
        pipes = frozenset(f"pipe:[{inode}]" for inode in request.pipes)
        job = Job(
            request,
            worker.pid,
            worker.start,
            pipes,
            adoption.account,
            spawned_at=time.monotonic(),
            session=worker.session,
        )
        self._add_job(job)
        self._channel.send(Spawned(job.tag, job.pid, job.spawned_at))

    # Waiting.

    def _reap(self, woken_at: float) -> None:
        """``woken_at`` becomes the time of their ends. A freeze may have come between, and took no
        time of theirs."""
        began = time.monotonic()
        self._has_more_to_reap = False
        while True:
            if time.monotonic() - began > SLICE_SECONDS:
                # programs that the warden traces may stop faster than they are let go
                self._has_more_to_reap = True
                return
            try:
                pid, wait_status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(wait_status):
                self._traced_stops.resume(pid, os.WSTOPSIG(wait_status))
                continue
            job = self._leaders.pop(pid, None)
            if job is None:
                continue  # an orphan, or a child whose set-up failed
            self._unannounced.pop(job.tag, None)
            self._channel.send(job.record_exit(woken_at, wait_status, usage))

    def _announce_starts(self, now: float) -> None:
        for tag, job in list(self._unannounced.items()):
            if job.spawned_at + ANNOUNCE_SECONDS > now:
                break  # in the order of their spawns
            del self._unannounced[tag]
            self._channel.send(Spawned(tag, job.pid, job.spawned_at))

    # Time.

    def _timeout_seconds(self) -> float:
        if self._has_more_to_reap:
            return 0.0
        now = time.monotonic()
        due = min(self._adoptions.due, now + IDLE_SECONDS)
        if self._jobs:
            due = min(due, self._supervisor.next_due)
            if not self._supervisor.is_reading_unsafe:
                due = min(due, self._startup_watch.due)
        if self._unannounced:
            due = min(due, next(iter(self._unannounced.values())).spawned_at + ANNOUNCE_SECONDS)
        return max(0.0, due - now)

    def _run_due_work(self) -> None:
        now = time.monotonic()
        for adoption in self._adoptions.take_expired(now):
            self._supervisor.forget_unattributed()
            self._channel.send(
                SpawnFailed(adoption.request.tag, "adopt", errno.ETIMEDOUT, "nobody greeted")
            )
        if self._jobs:
            self._announce_starts(now)
            for tag in self._startup_watch.check_due(now, self._supervisor.may_read):
                self._channel.send(AtRest(tag))
            self._supervisor.work(now)


def main() -> None:
    """The warden's program: ``execd_clone`` leaves the socket at descriptor 3 and stderr at 2."""
    self_process.block_signals()
    self_process.drop_capabilities()  # once: every spawn inherits it, and pays nothing
    spawn.prepare()
    oom_score = self_process.open_oom_score()
    spawn.set_undumpable()
    spawn.ask_for_short_turns()
    is_init = os.getpid() == 1
    if not is_init:
        spawn.set_subreaper()
    channel = Channel(socket.socket(fileno=SOCKET_FD))
    os.set_inheritable(SOCKET_FD, False)
    # The daemon's stderr, good for a traceback until here, must not be within reach of user code
    # (/proc/1/fd).
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 2)
    os.close(null)
    try:
        Warden(channel, oom_score).run()
    except Exception as error:  # last words; then the daemon starts another
        import traceback

        try:
            channel.send(Fault("".join(traceback.format_exception(error))[-4000:]))
        except (Closed, OSError):
            pass  # nobody is left to hear them; the sweep must come all the same
    if not is_init:
        self_process.sweep(SWEEP_SECONDS)
    sys.exit(0)
