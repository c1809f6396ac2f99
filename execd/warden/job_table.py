"""The warden's jobs by tag, and the lowest limit of processes among them.

The limit is asked at each start and at each count of tasks, fifty times a second. So the table
keeps the limit, and a question costs the same for one job as for hundreds.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from execd.warden.job import Job


class JobTable(dict[int, "Job"]):
    """Jobs by tag. Change the table by ``add``, ``drop`` and ``activate`` only."""

    def __init__(self) -> None:
        super().__init__()
        self._limits: Counter[int] = Counter()
        """How many jobs that run user code have each limit."""
        self.lowest_process_limit = 0
        """The lowest limit of processes among jobs that run user code; 0 if no job has a limit."""

    def add(self, job: Job) -> None:
        assert job.tag not in self
        self[job.tag] = job
        if not job.is_idle:
            self._count(job, 1)

    def activate(self, job: Job) -> None:
        """The job begins to run user code: limits apply from now on."""
        assert self[job.tag] is job
        if job.is_idle:
            job.is_idle = False
            self._count(job, 1)

    def remove(self, job: Job) -> None:
        del self[job.tag]
        if not job.is_idle:
            self._count(job, -1)

    def _count(self, job: Job, change: int) -> None:
        limit = job.max_processes
        if not limit:
            return
        self._limits[limit] += change
        assert self._limits[limit] >= 0
        if not self._limits[limit]:
            del self._limits[limit]
        self.lowest_process_limit = min(self._limits, default=0)
