"""The mark of a process: which tree the process belongs to, and which cell began the process.

The mark is the soft limit RLIMIT_RSS. Linux and gVisor give the limit to each child, keep the limit
at exec, and act on the limit in no way (setrlimit(2)). So a program that starts a new session,
clears its environment, closes its descriptors and loses its parent keeps its mark. Only a program
that sets RLIMIT_RSS by itself is without a mark.

The number is larger than any memory, so a program that reads its limit is not held up.

  bit 62      set: the number is a mark
  bits 44-61  the daemon: an execd inside of a sandbox of execd has trees of its own
  bits 20-43  the tree's tag
  bits 0-19   the cell in a session, 0 for commands

The numbers begin anew after the last one. That does no harm: a tree is no older than its members,
and the marks of cells are compared within one session.

Standard library only; imported by the daemon and the warden.
"""

from __future__ import annotations

import contextlib
import os
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MARKED = 1 << 62
CELL_BITS, TAG_BITS, DAEMON_BITS = 20, 24, 18
UNLIMITED = 2**64 - 1
"""RLIM_INFINITY of the C library, and in Python -1."""
LIMITS_BYTES = 4096


def new_daemon() -> int:
    """Return the part of the marks that tells this daemon's trees from another daemon's."""
    chosen = int.from_bytes(os.urandom(4), "little") % (1 << DAEMON_BITS)
    return MARKED | chosen << (CELL_BITS + TAG_BITS)


def of_tree(daemon: int, tag: int) -> int:
    """Return the mark of a tree. ``daemon``: a ``new_daemon``."""
    return daemon | (tag % (1 << TAG_BITS)) << CELL_BITS


def of_cell(tree: int, number: int) -> int:
    """Return the mark of a session's cell. ``tree``: the mark of the session's worker."""
    return tree | number % (1 << CELL_BITS)


def is_possible() -> bool:
    """Whether this process may give marks: a hard limit of the operator's leaves no room."""
    return resource.getrlimit(resource.RLIMIT_RSS)[1] == resource.RLIM_INFINITY


def limit(mark: int | None) -> list[int]:
    """Return the limit of a started program: [resource, soft, hard]. None: no mark."""
    return [resource.RLIMIT_RSS, UNLIMITED if mark is None else mark, UNLIMITED]


def of_limits(limits: Iterable[Sequence[int]]) -> int:
    """Return the mark among the limits of a started program; 0: none."""
    return next(
        (soft for which, soft, _ in limits if which == resource.RLIMIT_RSS and _is_mark(soft)), 0
    )


def of_process(pid: int) -> int:
    """Return the mark of a process; 0: none, or the process has ended."""
    try:
        soft = resource.prlimit(pid, resource.RLIMIT_RSS)[0]
    except PermissionError:  # a process of another user
        soft = _read_limits(pid)
    except OSError:
        return 0
    return soft if _is_mark(soft) else 0


def is_of_tree(mark: int, tree: int) -> bool:
    """Whether the mark is the tree's, or of a cell in the tree. ``tree`` 0: the tree has none."""
    return tree != 0 and mark >> CELL_BITS == tree >> CELL_BITS


def _is_mark(soft: int) -> bool:
    return MARKED <= soft < 2 * MARKED


def _read_limits(pid: int) -> int:
    """Return the soft limit by proc_pid_limits(5), which any user may read; 0: unlimited."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/limits", "rb") as file:
        for line in file.read(LIMITS_BYTES).splitlines():
            if line.startswith(b"Max resident set") and (soft := line.split()[3]).isdigit():
                return int(soft)
    return 0
