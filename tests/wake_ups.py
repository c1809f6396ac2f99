"""Wake-ups: how often the threads of some processes get the CPU after a wait.

The kernel counts the waits of each thread (voluntary_ctxt_switches, proc_pid_status(5)). A thread
that sleeps all the time adds none.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIELD = "voluntary_ctxt_switches:"


class Thread(NamedTuple):
    pid: int
    tid: int


def count_waits(pid: int) -> dict[Thread, int]:
    """Return the number of waits so far, by thread, of the process and of all processes below."""
    process = psutil.Process(pid)
    return {
        thread: waits
        for each in [process, *process.children(recursive=True)]
        for thread, waits in _threads(each.pid)
    }


def _threads(pid: int) -> Iterator[tuple[Thread, int]]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
        for folder in Path(f"/proc/{pid}/task").iterdir():
            for line in (folder / "status").read_text().splitlines():
                if line.startswith(_FIELD):
                    yield Thread(pid, int(folder.name)), int(line[len(_FIELD) :])


def new_waits(before: dict[Thread, int], after: dict[Thread, int]) -> dict[Thread, int]:
    """Return the threads that have waited again between the two counts, and how often."""
    return {
        thread: waits - before.get(thread, 0)
        for thread, waits in after.items()
        if waits > before.get(thread, 0)
    }
