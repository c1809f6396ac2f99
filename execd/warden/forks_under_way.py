"""Forks that are under way while the warden stops everything: a freeze ends only when the last of
these forks has ended.

Linux delivers a signal to a group, or to everything, to the child of a fork that is under way too:
the child gets the signal at birth (since Linux 4.19, ``copy_process`` in kernel/fork.c). Nobody
sees the child before: neither kill(2) nor ``/proc``. A fork of a process with 2 GiB of memory takes
20 ms, and where programs wait for the CPU any fork may take that long. So the rounds of SIGSTOP can
be over, and the scan complete, before the child is born, stopped. Nobody would continue that child.
SIGCONT to the parent's group does not reach the child: the kernel drops a SIGCONT without a
handler before the kernel looks for forks under way.

The rule: a thread that forks runs (R), or waits in the kernel (D). A thread that has got SIGSTOP
stops at the end of the fork. So the scan of a freeze reads the processes again that run, until each
has stopped, and then reads the newborn. The child of a vfork(2) stops before exec, and the parent
then waits in D for good; so D is worth a short wait only. That wait is for a fork that waits in D
for memory.

In gVisor a fork under way goes on, and the child is born running. Further rounds of SIGSTOP stop
the child (``fork_bombs``).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from execd.proc.process_tree import pids, read_process, read_thread_states

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.proc.process_tree import Process

RUNS, WAITS_IN_KERNEL = "R", "D"
# On a busy machine each process must get the CPU once before the process has stopped.
RUN_SECONDS, KERNEL_SECONDS = 1.0, 0.05
PAUSE_SECONDS = 0.001


def await_forks(processes: dict[int, Process], is_frozen: Callable[[Process], bool]) -> bool:
    """Wait until no process forks any more, and bring ``processes``, a complete scan, up to date.

    ``is_frozen``: whether a process has got SIGSTOP. Blocks for RUN_SECONDS at most, and on a quiet
    machine hardly at all. Returns whether every such process stands still.
    """
    began = time.monotonic()
    waiting = [pid for pid, process in processes.items() if is_frozen(process)]
    while waiting := [pid for pid in waiting if _may_fork(processes[pid], began)]:
        if time.monotonic() - began > RUN_SECONDS:
            break
        time.sleep(PAUSE_SECONDS)
        for pid in waiting:
            _read(pid, processes)
        waiting = [pid for pid in waiting if pid in processes]
    # Without any wait too: a fork may have ended between the listing and the read of the parent.
    for pid in pids():
        if pid not in processes:
            _read(pid, processes)
    return not waiting


def _read(pid: int, processes: dict[int, Process]) -> None:
    process = read_process(pid)
    if process is None:
        processes.pop(pid, None)
    else:
        processes[pid] = process


def _may_fork(process: Process, began: float) -> bool:
    if process.is_dead:
        return False
    states = {process.state}
    if process.n_threads > 1:
        states |= read_thread_states(process.pid)
    is_patient = time.monotonic() - began < KERNEL_SECONDS
    return RUNS in states or (is_patient and WAITS_IN_KERNEL in states)
