"""An upper bound of the number of processes and threads: a cheap system call instead of a listing
of ``/proc``.

No single figure serves both kernels:

  gVisor   sysinfo(2) counts the tasks (processes and threads) of the caller's PID namespace.
           ``/proc/loadavg`` holds zeros.
  Linux    sysinfo(2) counts the tasks of the whole machine. But the last field of ``/proc/loadavg``
           is the latest pid of the caller's PID namespace (proc_loadavg(5)). The kernel assigns
           pids in order, to threads too, so the difference of two readings is the number of tasks
           created in between.

A listing of ``/proc`` costs three times as much in gVisor, grows with the number of processes, and
shows no threads.
"""

from __future__ import annotations

import os

from execd.proc import spawn
from execd.proc.kernel_traits import LOADAVG_BYTES


class TaskMeter:
    """Bounds the number of tasks from above.

    ``max_tasks`` counts the tasks given to ``reset`` and all tasks created since.
    """

    def __init__(self) -> None:
        # open for life, because the brake uses the descriptor
        self._loadavg = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
        self._known = 0
        self._marked = self._last_pid = self._newest_pid()
        self.is_exact = self._last_pid == 0
        """``max_tasks`` counts the living tasks. Otherwise ended tasks count until the next
        ``reset``."""

    def max_tasks(self) -> int:
        """Return an upper bound of the number of tasks, this process included."""
        return self.read()[0]

    def read(self) -> tuple[int, int]:
        """Return ``max_tasks``, and a figure that grows by 1 with each new task: the same number,
        or the newest pid."""
        if self.is_exact:
            n_tasks = spawn.count_tasks()
            return n_tasks, n_tasks
        newest_pid = self._newest_pid()
        return self._known + self._created_up_to(newest_pid), newest_pid

    def forget(self, n_tasks: int, newest_pid: int) -> None:
        """Count ``n_tasks`` tasks no longer: the tasks have ended and have left nothing.

        ``newest_pid``: the newest pid when the last of the tasks was found to have ended. Without
        this call, a thousand programs between two scans would look like a thousand tasks.
        """
        assert not self.is_exact, "an exact meter counts no ended tasks"
        self._known += self._created_up_to(newest_pid) - n_tasks
        self._last_pid = newest_pid

    def _created_up_to(self, newest_pid: int) -> int:
        # After the largest pid the kernel begins again with small pids.
        return newest_pid - self._last_pid if newest_pid >= self._last_pid else newest_pid

    @property
    def loadavg_fd(self) -> int:
        """The descriptor for a reader of the newest pid; -1: sysinfo(2) counts."""
        return -1 if self.is_exact else self._loadavg

    def mark(self) -> None:
        """Note the beginning of a scan."""
        self._marked = self._newest_pid()

    def reset(self, n_tasks: int) -> None:
        """Take over the result of a scan: ``n_tasks`` tasks.

        The scan may have missed tasks created since its ``mark``.
        """
        self._known, self._last_pid = n_tasks, self._marked

    def _newest_pid(self) -> int:
        return int(os.pread(self._loadavg, LOADAVG_BYTES, 0).split()[4])
