"""How many processes and threads there may be: one cheap system call instead of a listing of
``/proc``.

No single figure serves both kernels:

  gVisor   sysinfo(2) counts the tasks (processes and threads) of the caller's PID namespace.
           ``/proc/loadavg`` holds zeros.
  Linux    sysinfo(2) counts the tasks of the whole machine, but the last field of ``/proc/loadavg``
           is the pid that the caller's PID namespace gave out last (proc_loadavg(5)). Pids are
           given in order, to threads too, so the difference of two readings is the number of tasks
           created in between.

Listing ``/proc`` costs three times as much in gVisor, grows with the number of processes, and shows
no threads.
"""

from __future__ import annotations

import os

from execd.proc import spawn

LOADAVG_BYTES = 128


def is_gvisor() -> bool:
    """Whether this kernel is gVisor: its ``/proc/loadavg`` holds zeros, and a Linux gives out no
    pid 0."""
    with open("/proc/loadavg", "rb") as file:
        return int(file.read(LOADAVG_BYTES).split()[4]) == 0


class TaskMeter:
    """``at_most`` is an upper bound: the tasks that ``reset`` was told of and all that have been
    created since."""

    def __init__(self) -> None:
        # for life, as is the brake's use of it
        self._loadavg = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
        self._known = 0
        self._marked = self._last_pid = self._newest_pid()
        self.is_exact = self._last_pid == 0
        """``at_most`` counts the living tasks. Otherwise ended tasks count until the next
        ``reset``."""

    def at_most(self) -> int:
        """How many tasks there are at most, this process included."""
        if self.is_exact:
            return spawn.count_tasks()
        newest_pid = self._newest_pid()
        # Past the largest pid the kernel begins again with small ones.
        n_created = newest_pid - self._last_pid if newest_pid >= self._last_pid else newest_pid
        return self._known + n_created

    def position(self) -> int:
        """The figure that grows by one with each new task: of ``at_most``, or the newest pid."""
        return spawn.count_tasks() if self.is_exact else self._newest_pid()

    @property
    def loadavg_fd(self) -> int:
        """What ``position`` is read from; -1: sysinfo(2)."""
        return -1 if self.is_exact else self._loadavg

    def mark(self) -> None:
        """A scan begins."""
        self._marked = self._newest_pid()

    def reset(self, n_tasks: int) -> None:
        """The scan has found so many tasks. Tasks created since its ``mark`` may be missing from
        them."""
        self._known, self._last_pid = n_tasks, self._marked

    def _newest_pid(self) -> int:
        return int(os.pread(self._loadavg, LOADAVG_BYTES, 0).split()[4])
