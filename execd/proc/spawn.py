"""Front of ``_spawn.c``: the start of the warden, and what else the daemon and the warden ask of C.
Programs are started by ``spawner`` of the warden.

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

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STEP_NAMES = (
    "none", "request", "fork", "session", "descriptors", "terminal", "limits", "user",
    "cwd", "signals", "exec", "id_map", "mount_namespace", "mount_proc", "pin", "read_only",
    "cover", "cover_content", "probe", "root", "mount_ipc",
)  # fmt: skip

CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWIPC = 0x08000000

SHORT_TURN_NANOSECONDS = 100_000
"""The smallest value for sched_setattr(2); the usual turn is about 3 ms."""

GROUP_ONLY = 2
_KEEP_ID = 2**32 - 1


class StepFailed(OSError):
    """A set-up step failed, in the child or before it.

    ``pid``: the failed child, for the reaper to collect, or None. ``reason``: in place of the words
    of the C library.
    """

    def __init__(
        self,
        step: str,
        error: int,
        pid: int | None,
        filename: str | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(error, reason or os.strerror(error), filename)
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


class _CloneRequest(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("unshare_mounts", ctypes.c_uint32),
        ("clone_flags", ctypes.c_uint64),
        ("path", ctypes.c_char_p),
        ("argv", _Strings),
        ("envp", _Strings),
        ("mounts", _Strings),
        ("pinned", _Strings),
        ("read_only", _Strings),
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


def clone(
    *,
    argv: Sequence[str],
    env: Mapping[str, str],
    socket: int,
    clone_flags: int = 0,
    id_maps: Mapping[str, str] = {},
    unshare_mounts: bool = False,
    mounts: Sequence[tuple[str, str, str]] = (),
    pinned: Sequence[str] = (),
    read_only: Sequence[str] = (),
    covers: Sequence[str] = (),
    cover_dirs: Sequence[str] = (),
    cover_links: Sequence[tuple[str, str]] = (),
) -> int:
    """Start the warden with ``socket`` as its descriptor 3, in the requested namespaces; return its
    pid. ``id_maps``: contents of files in the child's /proc/PID by name, in this order; see
    user_namespaces(7). ``mounts``: file system, place and options, see mount(2).

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
        mounts=_strings([text for mount in mounts for text in mount]),
        pinned=_strings(pinned),
        read_only=_strings(read_only),
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
            "mount_ipc": ":".join(place for _, place, _ in mounts),
            "pin": ":".join(pinned),
            "read_only": ":".join(read_only),
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
    check(_libc.syscall(_SETGROUPS, len(groups), array))
    check(_libc.syscall(_SETRESGID, -1, _id(identity.gid), -1))
    check(_libc.syscall(_SETRESUID, -1, _id(identity.uid), -1))


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
    check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def open_child_signals() -> int:
    """Return a descriptor that is readable while SIGCHLD waits in a process that blocks SIGCHLD.

    A read takes the signals: signalfd(2). Raises OSError.
    """
    child = (1 << (signal.SIGCHLD - 1)).to_bytes(128, "little")  # sigset_t of the C library
    fd: int = _libc.signalfd(-1, child, os.O_CLOEXEC | os.O_NONBLOCK)
    check(min(fd, 0))
    return fd


def set_undumpable() -> None:
    """Close this process's /proc entries and memory to processes of the same user.

    gVisor honours the setting in part only.
    """
    check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def set_subreaper() -> None:
    """Make orphaned descendants children of this process. Raises OSError."""
    check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def add_orphan(group: int) -> int:
    """Give this process, an init or a subreaper, a dead child: an orphan of process group
    ``group``. Returns the pid, for the caller to reap. Raises OSError."""
    assert group > 1
    pid: int = _library.execd_add_orphan(group)
    check(min(pid, 0))
    os.kill(pid, signal.SIGKILL)  # a stopped process dies of SIGKILL too
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


def detach_traced(pid: int, number: int) -> None:
    """End the tracing of a stopped child that requested tracing (PTRACE_TRACEME, ptrace(2)).

    The child gets ``number``, the signal of its stop, unless the signal is SIGTRAP: the kernel
    sends SIGTRAP at exec for the tracer, and SIGTRAP kills an untraced process. Raises OSError.
    """
    check(_libc.ptrace(_PTRACE_DETACH, pid, None, 0 if number == signal.SIGTRAP else number))


def check(result: int) -> None:
    """Raises the OSError of a call of C that has not returned 0."""
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
