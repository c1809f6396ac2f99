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
  * Before the first orphan of a command is reaped, the warden adds another dead orphan to the
    command's group. Both are reaped one after the other while nothing is stopped and the brake is
    paused, so nothing stops a process while the count passes zero. The orphan is made while the
    brake is still armed: a bomb must not grow meanwhile.
The danger that remains: a member that user code has stopped by itself at this very moment.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from execd.warden.job import Job


class Brakes(Protocol):
    """What may stop a process: see ``Supervisor``."""

    def pause_brake(self) -> bool: ...

    def resume_brake(self) -> None: ...


class HangupGuard:
    """Reaps children in an order that hangs up no group."""

    def __init__(
        self,
        leaders: Mapping[int, Job],
        brakes: Brakes,
        add_orphan: Callable[[int], int],
        reap: Callable[[int, float], bool],
    ) -> None:
        """``leaders``: by pid, the jobs whose leader is not reaped yet, kept up to date by the
        warden. ``add_orphan``: see ``spawn.add_orphan``. ``reap``: see ``Warden``."""
        self._leaders = leaders
        self._brakes = brakes
        self._add_orphan = add_orphan
        self._reap = reap
        self.must_wait = False
        """Whether the last call of ``reap_next`` found a child that must not be reaped yet."""

    def reap_next(self, woken_at: float) -> bool:
        """Reap a child that has ended or stopped. Returns whether there was such a child, and no
        need to wait. ``woken_at``: see ``Warden``."""
        self.must_wait = False
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        if found is None:
            return False
        pid = found.si_pid
        if pid not in self._leaders:
            job = self._leaders.get(os.getpgid(pid))
            # A tree that is being killed has no use for the guard.
            if job is not None and job.kill is None and not job.is_guarded_from_hangups:
                return self._reap_first_orphan(job, pid, woken_at)
        return self._reap(pid, woken_at)

    def _reap_first_orphan(self, job: Job, pid: int, woken_at: float) -> bool:
        if job.first_orphans is None:
            try:
                job.first_orphans = (pid, self._add_orphan(job.pid))
            except OSError:  # no room for a process, or a session of its own, as for a terminal
                return self._reap(pid, woken_at)
        is_still = self._brakes.pause_brake()
        if is_still:
            for orphan in job.first_orphans:
                self._reap(orphan, woken_at)
            job.first_orphans, job.is_guarded_from_hangups = None, True
        self._brakes.resume_brake()
        self.must_wait = not is_still
        return is_still
