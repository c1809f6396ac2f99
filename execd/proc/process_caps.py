"""In gVisor, the kernel's own limit of processes close above the limit of each tree (RLIMIT_NPROC,
setrlimit(2)).

A freeze (``fork_bombs``) does not end while a bomb outgrows the rounds of signals. gVisor's vfork
bombs do: a process that waits in vfork(2) takes no signal, and the bomb has doubled before the next
round. A bomb that the kernel refuses more processes stands still, and every freeze ends: with 800
tasks within 4 s, with 2,000 never.

RLIMIT_NPROC counts the tasks of a *user*, not of a tree. So a tree that may have N tasks gets,
beside T tasks at its start,

    T + N + MARGIN_TASKS       as its soft limit,
    T + N + MOST_MARGIN_TASKS  as its hard limit.

The margin pays for what others start later, and for other containers of the pod. When the others
grow by half of the margin, the warden raises the soft limit (``follow``), so the warden's count
decides what an honest tree may have. The hard limit, which no tree can raise, is above 256
pipelines and 256 sessions. (A margin that only the warden could raise would be better, but
prlimit(2) raises no hard limit without a capability in gVisor's root user namespace.)

Not natively: there a freeze ends without help, and RLIMIT_NPROC does not bind root (fork(2)).
"""

from __future__ import annotations

import contextlib
import resource
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

MARGIN_TASKS, MOST_MARGIN_TASKS = 256, 1536


class LimitedTree(Protocol):
    """A tree of processes as ``follow`` sees the tree: of the warden's jobs."""

    n_others: int
    """Tasks of others when the limit was last set."""

    @property
    def max_processes(self) -> int: ...

    @property
    def n_tasks(self) -> int: ...

    @property
    def members(self) -> Iterable[int]: ...


def limits_beside(n_tasks: int, max_processes: int) -> tuple[int, int]:
    """Soft and hard limit of a tree that begins beside so many tasks."""
    return n_tasks + max_processes + MARGIN_TASKS, n_tasks + max_processes + MOST_MARGIN_TASKS


def follow(trees: Iterable[LimitedTree], n_tasks: int) -> None:
    """Raise the soft limits of trees beside which tasks have grown. ``n_tasks``: of all, by the
    scan that told each tree its own."""
    for tree in trees:
        n_others = n_tasks - tree.n_tasks
        if tree.max_processes and n_others > tree.n_others + MARGIN_TASKS // 2:
            tree.n_others = n_others
            for pid in tree.members:
                # Ended meanwhile, or a set-uid program's.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    _raise(pid, tree.max_processes, n_others)


def _raise(pid: int, max_processes: int, n_others: int) -> None:
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NPROC)
    wanted, _ = limits_beside(n_others, max_processes)
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    # A program that has a lower one has chosen that itself.
    if max_processes + MARGIN_TASKS <= soft < wanted:
        resource.prlimit(pid, resource.RLIMIT_NPROC, (wanted, hard))
