"""An estimate of the memory that gVisor itself takes: the sentry's heap, and the host's processes
and page tables behind the processes of the sandbox. Pure.

This memory counts for the pod's cgroup, and no file inside of the sandbox shows it. So the estimate
goes by what makes it grow. The sentry keeps what it once took. docs/operating.md has the
measurements behind the figures, which are rounded up.
"""

from __future__ import annotations

BASE_BYTES = 32 << 20
# For each process or thread that lived at the same time, at the moment with the most.
TASK_BYTES = 384 << 10
# What each process leaves for good in releases of 2024. In later releases only the first hundred
# leave something.
LEFT_BYTES = 160 << 10
LEAVING_PROCESSES = 100
LEAKING_RELEASE = "4.4.0"
"""What uname(2) tells in releases of 2024; later releases tell another version of Linux."""
# A pid so far below the newest begins a new round of numbers.
ROUND_PIDS = 1 << 14


class SentryMemory:
    """The estimate, from the figures of counts and scans."""

    def __init__(self, kernel_release: str) -> None:
        """``kernel_release``: of uname(2)."""
        self._leaks = kernel_release == LEAKING_RELEASE
        self._most_tasks = self._newest_pid = self._n_begun = 0

    def record_count(self, n_tasks: int) -> None:
        self._most_tasks = max(self._most_tasks, n_tasks)

    def record_pid(self, newest_pid: int) -> None:
        """Take note of the newest pid that a scan has found. The kernel assigns pids in order, to
        threads too."""
        if newest_pid < self._newest_pid - ROUND_PIDS:
            self._newest_pid = 0
        self._n_begun += max(newest_pid - self._newest_pid, 0)
        self._newest_pid = max(newest_pid, self._newest_pid)

    @property
    def used_bytes(self) -> int:
        n_left = self._n_begun if self._leaks else min(self._n_begun, LEAVING_PROCESSES)
        return BASE_BYTES + self._most_tasks * TASK_BYTES + n_left * LEFT_BYTES
