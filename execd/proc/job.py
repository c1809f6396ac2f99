"""One tree in the warden's book: who is in it, what is being done to it, what it has used."""

from __future__ import annotations

import math
import os
import resource
from typing import TYPE_CHECKING

from execd.proc.killing import Phase
from execd.proc.messages import Spawn

if TYPE_CHECKING:
    from collections.abc import Collection

    from execd.proc.killing import TreeKill
    from execd.proc.memory import Account
    from execd.proc.messages import Adopt
    from execd.proc.tree import Process

CPU_GRACE_SECONDS = 1.0


class Job:
    """One tree. Implements ``tree.Job``. Forgotten when its leader is reaped and a scan finds no member."""

    def __init__(
        self, request: Spawn | Adopt, pid: int, start: int, pipes: frozenset[str], account: Account, *, spawned_at: float
    ) -> None:
        self.tag = request.tag
        self.pid = pid
        self.start = start
        self.marker = os.fsencode(request.marker)
        self.pipes = pipes
        self.members: dict[int, int] = {pid: start}
        self.max_processes = request.processes
        self.max_cpu_seconds = max_cpu_seconds(request) if isinstance(request, Spawn) else math.inf
        """Of each process."""
        self.rests = request.rests
        self.spawned_at = spawned_at
        self.reaped_at: float | None = None
        self.kill: TreeKill | None = None
        self.account = account
        self.processes = 1
        self.has_stopped = False
        """Some process of it was stopped (SIGSTOP and the like) at the last scan."""
        self.signals: dict[tuple[int, str], float] = {}
        """(number, scope) -> since when it waits for a scan. Asked for twice meanwhile it is sent once, as any pending signal."""

    def look(self, members: Collection[Process], before: dict[int, int]) -> None:
        """Bring the figures up to date. ``before``: the members of the scan before."""
        self.processes += sum(1 for pid, start in self.members.items() - before.items() if (pid, start) != (self.pid, self.start))
        self.has_stopped = any(process.state == "T" for process in members)
        self.account.scanned(
            sum(process.rss_bytes for process in members),
            ending=self.kill is not None and self.kill.phase is not Phase.TERMINATING,
        )


def max_cpu_seconds(request: Spawn) -> float:
    """A second after the kernel should have ended a process. gVisor knows RLIMIT_CPU only of a process that it was set for, and not of
    those it forks: most of what a shell runs."""
    return next((hard for which, _, hard in request.limits if which == resource.RLIMIT_CPU), math.inf) + CPU_GRACE_SECONDS
