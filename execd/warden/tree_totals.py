"""Figures of all trees together, for the daemon's metrics: memory, processes and CPU time.

The figures are those of a scan, and are written after each scan. A scan for this purpose would cost
more than the figures are worth. Each tree's end is followed by a scan.

CPU time is the sum of two figures. The kernel counts the time of the children that the warden has
reaped, with all that these children waited for (getrusage(2), RUSAGE_CHILDREN). The scan has the
time of the living processes. A process that ended and was reaped during the scan is in both figures
until the next scan. So the sum may be too large by the time of such processes, but a sum once
written never falls: a counter that falls would look like a new warden.
"""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

from execd.proc import totals_file
from execd.proc.totals_file import Totals

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from execd.proc.process_tree import Process
    from execd.warden.job import Job


class TreeTotals:
    """Writes the totals, once ``open`` has given a file."""

    def __init__(self) -> None:
        self.runtime_bytes = 0
        """See ``Totals``."""
        self._fd = -1
        self._cpu_seconds = 0.0

    def open(self, fd: int) -> None:
        """Take over the descriptor of the file. Before the first scan there are no trees."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self.write((), {})

    def write(self, jobs: Collection[Job], processes: Mapping[int, Process]) -> None:
        """Write the figures after a scan. ``processes``: of the scan, by pid."""
        if self._fd >= 0:
            totals_file.write(self._fd, self.sum(jobs, processes))

    def sum(self, jobs: Collection[Job], processes: Mapping[int, Process]) -> Totals:
        zygote_bytes = sessions_bytes = commands_bytes = n_processes = 0
        living_seconds = 0.0
        for job in jobs:
            size_bytes = job.account.tree_bytes
            if job.is_idle:
                zygote_bytes += size_bytes
            elif job.is_adopted:
                sessions_bytes += size_bytes
            else:
                commands_bytes += size_bytes
            # A job that began after the scan has a leader that the scan did not see.
            for process in filter(None, map(processes.get, job.members)):
                n_processes += 1
                living_seconds += process.user_seconds + process.system_seconds
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._cpu_seconds = max(self._cpu_seconds, ended.ru_utime + ended.ru_stime + living_seconds)
        return Totals(
            zygote_bytes,
            sessions_bytes,
            commands_bytes,
            n_processes,
            self.runtime_bytes,
            self._cpu_seconds,
        )
