"""Resource limits: from the limits of an execution to setrlimit(2).

The module reads this process's own limits and, in gVisor, the number of tasks.
"""

from __future__ import annotations

import functools
import resource
from typing import TYPE_CHECKING

from execd.proc import kernel_traits, spawn
from execd.proc.process_caps import limits_beside

if TYPE_CHECKING:
    from execd.model import Limits

DEFAULT_OPEN_FILES = 65_536
# Linux refuses to pass descriptors while the user has more descriptors in flight than the sender's
# RLIMIT_NOFILE (unix(7)). The daemon passes the pipes of each program, often as the same user as
# user code. With a lower limit of their own, programs cannot bring the count up to the daemon's.
OPEN_FILES_SHARE = 0.75
CPU_KILL_AFTER_SECONDS = 1
# RLIMIT_NPROC counts all threads of the user, so the children of a command would starve the
# neighbours of the command. The warden counts each tree; the limit here only stops a bomb that
# forks faster than the warden scans. The kernel does not enforce the limit for root. In a PID
# namespace the user's threads are execd's own: 256 pipelines and 256 sessions with the threads of
# their libraries stay far below the limit. Elsewhere the count covers the whole machine.
PROCESSES_BACKSTOP, PROCESSES_BACKSTOP_IN_NAMESPACE = 4096, 16384


def _at_most(which: int, value: int) -> list[int]:
    """Return soft and hard limit at ``value``, or at this process's hard limit if that is lower.

    Raising a hard limit needs privileges.
    """
    hard = resource.getrlimit(which)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    return [which, value, value]


def open_files(limits: Limits) -> int:
    """Return the limit of open files: as asked, and at most OPEN_FILES_SHARE of the daemon's."""
    asked = limits.open_files or DEFAULT_OPEN_FILES
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY:
        asked = min(asked, int(hard * OPEN_FILES_SHARE))
    return asked


def rlimits(limits: Limits, *, in_namespace: bool = False) -> list[list[int]]:
    """Return [resource, soft, hard] for each limit that applies.

    ``in_namespace``: the program runs in a PID namespace of execd's own.
    """
    wanted = _static_rlimits(limits, in_namespace=in_namespace)
    counts_namespace = kernel_traits.find().limits_processes_of_namespace
    if not (in_namespace and limits.processes and counts_namespace):
        return wanted
    soft, hard = limits_beside(spawn.count_tasks(), limits.processes)
    which, _, hard = _at_most(resource.RLIMIT_NPROC, hard)
    return [[which, min(soft, hard), hard] if limit[0] == which else limit for limit in wanted]


@functools.lru_cache(maxsize=64)
def _static_rlimits(limits: Limits, *, in_namespace: bool) -> list[list[int]]:
    """Return the limits that do not depend on the present number of tasks."""
    files = open_files(limits)
    wanted = [
        _at_most(resource.RLIMIT_CORE, limits.core_bytes),
        [resource.RLIMIT_NOFILE, files, files],
        _at_most(
            resource.RLIMIT_NPROC,
            PROCESSES_BACKSTOP_IN_NAMESPACE if in_namespace else PROCESSES_BACKSTOP,
        ),
    ]
    if limits.cpu_seconds is not None:
        which, soft, hard = _at_most(resource.RLIMIT_CPU, limits.cpu_seconds)
        ceiling = resource.getrlimit(resource.RLIMIT_CPU)[1]
        if ceiling == resource.RLIM_INFINITY or hard + CPU_KILL_AFTER_SECONDS <= ceiling:
            hard += CPU_KILL_AFTER_SECONDS
        wanted.append([which, soft, hard])
    if limits.address_space_bytes is not None:
        wanted.append(_at_most(resource.RLIMIT_AS, limits.address_space_bytes))
    if limits.file_size_bytes is not None:
        wanted.append(_at_most(resource.RLIMIT_FSIZE, limits.file_size_bytes))
    return wanted
