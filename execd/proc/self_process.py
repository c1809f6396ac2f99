"""This process itself: queued signals, capabilities, OOM score, descendants. For the warden and for
the daemon."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time

from execd.proc import kernel_traits, process_tree, spawn
from execd.proc.root_capabilities import (
    ROOT_CAPABILITIES,
    capability_name,
    clear_inheritable_capabilities,
    drop_from_bounding_set,
    numbers_of,
)

QUEUES = "/dev/mqueue"
OOM_FIRST_CHOICE = 1000
# A sweep ends after so many scans in a row without a descendant: whole scans, or scans of any kind.
QUIET_WHOLE_SCANS, QUIET_SCANS = 2, 20


def refuse_queued_signals() -> list[spawn.Limit]:
    """Have the kernel queue no real-time signal for this process; return the former limit, if there
    is a limit, for the programs that this process starts.

    Linux queues each real-time signal to a process that blocks the signal, up to RLIMIT_SIGPENDING
    of all processes of the user together (signal(7)): a full queue of the warden would leave
    sigqueue(3) and timer_create(2) of all neighbours nothing. The kernel compares with the limit of
    the receiving process. gVisor has no such limit (it reads as 0) and queues at most 32 signals of
    a number.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_SIGPENDING)
    if soft == 0:
        return []
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, hard))
    # -1, which is infinity in Python, is the largest number in C.
    return [spawn.Limit(resource.RLIMIT_SIGPENDING, soft, hard)]


def refuse_unlisted_queues() -> None:
    """Where nobody can list POSIX queues, have the kernel make none for this process and its
    children: a queue outlives its program (mq_overview(7)), and no reset could find it.

    gVisor refuses to lower the limit, and shows all queues to a namespace of the daemon's own.
    """
    if not os.path.ismount(QUEUES):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_MSGQUEUE, (0, 0))


def capabilities(name: str) -> int:
    """Return a set of /proc/self/status (``CapEff``, ``CapBnd``) as a mask, a bit per capability.

    See capabilities(7). Returns 0 if the file does not show the set.
    """
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return next((int(line.split()[1], 16) for line in file if line.startswith(f"{name}:")), 0)


def drop_capabilities() -> None:
    """Leave only ROOT_CAPABILITIES in the bounding set, and nothing in the inheritable set.

    Exec gives a root command the remaining capabilities. The calling process keeps its own
    capabilities until its own exec. Without SETPCAP the bounding set stays unchanged, and
    ``root_capabilities`` reports the unchanged set.
    """
    clear_inheritable_capabilities()
    for number in numbers_of(capabilities("CapBnd")):
        if capability_name(number) not in ROOT_CAPABILITIES:
            try:
                drop_from_bounding_set(number)
            except OSError:
                return


def root_capabilities() -> list[str]:
    """Return the capabilities that exec gives a root command: names without CAP_, by number.

    Empty in a process that is not root: such a process starts no root command.
    """
    if os.geteuid() != 0:
        return []
    return [capability_name(number) for number in numbers_of(capabilities("CapBnd"))]


def open_oom_score() -> spawn.OomScore | None:
    """Return this process's OOM score for ``spawn``. The caller never closes the descriptor.

    To be called while this process is still dumpable. None: programs cannot become the kernel's
    first choice. Either this process is the first choice already, as in a pod of the QoS class
    BestEffort, and the kernel then compares sizes alone; or the kernel is gVisor, where the value
    has no effect.
    """
    if not kernel_traits.find().obeys_oom_score:
        return None
    fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    value = int(os.read(fd, 16))
    if value < OOM_FIRST_CHOICE:
        return spawn.OomScore(fd, value)
    os.close(fd)
    return None


def descendants(seconds: float) -> list[process_tree.Process]:
    """Return the descendants that a scan finds in ``seconds``, the dead too. Blocking."""
    return look(seconds)[0]


def look(seconds: float) -> tuple[list[process_tree.Process], bool]:
    """Return the descendants of a scan, and whether the scan read every listed process.

    A child of a process that ended between the listing and the read hangs on no chain of parents.
    Blocking.
    """
    scan = process_tree.Scan()
    is_whole = scan.advance(seconds) and len(scan.processes) == scan.count
    return process_tree.descendants(scan.processes, os.getpid()), is_whole


def sweep(seconds: float, spared: frozenset[int] = frozenset()) -> tuple[int, ...]:
    """Kill all descendants but ``spared``; return the pids of processes that live on.

    Ends after QUIET_WHOLE_SCANS without a descendant; where processes end all the time and no scan
    is whole, after QUIET_SCANS; and when ``seconds`` are over. Blocking.
    """
    deadline = time.monotonic() + seconds
    n_quiet = n_whole = 0
    while True:
        found, is_whole = look(seconds)
        living = [process for process in found if process.pid not in spared]
        for process in living:
            # A safe signal: a child keeps its pid until this process waits for the child, and
            # deeper descendants become children as their parents die.
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(process.pid, os.WNOHANG)
        n_quiet, n_whole = (0, 0) if living else (n_quiet + 1, n_whole + is_whole)
        if n_whole == QUIET_WHOLE_SCANS or n_quiet == QUIET_SCANS:
            return ()
        if time.monotonic() > deadline:
            return tuple(process.pid for process in living)
        time.sleep(0.005)
