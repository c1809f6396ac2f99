"""This process itself: the signals it takes, the capabilities it has, what descends from it. For
the warden and for the daemon."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from execd.proc import process_tree, spawn
from execd.proc.capabilities import (
    ROOT_CAPABILITIES,
    capability_name,
    clear_inheritable_capabilities,
    drop_from_bounding_set,
    numbers_of,
)
from execd.proc.task_meter import is_gvisor

OOM_FIRST_CHOICE = 1000


def block_signals() -> None:
    """All but CHLD, for this thread and the threads that it starts.

    Blocked and not ignored: "ignored" is inherited through exec, and each child would have to undo
    62 of them.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - {signal.SIGCHLD})


def capabilities(name: str) -> int:
    """One of the sets that /proc/self/status shows (``CapEff``, ``CapBnd``), a bit each
    (capabilities(7)). 0 if it shows none."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return next((int(line.split()[1], 16) for line in file if line.startswith(f"{name}:")), 0)


def drop_capabilities() -> None:
    """Leave only ROOT_CAPABILITIES in the bounding set, and nothing in the inheritable set.

    Exec gives a root command the rest. The calling process keeps its own capabilities until its own
    exec. Without SETPCAP the bounding set stays as it is; ``root_capabilities`` then says so.
    """
    clear_inheritable_capabilities()
    for number in numbers_of(capabilities("CapBnd")):
        if capability_name(number) not in ROOT_CAPABILITIES:
            try:
                drop_from_bounding_set(number)
            except OSError:
                return


def root_capabilities() -> list[str]:
    """The capabilities that exec gives a root command: names without CAP_, in the order of their
    numbers.

    Empty in a process that is not root: such a process starts no root command.
    """
    if os.geteuid() != 0:
        return []
    return [capability_name(number) for number in numbers_of(capabilities("CapBnd"))]


def open_oom_score() -> spawn.OomScore | None:
    """For ``spawn``; the descriptor is the caller's for life. Call it while this process is still
    dumpable.

    None: programs cannot be made the kernel's first choice. This process is it already, as in a pod
    of the QoS class BestEffort, and then the kernel goes by size alone; or the kernel is gVisor,
    which keeps the value and does nothing with it.
    """
    if is_gvisor():
        return None
    fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    value = int(os.read(fd, 16))
    if value < OOM_FIRST_CHOICE:
        return spawn.OomScore(fd, value)
    os.close(fd)
    return None


def descendants(seconds: float) -> list[process_tree.Process]:
    """What a scan finds in so long, the dead too. Blocking."""
    scan = process_tree.Scan()
    scan.advance(seconds)
    return process_tree.descendants(scan.processes, os.getpid())


def sweep(seconds: float, spared: frozenset[int] = frozenset()) -> tuple[int, ...]:
    """Kill all our descendants, but for those spared, until two scans in a row find none or the
    time is over. Blocking.

    Returns the pids that would not die.
    """
    deadline = time.monotonic() + seconds
    quiet = False
    while True:
        living = [process for process in descendants(seconds) if process.pid not in spared]
        for process in living:
            # Ours to signal: a child of ours keeps its pid until waited for, and deeper ones become
            # ours as their parents die.
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(process.pid, os.WNOHANG)
        if not living and quiet:
            return ()
        quiet = not living
        if time.monotonic() > deadline:
            return tuple(process.pid for process in living)
        time.sleep(0.005)
