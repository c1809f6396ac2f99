"""An estimate of the memory that gVisor itself takes: the sentry's heap, and the host's processes
and page tables behind the processes of the sandbox. Pure.

This memory counts for the pod's cgroup, and no file inside of the sandbox shows the memory. So the
estimate follows the number of processes, and never falls, because the sentry keeps the memory of
ended processes. docs/operating.md has the measurements behind the figures, which are rounded up.
"""

from __future__ import annotations

BASE_BYTES = 32 << 20
# For each process or thread that lived at the same time, at the moment with the most.
TASK_BYTES = 384 << 10
# The sentry's memory grows by LEFT_BYTES for each process that has begun and ended, up to a number
# of processes. Later processes use the same memory: 2,000 commands took 160 MiB, 2,000 more 4 MiB.
# The release of 2024 keeps the last 1,000 names that were looked up in /proc, and with the name of
# an ended process all that belonged to it. So the first file that a scan reads of a process
# makes the sentry grow (docs/gvisor.md).
LEFT_BYTES = 160 << 10
LEAVING_PROCESSES, LEAVING_PROCESSES_OF_2024 = 100, 1100
RELEASE_OF_2024 = "4.4.0"
"""What uname(2) tells in releases of 2024; later releases tell another version of Linux."""


class SentryMemory:
    """The estimate, from the figures of counts and scans."""

    def __init__(self, kernel_release: str) -> None:
        """``kernel_release``: of uname(2)."""
        self._leaving = (
            LEAVING_PROCESSES_OF_2024 if kernel_release == RELEASE_OF_2024 else LEAVING_PROCESSES
        )
        self._most_tasks = self._newest_pid = 0

    def record_count(self, n_tasks: int) -> None:
        self._most_tasks = max(self._most_tasks, n_tasks)

    def record_pid(self, newest_pid: int) -> None:
        """Take note of the newest pid that a scan has found. The kernel assigns pids in order, to
        threads too, and begins anew only long after the last process that leaves something."""
        self._newest_pid = max(self._newest_pid, newest_pid)

    @property
    def used_bytes(self) -> int:
        n_left = min(self._newest_pid, self._leaving)
        return BASE_BYTES + self._most_tasks * TASK_BYTES + n_left * LEFT_BYTES
