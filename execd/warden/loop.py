"""The warden's loop. The warden is the parent of all user code, in a process apart from the daemon,
and uses the standard library only. ``main`` is the program.

Processes. The daemon is outside, reached by one socket (descriptor 3). The warden's children are
the leaders, which the warden spawned or adopted, and orphans. An orphan comes to the warden because
the warden is the init of its PID namespace or, where namespaces are refused, a subreaper.

Ownership. The warden owns the jobs (a leader with its tree, see ``process_tree``), waits for all
children, and sends every signal to user code. Scans, kills and limits are in ``supervisor``. The
warden decides only about the limits of processes, memory and CPU. Deadlines, grace periods and
reasons are the daemon's.

Threads. The loop is the main thread. The spawn watch and the brake are small threads beside the
loop (``spawn_watch``, ``_brake.c``). They touch none of the loop's objects but those that their
modules name.

Rules.
  * Only ``_reap`` waits for children. Until a program becomes a job, the C of the starts waits for
    the program (``spawner``). A leader may be signaled by number only until ``_reap`` has reaped
    the leader, since the kernel then reuses the number.
  * No step takes long: /proc is read in slices, and the loop polls the socket between two slices.
    So a hundred kills of trees at once cannot make a live warden look dead. All jobs share each
    scan. A fork bomb is the exception: see ``fork_bombs``.
  * Exits are never dropped: replies queue in the warden until the daemon takes the replies, and
    there are at most as many exits as jobs.
  * While no user code lives, the warden sleeps until the next request. Each Pong tells the daemon
    whether the warden is quiet.
  * When the socket closes, the daemon is gone, and all user code ends with the warden. In a
    namespace the kernel ends user code; for a subreaper a sweep does.
  * User code may send any signal to the warden (gVisor delivers even SIGKILL and SIGSTOP to an
    init). The warden blocks every signal that can be blocked, and lets the kernel queue none.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from typing import TYPE_CHECKING

from execd.proc import kernel_traits, messages, process_tree, self_process, spawn
from execd.proc.channel import Closed, close_all
from execd.proc.task_meter import TaskMeter
from execd.warden.adoption import AdoptionFailed, PendingAdoptions
from execd.warden.brake import Brake
from execd.warden.hangups import HangupGuard
from execd.warden.job import send_signal
from execd.warden.launcher import Launcher
from execd.warden.own_peak import OwnPeak
from execd.warden.spawner import EndOfCall
from execd.warden.startup_watch import StartupWatch
from execd.warden.supervisor import SLICE_SECONDS, Supervisor
from execd.warden.traced_stops import TracedStops
from execd.warden.written_bytes import read_written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execd.proc.channel import Channel
    from execd.proc.messages import Message
    from execd.warden.adoption import Adoption
    from execd.warden.job import Job
    from execd.warden.spawner import Outcome, ProgramEnd, StartedProgram

IDLE_SECONDS = 3600.0
MESSAGES_PER_TURN = 32


class Warden:
    """The loop. ``run`` returns when the daemon is gone."""

    def __init__(
        self,
        channel: Channel,
        *,
        oom_score: spawn.OomScore | None,
        former_limits: Sequence[spawn.Limit],
    ) -> None:
        """``former_limits``: limits that the warden has changed for itself alone, as before."""
        self._channel = channel
        self._leaders: dict[int, Job] = {}
        """By pid: jobs whose leader is not reaped yet."""
        self._unannounced: dict[int, Job] = {}
        """By tag, in the order of the spawns: jobs whose Spawned has not been sent yet."""
        self._poll = select.poll()
        self._adoptions = PendingAdoptions(self._poll)
        meter = TaskMeter()
        is_init = os.getpid() == 1
        self._traits = traits = kernel_traits.find()
        self._supervisor = Supervisor(
            channel,
            meter,
            traits,
            Brake(meter.loadavg_fd, traits, is_init=is_init),
            is_init=is_init,
            has_pending_adoptions=lambda: bool(self._adoptions),
        )
        self._jobs = self._supervisor.jobs
        self._child_signals = spawn.open_child_signals()  # open for life
        self._poll.register(self._child_signals, select.POLLIN)
        self._own_peak = OwnPeak()
        self._launcher = Launcher(
            self._supervisor,
            self._leaders,
            self._make_room,
            self._own_peak,
            channel=channel.fileno(),
            child_signals=self._child_signals,
            loadavg_fd=meter.loadavg_fd,
            traits=traits,
            oom_score=oom_score,
            former_limits=former_limits,
            # A freeze stops everything. A group is no orphan while the leader's parent, the warden,
            # is in the same session. A program with a terminal needs a session of its own all the
            # same.
            leads_session=not (traits.hangs_up_stopped_groups and is_init),
        )
        self._spawner = self._launcher.spawner
        self._startup_watch = StartupWatch()
        self._traced_stops = TracedStops()
        self._is_awaiting_room = False
        self._has_more_to_reap = self._keeps_orphans = False
        self._hangup_guard = (
            HangupGuard(
                self._leaders, self._supervisor, self._launcher.add_orphan, self._reap_child
            )
            if traits.hangs_up_stopped_groups and is_init
            else None
        )

    def run(self) -> None:
        """Serve the daemon until the daemon closes the socket or breaks the protocol."""
        self._channel.send(messages.Ready(os.getpid(), self_process.root_capabilities()))
        self._poll.register(self._channel, select.POLLIN)
        due = self._due()
        while True:
            if self._is_awaiting_room != bool(self._channel.queued):
                self._is_awaiting_room = not self._is_awaiting_room
                self._poll.modify(
                    self._channel, select.POLLIN | (select.POLLOUT if self._is_awaiting_room else 0)
                )
            try:
                if due > time.monotonic() and self._may_serve():
                    self._serve(due)
                    due = self._due()
                elif self._spawner.has_in_flight:
                    self._serve(0.0)
                    due = self._due()
                if self._spawner.has_in_flight:  # a start has come back, and is now in flight
                    continue
                ready = dict(self._poll.poll(max(0.0, due - time.monotonic()) * 1000))
                woken_at = time.monotonic()
                # First of all: beside a bomb each step of a starved warden may take seconds.
                self._supervisor.check_for_bombs()
                if self._child_signals in ready or self._has_more_to_reap or self._keeps_orphans:
                    if self._child_signals in ready:
                        os.read(self._child_signals, 4096)
                    self._reap(woken_at)
                # Before the requests: a request may close a descriptor in ``ready`` and open a new
                # descriptor of the same number.
                for adoption in self._adoptions.take_ready(ready.keys()):
                    self._finish_adoption(adoption)
                if self._channel.fileno() in ready:
                    self._channel.flush()
                    self._serve_requests()
                due = self._due()
                if due <= time.monotonic() and not self._spawner.has_in_flight:
                    self._run_due_work()
                    due = self._due()
            except (Closed, messages.ProtocolError):
                return

    # Requests.

    def _serve_requests(self) -> None:
        began = time.monotonic()
        for _ in range(MESSAGES_PER_TURN):
            if not self._serve_next(self._channel.receive):
                return
            if self._spawner.has_in_flight:  # the C serves further requests
                return
            if time.monotonic() - began > SLICE_SECONDS:
                # A spawn takes 5 ms in gVisor, and memory must be sampled in between. The next poll
                # returns at once.
                return

    def _serve_next(self, receive: Callable[[], tuple[Message, list[int]] | None]) -> bool:
        """Serve the request that ``receive`` returns. Returns whether there was a request."""
        try:
            received = receive()
        except messages.MemfdLost as lost:  # only a Spawn is long enough for a memfd
            self._channel.send(messages.SpawnFailed(lost.tag, "request", errno.EMFILE, str(lost)))
            return True
        if received is None:
            return False
        message, descriptors = received
        try:
            # A reply, which no daemon sends, matches no case and is ignored.
            self._serve_request(message, descriptors)  # type: ignore[arg-type]
        finally:
            close_all(descriptors)
        return True

    def _serve_request(self, request: messages.Request, descriptors: list[int]) -> None:
        match request:
            case messages.Spawn():
                failed = self._launcher.start(request, descriptors)
                if failed is not None:
                    self._channel.send(failed)
            case messages.Adopt():
                self._begin_adoption(request, descriptors)
            case messages.MarkActive(tag):
                if tag in self._jobs:
                    self._supervisor.mark_active(self._jobs[tag])
            case messages.Signal(tag, number, scope, mark):
                job = self._jobs.get(tag)
                if job is None or number not in signal.valid_signals():
                    return
                if scope != "leader" and (scope != "group" or job.reaped_at is not None):
                    self._supervisor.signal_members(job, number, scope, mark)
                if scope in ("leader", "group", "cell") and job.reaped_at is None:
                    send_signal(-job.pid if scope == "group" else job.pid, number)
            case messages.Kill(tag, grace_seconds, unless_ended_before):
                job = self._jobs.get(tag)
                if job is not None and not job.has_ended_before(unless_ended_before):
                    self._supervisor.kill(job, grace_seconds)
                else:
                    if self._adoptions.cancel(tag):
                        self._supervisor.forget_unattributed()
                    self._channel.send(messages.Killed(tag, 0, []))
            case messages.KillCell(tag, mark, grace_seconds):
                if tag in self._jobs:
                    self._supervisor.kill(self._jobs[tag], grace_seconds, mark)
                else:
                    self._channel.send(messages.CellKilled(tag, mark, 0, []))
            case messages.Measure():
                self._send_measurement(request)
            case messages.Configure():
                if descriptors and descriptors[0] >= 0:
                    self._supervisor.totals.open(os.dup(descriptors[0]))
                fault = self._supervisor.memory.configure(request)
                if fault is not None:
                    self._channel.send(messages.Fault(fault))
            case messages.ReadWritten(sequence, is_urgent):
                self._channel.send(
                    read_written(
                        sequence,
                        self._jobs.values(),
                        may_read=self._supervisor.may_read(),
                        parents_inherit=self._traits.adds_written_bytes_to_parent,
                    )
                )
                if is_urgent:
                    self._supervisor.hasten_scan()
            case messages.Ping(sequence):
                self._channel.send(messages.Pong(sequence, self._is_quiet))

    @property
    def _is_quiet(self) -> bool:
        """Whether no user code lives and no answer is due: see ``Pong``."""
        return self._supervisor.is_quiet and not self._adoptions and not self._unannounced

    def _send_measurement(self, request: messages.Measure) -> None:
        job = self._jobs.get(request.tag)
        if job is None:
            self._channel.send(messages.Measured(request.tag, 0, 0.0, 0.0, 0, 0, 0))
            return
        leader = process_tree.read_process(job.pid) if job.reaped_at is None else None
        self._channel.send(job.measure(leader))
        if request.anew and leader is not None:
            job.restart_counts(leader, request.work_began)

    # Starts.

    def _may_serve(self) -> bool:
        """Whether nothing but requests and ended children can be ready, and nothing that is under
        way keeps the loop from a start."""
        return (
            not self._channel.queued
            and not self._adoptions
            and not self._keeps_orphans
            and not self._supervisor.is_reading_unsafe
        )

    def _serve(self, until: float) -> None:
        """Let the C serve until ``until``, and take over what the C leaves. With 0: only take over
        the program in flight.

        A program is in flight afterwards only if a request that has come back was a start.
        """
        spawner = self._spawner
        if spawner.has_in_flight:
            outcome = spawner.go_on(until, may_start=until > 0)
        else:
            brake = self._supervisor.brake_figures()
            outcome = spawner.serve(until, brake, self._own_peak.hiding_bytes)
        while until and spawner.has_in_flight and self._help_beside(outcome):
            outcome = spawner.go_on(self._due())
        if until and spawner.has_in_flight and self._may_drain(outcome):
            drained_at = time.monotonic() + self._traits.drain_seconds
            outcome = spawner.go_on(drained_at, may_start=False)
        woken_at = time.monotonic()
        self._has_more_to_reap |= outcome.has_more
        for program in (*outcome.programs, *spawner.take_all()):
            self._take_over(program)
        self._supervisor.record_starts(outcome)
        # Not earlier: without a job a program's process would pass for an orphan of the bomb.
        self._supervisor.handle_brake_stop()
        if outcome.received is not None:
            if self._has_more_to_reap:  # first: a request may ask to end what has ended
                self._reap(woken_at)
            datagram, descriptors = outcome.received
            self._serve_next(lambda: self._channel.unpack(datagram, descriptors))

    def _may_drain(self, outcome: Outcome) -> bool:
        """Whether the work that has ended a call may wait until the programs in flight have ended:
        a scan that is due by the clock alone may."""
        return (
            outcome.end_of_call is EndOfCall.TIME_IS_OVER
            and self._supervisor.is_calm
            and not self._supervisor.is_count_due
            and not self._channel.queued
        )

    def _help_beside(self, outcome: Outcome) -> bool:
        """Do the work that can be done beside programs in flight. Returns whether the C may go on:
        no other work is due."""
        # As before each reaping: ``_reap`` waits for a stop to be over (``hangups``).
        if not self._supervisor.is_calm:
            return False
        if outcome.stranger and outcome.stranger not in self._leaders:
            return False
        if outcome.programs and outcome.brake_order is not None:
            return False  # the brake belongs to the starts or to the supervisor
        now = time.monotonic()
        if outcome.stranger:
            self._reap_child(outcome.stranger, now)
        for program in outcome.programs:
            self._take_over(program)
        outcome.programs.clear()
        if not self._supervisor.work_beside_programs_in_flight(now):
            return False
        self._look_after_young(now)
        return self._may_serve()

    def _take_over(self, program: StartedProgram) -> None:
        """Report the end of a program that the C has started, or make a job."""
        request, descriptors = self._channel.unpack(*program.request)
        assert isinstance(request, messages.Spawn), "the C starts nothing else"
        try:
            if program.end is not None:
                self._report_end(request.tag, program, program.end)
                return
            job = self._launcher.make_job(request, program, descriptors)
        finally:
            close_all(descriptors)
        self._add_job(job)
        if not request.is_idle:
            self._startup_watch.add(job, spawn_seconds=program.spawn_seconds)
        if request.announce:
            self._channel.send(messages.Spawned(job.tag, job.pid, job.spawned_at, job.is_direct))
        else:
            self._unannounced[job.tag] = job

    def _report_end(self, tag: int, program: StartedProgram, end: ProgramEnd) -> None:
        is_hidden = self._own_peak.may_hide(end.max_rss_bytes)
        self._channel.send(
            messages.Exited(
                tag,
                program.pid,
                program.spawned_at,
                time.monotonic(),
                end.wait_status,
                end.user_seconds,
                end.system_seconds,
                0 if is_hidden else end.max_rss_bytes,
                spawn_seconds=program.spawn_seconds,
                is_direct=program.is_direct,
            )
        )

    def _make_room(self) -> None:
        self._supervisor.end_bomb()
        self._reap_all(time.monotonic())

    def _add_job(self, job: Job) -> None:
        assert job.pid not in self._leaders, "a pid is not reused before its owner is reaped"
        self._supervisor.add_job(job)
        self._leaders[job.pid] = job

    # Adoption.

    def _begin_adoption(self, request: messages.Adopt, descriptors: list[int]) -> None:
        if len(descriptors) != 1 or descriptors[0] < 0:
            self._channel.send(
                messages.SpawnFailed(
                    request.tag, "adopt", errno.EMFILE, "a descriptor was lost on the way"
                )
            )
            return
        self._supervisor.record_change()
        account = self._supervisor.memory.open_account(request.tag, request.memory_bytes)
        self._adoptions.add(request, descriptors.pop(), account, time.monotonic())

    def _finish_adoption(self, adoption: Adoption) -> None:
        request = adoption.request
        # With one adoption less under way, elimination may be evidence again for further orphans.
        self._supervisor.forget_unattributed()
        try:
            worker = adoption.receive(os.getpid())
            if worker.pid in self._leaders:
                raise AdoptionFailed("it leads a tree already")
        except AdoptionFailed as error:
            self._channel.send(messages.SpawnFailed(request.tag, "adopt", 0, str(error)))
            return
        for job in self._jobs.values():  # a scan may have counted the worker to its parent's tree
            job.members.pop(worker.pid, None)
        job = adoption.make_job(worker, time.monotonic())
        self._add_job(job)
        self._channel.send(messages.Spawned(job.tag, job.pid, job.spawned_at))

    # Waiting.

    def _reap(self, woken_at: float) -> None:
        """Reap the children that have ended, and report the leaders among them. Orphans wait while
        the supervisor holds groups.

        ``woken_at``: when the loop woke up, which counts as the time of their ends. A freeze since
        then does not prolong a program's life.
        """
        self._keeps_orphans = self._supervisor.holds_groups
        if not self._keeps_orphans:
            self._reap_all(woken_at)
            return
        self._has_more_to_reap = False  # the loop comes again while the supervisor holds groups
        for pid, job in list(self._leaders.items()):
            if not self._supervisor.holds(job):
                self._reap_child(pid, woken_at)

    def _reap_all(self, woken_at: float) -> None:
        began = time.monotonic()
        self._has_more_to_reap = False
        guard = self._hangup_guard
        while guard.reap_next(woken_at) if guard else self._reap_child(-1, woken_at):
            if time.monotonic() - began > SLICE_SECONDS or self._supervisor.handle_brake_stop():
                # Programs that have made the warden their tracer may stop faster than the warden
                # continues them. After a stop by the brake see ``hangups``.
                self._has_more_to_reap = True
                return
        if guard and guard.must_wait:
            self._has_more_to_reap = True

    def _reap_child(self, pid: int, woken_at: float) -> bool:
        """Reap the child ``pid``, or with -1 any child, if the child has ended. Returns whether a
        child had ended or stopped."""
        try:
            pid, wait_status, usage = os.wait4(pid, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return False
        if os.WIFSTOPPED(wait_status):
            self._traced_stops.resume(pid, os.WSTOPSIG(wait_status))
            return True
        self._supervisor.record_reaped(pid)
        job = self._leaders.pop(pid, None)
        if job is not None:  # else an orphan, or a child that failed before its exec
            self._unannounced.pop(job.tag, None)
            self._channel.send(job.record_exit(woken_at, wait_status, usage, self._own_peak))
        return True

    def _announce_starts(self, now: float) -> None:
        for tag, job in list(self._unannounced.items()):
            if job.spawned_at + self._traits.announce_seconds > now:
                break  # later entries were spawned later
            assert job.reaped_at is None, "the reaping removes the entry"
            del self._unannounced[tag]
            self._channel.send(messages.Spawned(tag, job.pid, job.spawned_at, job.is_direct))

    # Time.

    def _due(self) -> float:
        """When the loop has work to do at the latest, on the monotonic clock; 0: now."""
        if self._has_more_to_reap:
            return 0.0
        due = min(self._adoptions.due, time.monotonic() + IDLE_SECONDS)
        if self._jobs or not self._supervisor.is_quiet:
            due = min(due, self._supervisor.next_due)
            if not self._supervisor.is_reading_unsafe:
                due = min(due, self._startup_watch.due)
        if self._unannounced:
            oldest = next(iter(self._unannounced.values()))
            due = min(due, oldest.spawned_at + self._traits.announce_seconds)
        return due

    def _run_due_work(self) -> None:
        now = time.monotonic()
        for adoption in self._adoptions.take_expired(now):
            self._supervisor.forget_unattributed()
            self._channel.send(
                messages.SpawnFailed(
                    adoption.request.tag, "adopt", errno.ETIMEDOUT, "nobody greeted"
                )
            )
        if self._jobs or not self._supervisor.is_quiet:
            self._look_after_young(now)
            self._supervisor.work(now)

    def _look_after_young(self, now: float) -> None:
        self._announce_starts(now)
        for tag in self._startup_watch.check_due(now, self._supervisor.may_read):
            self._channel.send(messages.StartupDone(tag))
