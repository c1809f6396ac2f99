"""The spawner: one call of C that starts all programs, and serves the daemon as long as nothing
comes but starts of programs that end at once (``_spawner.c``).

Most programs end within a millisecond and leave no process behind. Such a program never becomes a
job. A job costs much more: entries in the tables, a scan of /proc, counts of tasks, and turns of
the loop in between. All of these serve programs that live on, or whose descendants live on. A turn
of the warden's loop in Python costs as much CPU as the start itself, because each program leaves
cold caches. So the C receives the requests, starts the programs, reaps those that have ended and
have left nothing, and reports their ends. Everything else comes back to the loop: the messages that
are no Spawn, the starts that need a step before or have failed (``start`` repeats them, and tells
the failure), the programs that live on, and the ends that are not plain.

All that decides stays in Python: the limits of time and of tasks are arguments of the call.

The proof that a program has left nothing is the newest pid of the namespace. gVisor does not tell
the newest pid, and the proof is that the warden has no new child (``_children.c``). A gVisor
without a list of children gives no proof, and all programs become jobs.

Programs in flight. A further request need not wait for the program before: up to 8 programs run at
the same time, each for a short time. Then the loop makes jobs of the programs. Until
then no scan knows the program, and the brake is armed.

Calls that go on. In gVisor a job costs more than a program, and each job brings work: a check of
the young job, an announcement, its end. If that work made jobs of the programs in flight, their
work would make jobs of the next programs, and a crowd of short commands would never come out of
that. So the call may end with programs in flight: the loop does the work that needs no job of a
program (``Warden._help_beside``) and lets the call go on, and the programs that wait become jobs
alone. Three rules keep that right:
  * A child that has ended and is no program in flight is reaped by its pid, and only if a job has
    the pid: ``wait4(-1)`` would also reap programs in flight.
  * Scans, kills and freezes come after ``take_all``, so no scan meets a program without a job.
  * The brake belongs to the spawner or to the supervisor. Where the spawner has armed the brake and
    a program becomes a job, all programs in flight become jobs.
"""

from __future__ import annotations

import ctypes
import os
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from execd.proc import message_codec, packed_messages, spawn
from execd.warden.own_peak import KIB
from execd.warden.spawn_watch import WatchWords

if TYPE_CHECKING:
    from collections.abc import Sequence

    from execd.proc.kernel_traits import KernelTraits
    from execd.proc.messages import Spawn
    from execd.warden.fork_bombs import BrakeFigures

_MAX_IN_FLIGHT, _MAX_FDS = 8, 8
_NANOSECONDS = 1_000_000_000


class _ProgramEnd(ctypes.Structure):
    _fields_ = (
        ("wait_status", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("max_rss_kib", ctypes.c_int64),
        ("user_seconds", ctypes.c_double),
        ("system_seconds", ctypes.c_double),
    )


class _Program(ctypes.Structure):
    _fields_ = (
        ("datagram", ctypes.c_void_p),
        ("datagram_bytes", ctypes.c_int64),
        ("pid", ctypes.c_int64),
        ("begun_at", ctypes.c_int64),
        ("spawned_at", ctypes.c_int64),
        ("is_direct", ctypes.c_int32),
        ("has_ended", ctypes.c_int32),
        ("end", _ProgramEnd),
        ("n_fds", ctypes.c_int32),
        ("fds", ctypes.c_int32 * _MAX_FDS),
        ("until", ctypes.c_int64),
        ("look_at", ctypes.c_int64),
        ("cpu_time", ctypes.c_int64),
        ("is_given_back", ctypes.c_int32),
    )


class _Spawner(ctypes.Structure):
    _fields_ = (
        ("channel", ctypes.c_int32),
        ("signals", ctypes.c_int32),
        ("in_gvisor", ctypes.c_int32),
        ("loadavg", ctypes.c_int32),
        ("children", ctypes.c_int32),
        ("spawn_flags", ctypes.c_int32),
        ("oom_score_fd", ctypes.c_int32),
        ("oom_score", ctypes.c_int32),
        ("nice", ctypes.c_int32),
        ("n_limits", ctypes.c_int32),
        ("limits", ctypes.POINTER(spawn.LimitFields)),
        ("patience", ctypes.c_int64),
        ("look_pause", ctypes.c_int64),
        ("watch", ctypes.POINTER(WatchWords)),
        ("until", ctypes.c_int64),
        ("goes_on", ctypes.c_int32),
        ("may_start", ctypes.c_int32),
        ("brake_base", ctypes.c_int64),
        ("brake_spare", ctypes.c_int64),
        ("known_peak_kib", ctypes.c_int64),
        ("least_limit", ctypes.c_int64),
        ("may_arm", ctypes.c_int32),
        ("noted_at", ctypes.c_int64),
        ("end_of_call", ctypes.c_int32),
        ("stranger", ctypes.c_int32),
        ("n_programs", ctypes.c_int32),
        ("has_more", ctypes.c_int32),
        ("n_forgotten", ctypes.c_int64),
        ("counted_pid", ctypes.c_int64),
        ("armed_from", ctypes.c_int64),
        ("armed_limit", ctypes.c_int64),
        ("received", _Program),
        ("programs", _Program * _MAX_IN_FLIGHT),
    )


_library = spawn.load_library()
_library.execd_serve.argtypes = [ctypes.POINTER(_Spawner)]
_library.execd_start_one.argtypes = [
    ctypes.POINTER(_Spawner),
    ctypes.c_char_p,
    ctypes.c_int64,
    ctypes.POINTER(ctypes.c_int32),
    ctypes.c_int32,
    ctypes.POINTER(spawn.FailureFields),
]
_library.execd_spawner_bytes.restype = ctypes.c_size_t
assert ctypes.sizeof(_Spawner) == _library.execd_spawner_bytes()


class ProgramEnd(NamedTuple):
    """What the kernel tells of a program that has ended: wait4(2). The program is reaped."""

    wait_status: int
    max_rss_bytes: int
    user_seconds: float
    system_seconds: float


class Received(NamedTuple):
    """A message of the channel, not decoded yet."""

    datagram: bytes
    descriptors: list[int]
    """Belong to the caller."""


class StartedProgram(NamedTuple):
    """A program that the C has started and gives back."""

    request: Received
    pid: int
    is_direct: bool
    """The process runs the direct program of the block: see ``program_block``."""
    spawned_at: float
    """When the program's exec was over, on the monotonic clock."""
    spawn_seconds: float
    """The time from the beginning of the fork to the exec."""
    end: ProgramEnd | None
    """The end, of a program that is reaped and not reported. None: nobody has reaped the program,
    which must become a job."""


class EndOfCall(IntEnum):
    """Why a call has ended. Natively a call always ends with CALLER_TAKES_ALL."""

    TIME_IS_OVER = 1
    STRANGER_HAS_ENDED = 2
    PROGRAMS_WAIT = 3
    CALLER_TAKES_ALL = 4


class Outcome(NamedTuple):
    """What a call leaves to the caller. The programs come before the message."""

    end_of_call: EndOfCall
    programs: list[StartedProgram]
    """The programs that the C gives back. After CALLER_TAKES_ALL no program is in flight any more;
    otherwise the caller lets the call go on, or takes the rest too."""
    stranger: int
    """A child that has ended, and that is no program in flight; 0: none."""
    received: Received | None
    n_forgotten: int
    """So many programs have ended and have left nothing."""
    newest_pid: int
    """The newest pid when the last of them was reaped."""
    brake_order: tuple[int, int] | None
    """The count and the limit with which the brake is armed; None: as before the call."""
    has_more: bool
    """A child may wait to be reaped, and its SIGCHLD has been taken."""


class Spawner:
    """Starts programs and serves requests, with descriptors that live as long as the process."""

    def __init__(
        self,
        *,
        channel: int,
        child_signals: int,
        loadavg_fd: int,
        traits: KernelTraits,
        leads_session: bool,
        oom_score: spawn.OomScore | None,
        former_limits: Sequence[spawn.Limit],
        nice: int,
        watch: WatchWords,
    ) -> None:
        """The caller has called ``spawn.prepare``.

        ``channel``: the socket of the daemon. ``child_signals``: see ``spawn.open_child_signals``.
        ``loadavg_fd``: see ``TaskMeter``. ``leads_session``: each program leads a session of its
        own; otherwise only a program with a terminal does, and every further program leads a
        process group in the caller's session (setpgid(2)). ``oom_score``: the caller's own score,
        if the programs are to be the kernel's first choice when memory ends. ``former_limits``: for
        the programs, instead of limits that the caller has by itself. ``nice``: the programs' nice
        value, at least the caller's (setpriority(2)); gVisor ignores the value. ``watch``: of the
        spawn watch.
        """
        limits = (spawn.LimitFields * len(former_limits))(
            *[spawn.LimitFields(which, 0, soft, hard) for which, soft, hard in former_limits]
        )
        self._datagram = b""
        """The message of the latest start by ``start``, kept because the C refers to its bytes."""
        self._fields = _Spawner(
            channel=channel,
            signals=child_signals,
            in_gvisor=loadavg_fd < 0,
            loadavg=loadavg_fd,
            children=_open_children() if loadavg_fd < 0 else -1,
            spawn_flags=0 if leads_session else spawn.GROUP_ONLY,
            oom_score_fd=-1 if oom_score is None else oom_score.fd,
            oom_score=0 if oom_score is None else oom_score.value,
            nice=nice,
            n_limits=len(limits),
            limits=limits,
            patience=int(traits.flight_seconds * _NANOSECONDS),
            look_pause=int(traits.look_pause_seconds * _NANOSECONDS),
            watch=ctypes.pointer(watch),
        )

    def start(
        self,
        request: Spawn,
        descriptors: list[int],
        brake: BrakeFigures | None,
        known_peak_bytes: int,
    ) -> tuple[str, int] | None:
        """Start a program that the caller has received; returns the failed step and the errno.

        Without a failure the program is in flight, the next call is ``go_on``, and the descriptors
        are no longer the caller's. A child with a failure is the caller's to reap. The caller has
        told the spawn watch. The others: as for ``serve``.
        """
        self._begin(brake, known_peak_bytes)
        self._datagram = message_codec.header(
            in_memfd=False, n_descriptors=len(descriptors)
        ) + packed_messages.pack_spawn(request)
        failure = spawn.FailureFields()
        _library.execd_start_one(
            self._fields,
            self._datagram,
            len(self._datagram),
            (ctypes.c_int32 * len(descriptors))(*descriptors),
            len(descriptors),
            failure,
        )
        if failure.step:
            return spawn.STEP_NAMES[failure.step], failure.error
        descriptors.clear()
        self._fields.goes_on = True
        return None

    def serve(self, until: float, brake: BrakeFigures | None, known_peak_bytes: int) -> Outcome:
        """Serve until ``until``, on the monotonic clock, or until something is left to the caller.

        ``brake``: of ``ForkBombs``; None if the brake must stay as it is. ``known_peak_bytes``: the
        figure of a smaller program may be the warden's own, and is not reported.
        """
        self._begin(brake, known_peak_bytes)
        self._fields.may_start = True
        return self._serve(until)

    def _begin(self, brake: BrakeFigures | None, known_peak_bytes: int) -> None:
        fields = self._fields
        assert not fields.goes_on, "the caller has taken all programs of the last call"
        fields.may_arm = brake is not None
        fields.brake_base, fields.brake_spare = brake or (0, 0)
        fields.known_peak_kib = known_peak_bytes // KIB

    @property
    def has_in_flight(self) -> bool:
        """Whether programs are in flight that no outcome has given back."""
        fields = self._fields
        return bool(fields.goes_on) and any(
            not program.is_given_back for program in fields.programs[: fields.n_programs]
        )

    def go_on(self, until: float, *, may_start: bool = True) -> Outcome:
        """Let the last call go on until ``until``. Without ``may_start``: only until all programs
        in flight have ended, or ``until``."""
        assert self._fields.goes_on
        self._fields.may_start = may_start
        return self._serve(until)

    def take_all(self) -> list[StartedProgram]:
        """Take the programs that are still in flight."""
        fields = self._fields
        taken = [
            _program(program)
            for program in fields.programs[: fields.n_programs]
            if fields.goes_on and not program.is_given_back
        ]
        fields.goes_on = False
        return taken

    def _serve(self, until: float) -> Outcome:
        fields = self._fields
        fields.until = int(until * _NANOSECONDS)
        _library.execd_serve(fields)
        end_of_call = EndOfCall(fields.end_of_call)
        fields.goes_on = end_of_call is not EndOfCall.CALLER_TAKES_ALL
        received = fields.received
        return Outcome(
            end_of_call,
            [
                _program(program)
                for program in fields.programs[: fields.n_programs]
                if program.is_given_back or not fields.goes_on
            ],
            fields.stranger,
            _received(received) if received.datagram_bytes else None,
            fields.n_forgotten,
            fields.counted_pid,
            (fields.armed_from, fields.armed_limit) if fields.armed_limit else None,
            bool(fields.has_more),
        )


def _open_children() -> int:
    """Open the list of the main thread's children, for life: proc_tid_children(5). -1: this gVisor
    has no such list."""
    try:
        return os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _received(program: _Program) -> Received:
    datagram = ctypes.string_at(program.datagram, program.datagram_bytes)
    return Received(datagram, list(program.fds[: program.n_fds]))


def _program(program: _Program) -> StartedProgram:
    return StartedProgram(
        _received(program),
        program.pid,
        bool(program.is_direct),
        program.spawned_at / _NANOSECONDS,
        (program.spawned_at - program.begun_at) / _NANOSECONDS,
        _end(program.end) if program.has_ended else None,
    )


def _end(fields: _ProgramEnd) -> ProgramEnd:
    return ProgramEnd(
        fields.wait_status,
        fields.max_rss_kib * KIB,
        fields.user_seconds,
        fields.system_seconds,
    )
