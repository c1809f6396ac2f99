"""In gVisor, the kernel's own limit of processes, close above the limit of each tree (RLIMIT_NPROC,
setrlimit(2)).

A freeze (``fork_bombs``) does not end while a bomb outgrows the rounds of signals. A vfork bomb in
gVisor does outgrow the rounds: a process that waits in vfork(2) takes no signal, and the bomb has
doubled before the next round. A bomb without further processes from the kernel stands still, and
every freeze ends: with 800 tasks within 4 s, with 2,000 never.

RLIMIT_NPROC counts the tasks of a *user*, not of a tree. So a tree that may have N tasks gets,
beside T tasks at its start,

    T + N + MARGIN_TASKS       as its soft limit,
    T + N + MOST_MARGIN_TASKS  as its hard limit.

The margin pays for later tasks outside the tree and for containers of the same pod. When the tasks
outside grow by half of the margin, the warden raises the soft limit, so the warden's count decides
how many processes an honest tree may have. The hard limit, out of reach for the tree, is above 256
pipelines and 256 sessions. (Better would be a margin that only the warden can raise, but in
gVisor's root user namespace prlimit(2) raises no hard limit without a capability.)

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
    """The part of a warden's job that ``raise_limits`` needs."""

    n_others: int
    """Tasks outside the tree when the limit was last set."""

    @property
    def max_processes(self) -> int: ...

    @property
    def n_tasks(self) -> int: ...

    @property
    def members(self) -> Iterable[int]: ...


def limits_beside(n_tasks: int, max_processes: int) -> tuple[int, int]:
    """Return soft and hard limit of a tree that begins beside ``n_tasks`` tasks."""
    return n_tasks + max_processes + MARGIN_TASKS, n_tasks + max_processes + MOST_MARGIN_TASKS


def raise_limits(trees: Iterable[LimitedTree], n_tasks: int) -> None:
    """Raise the soft limits of trees where the tasks outside the tree have grown.

    ``n_tasks``: all tasks in the scan that also counted each tree's own tasks.
    """
    for tree in trees:
        n_others = n_tasks - tree.n_tasks
        if tree.max_processes and n_others > tree.n_others + MARGIN_TASKS // 2:
            tree.n_others = n_others
            for pid in tree.members:
                # The process has ended, or runs a set-uid program.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    _raise(pid, tree.max_processes, n_others)


def _raise(pid: int, max_processes: int, n_others: int) -> None:
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NPROC)
    wanted, _ = limits_beside(n_others, max_processes)
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    # A lower soft limit is the choice of the program itself.
    if max_processes + MARGIN_TASKS <= soft < wanted:
        resource.prlimit(pid, resource.RLIMIT_NPROC, (wanted, hard))
