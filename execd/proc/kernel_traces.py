"""What user code can leave in the kernel besides processes and files: listening sockets, mounts,
System V objects, POSIX queues, and the files of /dev/shm. For the daemon, which compares the
present with the time before any user code ran.

With namespaces the kernel ends all of it with the warden, and the comparison shows whether that is
so. Without namespaces everything stays that no process holds.

A listening socket that a process outside of user code holds is not user code's: a sidecar's, or the
daemon's own. In gVisor there is no /proc/sysvipc, and only the number of objects is known.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import socket
import stat
import sys
from typing import TYPE_CHECKING, NamedTuple

from execd.proc import namespaces, process_tree, self_process, spawn

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

NET, SYSVIPC, SHM, QUEUES = "/proc/net", "/proc/sysvipc", "/dev/shm", "/dev/mqueue"
LISTENING, UNCONNECTED = ("0A",), ("07", "00")  # of TCP, of UDP: tcp_states.h; gVisor says 00
ACCEPTS, DATAGRAM = 0x10000, 2  # of unix sockets
OBJECTS = {"shm": "shared memory segment", "msg": "message queue", "sem": "semaphore set"}
# Linux's SHM_INFO, MSG_INFO and SEM_INFO, and the place of the number of objects in the answer.
COUNTS = {"shm": (14, 0), "msg": (12, 0), "sem": (19, 7)}
_LIST = f"import os; os.write(3, b'\\0'.join(os.listdir(b'{SHM}')))"
WARDEN_NAME = "xd0"
"""See ``kernel.process_name``: every process of a living daemon's user code descends from one."""


class ListeningSocket(NamedTuple):
    protocol: str
    address: str
    """As the kernel shows the address; of a unix socket the path, or empty."""
    port: int
    """0: of a unix socket."""
    uid: int
    """The owner; -1: not known."""
    inode: int


class KernelTraces(NamedTuple):
    """Everything at one moment."""

    sockets: frozenset[ListeningSocket]
    mounts: frozenset[str]
    """Lines of mountinfo."""
    objects: frozenset[str]
    """System V objects and POSIX queues, in words."""
    shm: frozenset[str]
    """Names in /dev/shm."""
    has_queues: bool
    """False: /dev/mqueue is not mounted, and ``objects`` has no POSIX queues."""


def place() -> str:
    """Name the kernel and the namespaces that ``read`` looks at."""
    return _boot_and_namespaces("ipc", "net", "mnt")


def process_place() -> str:
    """Name the PID namespace: a process of one place is in no other."""
    first = process_tree.read_process(1)  # the kernel gives the namespace's number again
    return f"{_boot_and_namespaces('pid')} {'' if first is None else first.start}"


def _boot_and_namespaces(*names: str) -> str:
    parts = []
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        parts.append(file.read().strip())
    for name in names:
        with contextlib.suppress(OSError):
            parts.append(os.readlink(f"/proc/self/ns/{name}"))
    return " ".join(parts)


def read() -> KernelTraces:
    """Blocking."""
    objects: set[str] = set()
    for kind, words in OBJECTS.items():
        objects.update(_system_v(kind, words))
    has_queues = os.path.ismount(QUEUES)
    if has_queues:
        objects.update(f"POSIX queue /{name}" for name in _names(QUEUES))
    with open("/proc/self/mountinfo", errors="backslashreplace") as file:
        mounts = frozenset(file.read().splitlines())
    return KernelTraces(frozenset(_sockets()), mounts, frozenset(objects), _names(SHM), has_queues)


def may_make_queues(pid: int | None) -> bool:
    """Tell whether a process may make POSIX queues, see ``refuse_unlisted_queues``. None, or ended:
    the limit is not known."""
    try:
        return pid is None or resource.prlimit(pid, resource.RLIMIT_MSGQUEUE) != (0, 0)
    except OSError:
        return True


def list_hidden_queues() -> frozenset[str] | None:
    """Return the names of the POSIX queues where /dev/mqueue is not mounted: a child lists them in
    a mount namespace of its own. None: this daemon may not mount. Blocking."""
    flags, maps = namespaces.plan()[1:]
    ours, theirs = socket.socketpair()
    pid: int | None
    with ours, theirs:
        try:
            pid = spawn.clone(
                argv=[sys.executable, "-I", "-S", "-c", _LIST],
                env={"LANG": "C.UTF-8"},
                socket=theirs.fileno(),
                clone_flags=flags & spawn.CLONE_NEWUSER,
                id_maps=maps if flags & spawn.CLONE_NEWUSER else {},
                unshare_mounts=True,
                mounts=[("mqueue", SHM, "")],
            )
        except spawn.StepFailed as error:
            pid, listed = error.pid, None
        else:
            theirs.close()
            with ours.makefile("rb") as file:
                listed = file.read()
    if pid is not None:
        with contextlib.suppress(ChildProcessError):  # PID 1 has reaped the child already
            os.waitpid(pid, 0)
    if listed is None:
        return None
    return frozenset(filter(None, listed.decode("utf-8", "backslashreplace").split("\0")))


def _names(directory: str) -> frozenset[str]:
    try:
        found = os.listdir(os.fsencode(directory))
    except FileNotFoundError:
        return frozenset()
    return frozenset(name.decode("utf-8", "backslashreplace") for name in found)


def _rows(path: str) -> Iterator[list[str]]:
    """The fields of each line but the first. gVisor of 2026 has no tcp6 without IPv6."""
    with contextlib.suppress(FileNotFoundError), open(path, errors="backslashreplace") as file:
        next(file, None)
        for line in file:
            if fields := line.split():
                yield fields


def _sockets() -> Iterator[ListeningSocket]:
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        wanted = LISTENING if protocol.startswith("tcp") else UNCONNECTED
        for fields in _rows(f"{NET}/{protocol}"):
            address, _, port = fields[1].rpartition(":")
            if fields[3] in wanted:
                yield ListeningSocket(
                    protocol, address, int(port, 16), int(fields[7]), int(fields[9])
                )
    for fields in _rows(f"{NET}/unix"):
        path = " ".join(fields[7:])
        # The rest of a path with a line end in it is no row.
        with contextlib.suppress(ValueError, IndexError):
            if int(fields[3], 16) & ACCEPTS or (int(fields[4], 16) == DATAGRAM and path):
                yield ListeningSocket("unix", path, 0, _owner(path), int(fields[6]))


def _owner(path: str) -> int:
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        if path.startswith("/") and stat.S_ISSOCK(found.st_mode):
            return found.st_uid
    return -1


def _system_v(kind: str, words: str) -> Iterator[str]:
    if os.path.exists(f"{SYSVIPC}/{kind}"):
        for fields in _rows(f"{SYSVIPC}/{kind}"):
            yield f"System V {words} {fields[1]} with the key {int(fields[0]):#x}"
        return
    command, index = COUNTS[kind]
    answer = (ctypes.c_int32 * 64)()
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (0, 0, command, answer) if kind == "sem" else (0, command, answer)
    if getattr(libc, f"{kind}ctl")(*arguments) < 0:
        yield f"System V {words}s, which cannot be counted here"
    elif answer[index]:
        yield f"{answer[index]} System V {words}s"


def without_foreign(
    sockets: Collection[ListeningSocket], *, user_uid: int, living: Collection[int]
) -> list[ListeningSocket]:
    """Leave out the sockets of other users, and those that a process outside of user code holds, or
    may hold: a process that hides its descriptors. ``living``: the processes of user code that
    live. Blocking."""
    of_user = {one for one in sockets if one.uid == user_uid}
    if not of_user:
        return []
    wanted = {one.inode for one in of_user}
    foreign: set[int] = set()
    # No process of the daemon makes a listening socket for others.
    ours, hides = {process.pid for process in self_process.descendants(1.0)}, False
    for pid in (os.getpid(), *process_tree.pids()):
        if wanted <= foreign:
            break
        if pid in living:
            continue
        inodes = _inodes_of(pid)
        foreign.update(wanted & (inodes or set()))
        hides = hides or (inodes is None and pid not in ours and _is_of(user_uid, pid))
    if hides:
        held = set().union(*(_inodes_of(pid) or set() for pid in living))
        foreign.update(wanted - held)
    # The holder of a socket may have ended between the two looks, and the socket with it.
    return sorted({one for one in of_user if one.inode not in foreign} & set(_sockets()))


def _inodes_of(pid: int) -> set[int] | None:
    """The sockets of the process; None: another process must not read them (ptrace(2))."""
    found = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("socket:["):
                    found.add(int(target[len("socket:[") : -1]))
    except PermissionError:
        return None
    except OSError:
        pass  # the process has ended
    return found


def _is_of(uid: int, pid: int) -> bool:
    return _status(pid, "Uid").split()[:1] == [str(uid)]


def orphans_of_daemons(marker: str, seconds: float) -> list[int]:
    """Return the processes of user code of which no warden is an ancestor: their daemon is dead.
    ``marker``: the variable that all user code has. Blocking."""
    scan = process_tree.Scan()
    scan.advance(seconds)
    prefix = f"{marker}=".encode()

    def has_warden(pid: int) -> bool:
        for _ in range(len(scan.processes)):
            process = scan.processes.get(pid)
            if process is None:
                return False
            if _status(pid, "Name") == WARDEN_NAME:
                return True
            pid = process.parent
        return False

    return [
        pid
        for pid, process in scan.processes.items()
        if not process.is_dead
        and any(entry.startswith(prefix) for entry in process_tree.read_environment(pid))
        and not has_warden(pid)
    ]


def _status(pid: int, field: str) -> str:
    """Return a field of /proc/PID/status; empty if the process has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", errors="replace") as file:
        for line in file:
            if line.startswith(f"{field}:"):
                return line.partition(":")[2].strip()
    return ""
