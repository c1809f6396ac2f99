"""The startup watch: finds young programs that wait rather than compute.

The daemon bounds how many programs compute in their first moments, so the daemon starts the next
command when the watch reports a program.

A check may be wrong. A wrong answer costs little: the daemon starts the next command a little early
or late. So a check reads no directory of /proc, which has an entry for each process of the sandbox.
A check reads the leader and the few pids that follow the leader's, where the first children and
threads of a young program are (Linux numbers threads like processes), and leaves out pids of
another process group.
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

# The first check comes after twice the time that the spawn took, since the spawn tells a fast
# kernel from a slow kernel. Each further check comes at twice the age of the check before. After
# YOUNG_SECONDS the program counts as started, and the daemon needs no report.
LEAST_AGE_SECONDS, YOUNG_SECONDS = 0.002, 4.0
# A turn of the warden's loop must be short: a check takes up to 1 ms in gVisor.
CHECKS_PER_TURN = 8

NEXT_PIDS = 12
# proc_pid_stat(5): running, or in a wait that no signal ends (for the disk or a vfork).
BUSY_STATES = frozenset("RD")
# The state in /proc is the main thread's. A program that computes in further threads has used at
# least this part of its age as CPU time.
BUSY_PART = 0.1


class StartupWatch:
    """Holds young programs until a check finds them waiting, or until they are no longer young."""

    def __init__(self) -> None:
        self._checks: list[tuple[float, int, Job]] = []
        """A heap of (when the check is due, the tag, the job). Tags are unique, so jobs are never
        compared."""

    @property
    def due(self) -> float:
        """When the next check is due, on the monotonic clock; infinite if there is none."""
        return self._checks[0][0] if self._checks else math.inf

    def add(self, job: Job, *, spawn_seconds: float) -> None:
        heapq.heappush(
            self._checks, (job.spawned_at + max(2 * spawn_seconds, LEAST_AGE_SECONDS), job.tag, job)
        )

    def check_due(self, now: float, may_read: Callable[[], bool]) -> list[int]:
        """Check the programs that are due, while ``may_read`` allows reading /proc.

        Returns the tags of programs that wait. Each tag is returned once.
        """
        found = []
        for _ in range(CHECKS_PER_TURN):
            if self.due > now:
                break
            _, tag, job = self._checks[0]
            age = now - job.spawned_at
            assert age > 0, "a check is due after the spawn"
            has_ended = job.reaped_at is not None or age > YOUNG_SECONDS
            if not has_ended and not may_read():
                # Later, or the loop would come back at once until the next count.
                heapq.heapreplace(self._checks, (now + LEAST_AGE_SECONDS, tag, job))
                break
            heapq.heappop(self._checks)
            if has_ended:
                continue
            if is_waiting(job.pid, age):
                found.append(tag)
            else:
                heapq.heappush(self._checks, (now + age, tag, job))
        return found


def is_waiting(leader: int, age_seconds: float) -> bool:
    """Whether the leader waits, and so does each process of the group among the next pids."""
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
    """The process group of ``pid``; 0 if there is no such process."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
