"""Which young programs wait rather than compute: the daemon bounds how many compute in their first
moments.

A look may be wrong. A wrong answer costs little: the daemon starts the next command a little early
or late. So a look reads no directory of /proc, which has an entry for each process of the sandbox.
It asks for the few pids that follow the leader's, where the first children and threads of a young
program are (Linux knows a thread by its number, too), and leaves out those of another process
group.
"""

from __future__ import annotations

import heapq
import math
import os
from typing import TYPE_CHECKING

from execd.proc import process_tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.warden.job import Job

# The first look comes at twice the time that the spawn took, which tells a fast kernel from a slow
# one; each further look at twice the age of the one before. After YOUNG_SECONDS the start is over
# by its age, and nobody wants to know.
LEAST_AGE_SECONDS, YOUNG_SECONDS = 0.002, 4.0
# A step of the warden is short: a look takes up to a millisecond in gVisor.
CHECKS_PER_TURN = 8

NEXT_PIDS = 12
# proc_pid_stat(5): running, or in a wait that no signal ends (the disk, a vfork).
BUSY_STATES = frozenset("RD")
# The state is the main thread's. A program whose other threads compute has used this part of its
# life at the least.
BUSY_PART = 0.1


class StartupWatch:
    """Young programs, until they are found at rest once, or are no longer young."""

    def __init__(self) -> None:
        self._checks: list[tuple[float, int, Job]] = []
        """A heap: when a look is due, the tag (unique, so jobs are not compared), the job."""

    @property
    def due(self) -> float:
        """When the next look is due, on the monotonic clock."""
        return self._checks[0][0] if self._checks else math.inf

    def add(self, job: Job, *, spawn_seconds: float) -> None:
        heapq.heappush(
            self._checks, (job.spawned_at + max(2 * spawn_seconds, LEAST_AGE_SECONDS), job.tag, job)
        )

    def check_due(self, now: float, may_read: Callable[[], bool]) -> list[int]:
        """Do what is due, if ``may_read`` allows each look. Returns the tags of programs found at
        rest."""
        found = []
        for _ in range(CHECKS_PER_TURN):
            if self.due > now or not may_read():
                break
            _, tag, job = heapq.heappop(self._checks)
            age = now - job.spawned_at
            if job.reaped_at is not None or age > YOUNG_SECONDS:
                continue
            if is_waiting(job.pid, age):
                found.append(tag)
            else:
                heapq.heappush(self._checks, (now + age, tag, job))
        return found


def is_waiting(leader: int, age_seconds: float) -> bool:
    """Whether neither the leader nor any process of its group that is easily found computes."""
    if _is_busy(leader, age_seconds):
        return False
    following = range(leader + 1, leader + 1 + NEXT_PIDS)
    return not any(_group_of(pid) == leader and _is_busy(pid, age_seconds) for pid in following)


def _is_busy(pid: int, age_seconds: float) -> bool:
    process = process_tree.read_process(pid)
    if process is None:
        return False
    return process.state in BUSY_STATES or (
        process.n_threads > 1 and process.cpu_seconds > age_seconds * BUSY_PART
    )


def _group_of(pid: int) -> int:
    """0 if there is no such process."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
