"""Keep gVisor from hanging up a command whose processes a freeze has stopped.

gVisor 20240729 counts, for each process group, the members with a parent in another group of the
session. When a member of a group of count zero is reaped while another member is stopped, the whole
group gets SIGHUP and SIGCONT. (Linux sends both only at the moment when a group becomes an orphan:
setpgid(2).) A command's group begins with count one: the leader, a child of the warden. An orphan
of the group does not enter the count when the warden becomes the parent, but leaves the count when
the warden reaps the orphan:

    reaped orphans   0   1   2 and more
    count            1   0   below zero: an unsigned number, so four billion

So a command is in danger between the first orphan and the second. Without this module an honest
program with a single orphan ended by SIGHUP beside a fork bomb, in 6 of 21 runs. Two rules:
  * No orphan is reaped while a thaw holds processes back (``Supervisor.holds_groups``).
  * Before the first orphan of a command is reaped, the warden adds an orphan to the command's
    group. All of them are reaped one after the other, and the count passes zero at once.
The danger that remains: a member that user code has stopped by itself at this very moment.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from execd.proc import spawn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from execd.warden.job import Job


class HangupGuard:
    """Chooses the next child to reap."""

    def __init__(self, leaders: Mapping[int, Job]) -> None:
        """``leaders``: by pid, the jobs whose leader is not reaped yet, kept up to date by the
        warden."""
        self._leaders = leaders

    def next_ended_child(self) -> int:
        """Return the pid of a child that has ended or stopped, for the caller to reap; 0: there is
        none."""
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return 0
        if found is None:
            return 0
        if found.si_pid not in self._leaders:
            job = self._leaders.get(os.getpgid(found.si_pid))
            if job is not None and not job.is_guarded_from_hangups:
                job.is_guarded_from_hangups = True
                with contextlib.suppress(OSError):  # no room for a process: the job goes unguarded
                    spawn.add_orphan(job.pid)
        return found.si_pid
