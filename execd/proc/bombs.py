"""Ending fork bombs: trees that fork faster than the warden looks at them and kills what it has seen.

Two things make them win against a scan with a KILL to whoever it found.

  * To gVisor KILL to a group is not one step: a fork under way goes on, and the child lives. With a bomb, whose processes are nearly all
    in the middle of one, a scan between two KILLs is too slow to win: it went on for a minute, to thousands.
  * A bomb of a few hundred processes keeps gVisor so busy that each system call of ours waits half a second, and a scan has three
    for each process: it would be outgrown for minutes.

So the leaders' groups are stopped while a scan looks at what may be a bomb, and when it is known for one its groups get KILL again
and again until they are empty.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from execd.proc.job import lowest_process_limit, send_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from execd.proc.job import Job
    from execd.proc.tree import Scan

# More processes than this for each job, and one tree's limit on top, are taken for a bomb; or a scan for a limit that lasts so long.
USUAL_PROCESSES = 8
SCAN_PATIENCE_SECONDS = 0.1
# A kill that finds more processes than this is that of a bomb. The loop does nothing else for so long.
BOMB_PROCESSES, BOMB_SECONDS = 32, 0.5


class Bombs:
    """Told of each scan by the warden's loop. ``jobs`` are the warden's; ``reap`` waits for what has ended."""

    def __init__(self, jobs: Mapping[int, Job], reap: Callable[[], None]) -> None:
        self.groups: set[int] = set()
        """To be killed at every turn of the loop."""
        self._jobs = jobs
        self._reap = reap
        self._frozen: list[Job] = []

    def look(self, scan: Scan, now: float) -> None:
        """Before each slice of a scan: stop the leaders' groups if it seems to meet a bomb, until it has been taken (``thaw``).

        Stopping is one call for each job, and can be undone; it is not done to a group in which somebody is stopped already. Shells
        see nothing of it: their job control is about other groups.
        """
        if not self._frozen:
            if not self._looks_like_one(scan, now):
                return
            self._frozen = [job for job in self._jobs.values() if not job.has_stopped]
        # At every turn until the scan is complete: in gVisor a fork under way goes on, and its child has not been stopped.
        for job in self._frozen:
            if job.reaped_at is None:
                send_signal(-job.pid, signal.SIGSTOP)

    def _looks_like_one(self, scan: Scan, now: float) -> bool:
        limit = lowest_process_limit(self._jobs.values())
        more_than_usual = scan.count > limit + USUAL_PROCESSES * len(self._jobs)
        return 0 < limit < scan.count and (more_than_usual or now > scan.began + SCAN_PATIENCE_SECONDS)

    def thaw(self) -> None:
        """The scan has been taken."""
        frozen, self._frozen = self._frozen, []
        for job in frozen:
            if job.reaped_at is None:
                send_signal(-job.pid, signal.SIGCONT)

    def kill(self, groups: set[int]) -> None:
        """KILL to each of them again and again until they are empty, or for half a second; after that at every turn."""
        deadline = time.monotonic() + BOMB_SECONDS
        self.groups |= groups
        while self.groups and time.monotonic() < deadline:
            kill_groups(self.groups)
            self._reap()  # a group lasts until its dead are reaped


def kill_groups(groups: set[int]) -> None:
    """KILL to each; those that are empty are taken out. One that lasts between two calls cannot become another's meanwhile."""
    for group in list(groups):
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:
            groups.discard(group)
