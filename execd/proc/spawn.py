"""Front of ``_spawn.c``: typed requests in, a pid or ``StepFailed`` out. Used by the warden and,
once per warden, by the daemon.

The library is a plain shared object without Python.h, so execd builds wherever a C compiler is.
ctypes releases the GIL around each call, so the daemon answers while a clone waits for its exec.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import struct
from importlib.machinery import EXTENSION_SUFFIXES
from typing import TYPE_CHECKING, NamedTuple

from execd.proc import program_block

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

STEP_NAMES = (
    "none", "request", "fork", "session", "descriptors", "terminal", "limits", "privileges", "user",
    "cwd", "signals", "exec", "id_map", "mount_namespace", "mount_proc", "cover", "cover_content",
    "probe", "root",
)  # fmt: skip

CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

SHORT_TURN_NANOSECONDS = 100_000
"""The smallest value for sched_setattr(2); the usual turn is about 3 ms."""

PATH_MAX_BYTES, NAME_MAX_BYTES = 4096, 255
"""The longest path, with the NUL, and the longest name of a file: path_resolution(7)."""

KEEP_FD = -1
"""In a list of descriptors: the program inherits the caller's own descriptor of the same number.
The caller's descriptor must be inheritable."""

_CONTROLLING_TERMINAL = 1
_IS_PREPARED = 2
GROUP_ONLY = 4
_KEEP_ID = 2**32 - 1


class StepFailed(OSError):
    """A set-up step failed in the child.

    ``pid``: the failed child, for the reaper to collect, or None.
    """

    def __init__(self, step: str, error: int, pid: int | None, filename: str | None = None) -> None:
        super().__init__(error, os.strerror(error), filename)
        self.step = step
        self.pid = pid


class Limit(NamedTuple):
    """A resource limit, see setrlimit(2)."""

    resource: int
    soft: int
    hard: int


class Identity(NamedTuple):
    """The user and groups of the child. ``None`` keeps the values of the parent."""

    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None


KEEP_IDENTITY = Identity()


class OomScore(NamedTuple):
    """The score of the calling process, see proc_pid_oom_score_adj(5).

    When memory ends, the kernel first kills processes with 1000, and never processes with -1000.
    """

    fd: int
    value: int


class StartedProgram(NamedTuple):
    """A program that runs."""

    pid: int
    is_direct: bool
    """The process runs the direct program of the block."""


_Strings = ctypes.POINTER(ctypes.c_char_p)


class FailureFields(ctypes.Structure):
    """``struct failure`` of the C."""

    _fields_ = (("step", ctypes.c_int32), ("error", ctypes.c_int32))


class LimitFields(ctypes.Structure):
    """``struct limit`` of the C."""

    _fields_ = (
        ("resource", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("soft", ctypes.c_uint64),
        ("hard", ctypes.c_uint64),
    )


class _SpawnRequest(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("block", ctypes.c_char_p),
        ("block_bytes", ctypes.c_uint64),
        ("fds", ctypes.POINTER(ctypes.c_int32)),
        ("limits", ctypes.POINTER(LimitFields)),
        ("groups", ctypes.POINTER(ctypes.c_uint32)),
        ("n_fds", ctypes.c_int32),
        ("n_limits", ctypes.c_int32),
        ("n_groups", ctypes.c_int32),
        ("uid", ctypes.c_uint32),
        ("gid", ctypes.c_uint32),
        ("nice", ctypes.c_int32),
        ("oom_score_fd", ctypes.c_int32),
        ("oom_score", ctypes.c_int32),
    )


class _SpawnResult(ctypes.Structure):
    _fields_ = (
        ("failure", FailureFields),
        ("was_direct", ctypes.c_int32),
    )


class _CloneRequest(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("unshare_mounts", ctypes.c_uint32),
        ("clone_flags", ctypes.c_uint64),
        ("path", ctypes.c_char_p),
        ("argv", _Strings),
        ("envp", _Strings),
        ("covers", _Strings),
        ("cover_dirs", _Strings),
        ("cover_links", _Strings),
        ("socket", ctypes.c_int32),
        ("go", ctypes.c_int32),
        ("go_end", ctypes.c_int32),
        ("report", ctypes.c_int32),
    )


def load_library() -> ctypes.CDLL:
    """Load the project's C: the functions of this module, and the functions of ``brake``."""
    folder = os.path.dirname(os.path.abspath(__file__))
    library = ctypes.CDLL(os.path.join(folder, "_spawn" + EXTENSION_SUFFIXES[0]), use_errno=True)
    library.execd_spawn.argtypes = [ctypes.POINTER(_SpawnRequest), ctypes.POINTER(_SpawnResult)]
    library.execd_clone.argtypes = [ctypes.POINTER(_CloneRequest)]
    return library


_library = load_library()
_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long
_PTRACE_DETACH = 17
# sysinfo(2): ten longs, the number of tasks, and 30 bytes more. Any thread may write here.
_sysinfo = (ctypes.c_uint16 * 64)()
_N_TASKS = 40
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 4, 36, 38
_SCHED_RESET_ON_FORK = 1
_SETGROUPS, _SETRESGID, _SETRESUID, _SCHED_SETATTR = (ctypes.c_long * 4).in_dll(
    _library, "execd_syscalls"
)


def _strings(items: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    """Return a NULL-terminated array. The buffers live as long as the array.

    Raises ValueError on an embedded NUL.
    """
    return (ctypes.c_char_p * (len(items) + 1))(*map(_string, items), None)


def _string(text: str) -> bytes:
    """Encode for C. An embedded NUL would end the string in C, so NUL raises ValueError."""
    encoded = os.fsencode(text)
    if b"\0" in encoded:
        raise ValueError("embedded null byte")
    return encoded


def _id(number: int | None) -> int:
    """Return the id for C. Raises ValueError.

    ctypes would cut a number above 32 bits, perhaps to the id of root.
    """
    if number is None:
        return _KEEP_ID
    if not 0 <= number < _KEEP_ID:
        raise ValueError(f"{number} is not a user or group id")
    return number


_latest_limits: tuple[Sequence[Sequence[int]], ctypes.Array[LimitFields]] = (
    (),
    (LimitFields * 0)(),
)


def limits_for_c(limits: Sequence[Sequence[int]]) -> ctypes.Array[LimitFields]:
    """Return the array. Most programs have the limits of the program before."""
    global _latest_limits
    known, array = _latest_limits
    if known != limits:
        fields = [LimitFields(which, 0, *values) for which, *values in limits]
        array = (LimitFields * len(limits))(*fields)
        _latest_limits = limits, array
    return array


def spawn(
    *,
    program: bytes,
    fds: Sequence[int],
    limits: Sequence[Sequence[int]] = (),
    identity: Identity = KEEP_IDENTITY,
    controlling_terminal: bool = False,
    nice: int = 0,
    oom_score: OomScore | None = None,
    is_prepared: bool = False,
    leads_session: bool = True,
) -> StartedProgram:
    """Start a program with ``fds`` as its descriptors 0, 1, 2 ….

    ``program``: see ``program_block``. ``fds`` may have KEEP_FD in the place of a descriptor.
    ``limits``: a ``Limit`` each.
    ``nice``: the program's nice value, at least the caller's (setpriority(2)); 0 keeps the caller's
    value. gVisor ignores the value. ``oom_score``: the caller's own score, if the program is to be
    the kernel's first choice when memory ends. ``is_prepared``: the caller has called ``prepare``,
    so the program inherits the settings of ``prepare`` and the child need not make them.
    ``leads_session``: the program leads a session of its own; otherwise only a process group
    (setpgid(2)).

    Raises StepFailed with the failed step; ValueError for an impossible id.
    """
    groups = identity.groups or ()
    request = _SpawnRequest(
        ctypes.sizeof(_SpawnRequest),
        (_CONTROLLING_TERMINAL if controlling_terminal else 0)
        | (_IS_PREPARED if is_prepared else 0)
        | (0 if leads_session else GROUP_ONLY),
        program,
        len(program),
        (ctypes.c_int32 * len(fds))(*fds),
        limits_for_c(limits),
        (ctypes.c_uint32 * len(groups))(*map(_id, groups)) if groups else None,
        len(fds),
        len(limits),
        -1 if identity.groups is None else len(groups),
        _id(identity.uid),
        _id(identity.gid),
        nice,
        -1 if oom_score is None else oom_score.fd,
        0 if oom_score is None else oom_score.value,
    )
    assert oom_score is None or oom_score.fd >= 0
    result = _SpawnResult()
    pid: int = _library.execd_spawn(request, result)
    if result.failure.step:
        raise _failed_spawn(result.failure, pid, program)
    assert pid > 0, "without a failed step there is a child"
    return StartedProgram(pid, bool(result.was_direct))


def _failed_spawn(failure: FailureFields, pid: int, block: bytes) -> StepFailed:
    step, error = STEP_NAMES[failure.step], failure.error
    filename = None
    if step in ("exec", "cwd"):
        program = program_block.unpack(block)
        filename = program.argv[0] if step == "exec" else program.cwd
        if error == errno.ENAMETOOLONG and step == "exec" and not _is_too_long(program.paths):
            error = errno.E2BIG  # gVisor has one number for a long name and for long arguments
    return StepFailed(step, error, pid if pid > 0 else None, filename)


def _is_too_long(paths: Iterable[str]) -> bool:
    """Whether the kernel refuses one of the paths as too long."""
    return any(
        len(path) >= PATH_MAX_BYTES or max(map(len, path.split(b"/"))) > NAME_MAX_BYTES
        for path in map(os.fsencode, paths)
    )


def clone(
    *,
    argv: Sequence[str],
    env: Mapping[str, str],
    socket: int,
    clone_flags: int,
    id_maps: Mapping[str, str],
    unshare_mounts: bool,
    covers: Sequence[str],
    cover_dirs: Sequence[str],
    cover_links: Sequence[tuple[str, str]],
) -> int:
    """Start the warden with ``socket`` as its descriptor 3, in the requested namespaces; return its
    pid. ``id_maps``: contents of files in the child's /proc/PID by name, in this order; see
    user_namespaces(7).

    All or nothing: raises StepFailed when any step fails. Blocks until the program runs: 2 ms
    natively, 50 ms in gVisor.
    """
    request = _CloneRequest(
        size=ctypes.sizeof(_CloneRequest),
        unshare_mounts=unshare_mounts,
        clone_flags=clone_flags,
        path=_string(argv[0]),
        argv=_strings(argv),
        envp=_strings([f"{name}={value}" for name, value in env.items()]),
        covers=_strings(covers),
        cover_dirs=_strings(cover_dirs),
        cover_links=_strings([text for pair in cover_links for text in pair]),
        socket=socket,
    )
    pid, failure = _clone(request, id_maps)
    if failure.step:
        step = STEP_NAMES[failure.step]
        places = {
            "exec": argv[0],
            "mount_proc": "/proc",
            **dict.fromkeys(("cover", "cover_content"), ":".join(covers)),
        }
        raise StepFailed(step, failure.error, pid, places.get(step))
    return pid


def _clone(request: _CloneRequest, id_maps: Mapping[str, str]) -> tuple[int, FailureFields]:
    """Return the child's pid, and the failed step once the child runs the program or has failed.
    Raises StepFailed before the child has begun, OSError."""
    fds: list[int] = []
    try:
        fds += os.pipe()
        fds += os.pipe()
        request.go, request.go_end, told, request.report = fds
        pid: int = _library.execd_clone(request)
        if pid < 0:
            raise StepFailed("fork", ctypes.get_errno(), None)
        os.close(fds.pop())  # the exec closes the child's, and the read ends
        try:
            _write_id_maps(pid, id_maps)
        except OSError as error:
            raise StepFailed("id_map", error.errno or errno.EIO, pid) from error
        with contextlib.suppress(BrokenPipeError):  # somebody killed the child
            os.write(request.go_end, b"\0")
        report = os.read(told, ctypes.sizeof(FailureFields))
        return pid, FailureFields.from_buffer_copy(report) if report else FailureFields()
    finally:
        for fd in fds:
            os.close(fd)


def _write_id_maps(pid: int, id_maps: Mapping[str, str]) -> None:
    """Raises OSError."""
    for name, text in id_maps.items():
        path = f"/proc/{pid}/{name}"
        if name == "setgroups" and not os.path.exists(path):
            continue  # gVisor has no such file, and needs none; elsewhere gid_map fails next
        with open(os.open(path, os.O_WRONLY | os.O_CLOEXEC), "w") as file:
            file.write(text)


def act_as(identity: Identity) -> None:
    """Have the kernel judge the calling thread's file operations as operations of this user.

    ``None`` keeps the ids of root. Not a cage: the thread can change back. For execd's own code, so
    that the code has no more rights than its caller. Raises OSError.
    """
    groups = identity.groups or ()
    array = (ctypes.c_uint32 * len(groups))(*map(_id, groups))
    # The C library's functions change all threads. The real and saved ids stay root's, and keep
    # processes of that user from signaling or tracing the daemon.
    _check(_libc.syscall(_SETGROUPS, len(groups), array))
    _check(_libc.syscall(_SETRESGID, -1, _id(identity.gid), -1))
    _check(_libc.syscall(_SETRESUID, -1, _id(identity.uid), -1))


def request_short_turns() -> None:
    """Have the calling thread, and none of its children, run soon and briefly beside many busy
    processes: sched_setattr(2), since Linux 6.12.

    The scheduler (EEVDF) prefers the thread with the smallest request, so a few bytes of answer
    need not wait for a turn of each of a thousand busy processes. Older kernels ignore the request,
    gVisor has no such call: no error.
    """
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = struct.pack(
        "=IIQiIQQQ", 48, os.SCHED_OTHER, _SCHED_RESET_ON_FORK, nice, 0, SHORT_TURN_NANOSECONDS, 0, 0
    )
    _libc.syscall(_SCHED_SETATTR, 0, attributes, 0)


def count_tasks() -> int:
    """Return the number of processes and threads, see sysinfo(2); at most 65,535.

    Natively of the whole machine, in gVisor of the caller's PID namespace.
    """
    _libc.sysinfo(_sysinfo)
    return _sysinfo[_N_TASKS]


def prepare() -> None:
    """Set no_new_privs (prctl(2)), block every signal for this thread and threads started later,
    and set the default action of every signal. Only in the main thread.

    Blocked and not ignored: exec passes on "ignored", and each child would have to undo 62 signals.
    Python's own signal handlers go too. ``execd_clone`` has reset the two signals that only the C
    library may set. Raises OSError.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def open_child_signals() -> int:
    """Return a descriptor that is readable while SIGCHLD waits in a process that blocks SIGCHLD.

    A read takes the signals: signalfd(2). Raises OSError.
    """
    child = (1 << (signal.SIGCHLD - 1)).to_bytes(128, "little")  # sigset_t of the C library
    fd: int = _libc.signalfd(-1, child, os.O_CLOEXEC | os.O_NONBLOCK)
    _check(min(fd, 0))
    return fd


def set_undumpable() -> None:
    """Close this process's /proc entries and memory to processes of the same user.

    gVisor honours the setting in part only.
    """
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def set_subreaper() -> None:
    """Make orphaned descendants children of this process. Raises OSError."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def add_orphan(group: int) -> int:
    """Give this process, an init or a subreaper, a dead child: an orphan of process group
    ``group``. Returns the pid, for the caller to reap. Raises OSError."""
    assert group > 1
    pid: int = _library.execd_add_orphan(group)
    _check(min(pid, 0))
    os.kill(pid, signal.SIGKILL)  # a stopped process dies of SIGKILL too
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


def detach_traced(pid: int, number: int) -> None:
    """End the tracing of a stopped child that requested tracing (PTRACE_TRACEME, ptrace(2)).

    The child gets ``number``, the signal of its stop, unless the signal is SIGTRAP: the kernel
    sends SIGTRAP at exec for the tracer, and SIGTRAP kills an untraced process. Raises OSError.
    """
    _check(_libc.ptrace(_PTRACE_DETACH, pid, None, 0 if number == signal.SIGTRAP else number))


def _check(result: int) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
