"""In gVisor, the kernel's own limit of processes close above the limit of each tree (RLIMIT_NPROC, setrlimit(2)).

A freeze (``fork_bombs``) does not end while a bomb outgrows the rounds of signals. gVisor's vfork bombs do: a process that
waits in vfork(2) takes no signal, and the bomb has doubled before the next round. A bomb that the kernel refuses
more processes stands still, and every freeze ends.

RLIMIT_NPROC counts the tasks of a *user*, not of a tree. A tree that may have N tasks therefore gets

    tasks of all others, now  +  N  +  MARGIN_TASKS

where the margin pays for tasks of the same user that the warden does not see: the daemon's threads, and other
containers of the pod. When the others grow, the cap follows at the next scan, before half of the margin is used up. So the
cap never decides what an honest tree may have: the warden's count does, and says ``process_limit``.

Not natively: there a freeze ends without help, and RLIMIT_NPROC does not bind root (fork(2)).
"""

from __future__ import annotations

import contextlib
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from execd.proc.job import Job

MARGIN_TASKS = 256


def capped(limits: Sequence[Sequence[int]], cap: int) -> list[Sequence[int]]:
    """The limits of a program ([resource, soft, hard] each) with RLIMIT_NPROC at most ``cap``; 0: as they are."""
    if cap == 0:
        return list(limits)
    others = [limit for limit in limits if limit[0] != resource.RLIMIT_NPROC]
    highest = min((limit[2] for limit in limits if limit[0] == resource.RLIMIT_NPROC), default=cap)
    return [*others, (resource.RLIMIT_NPROC, min(cap, highest), min(cap, highest))]


def cap_for(n_others: int, max_processes: int) -> int:
    """The cap of a tree beside so many tasks that are not the tree's. 0: the tree has no limit."""
    return n_others + max_processes + MARGIN_TASKS if max_processes else 0


def follow(jobs: Collection[Job], n_tasks: int) -> None:
    """Raise the caps of the trees beside which tasks have grown. ``n_tasks``: of all, by the scan that told the jobs theirs."""
    for job in jobs:
        cap = cap_for(n_tasks - job.n_tasks, job.max_processes)
        if job.cap and cap - job.cap > MARGIN_TASKS // 2:
            apply(job, cap)


def apply(job: Job, cap: int) -> None:
    """Set the cap of every process of the tree. A process that is forked meanwhile keeps the former cap until the next time."""
    job.cap = cap
    for pid in job.members:
        # Ended meanwhile, or a set-uid program's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            resource.prlimit(pid, resource.RLIMIT_NPROC, (cap, cap))
