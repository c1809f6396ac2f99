"""What each tree has written, from /proc/PID/io (proc_pid_io(5)), and the CPU time of the tree.

The totals only grow: what a process has written stays counted when the process has ended. Linux
adds the figures of a child to the figures of the parent that waits for the child. gVisor does not,
and counts only ``wchar``, so a child that lives between two reads is seen by its CPU time alone: a
parent's CPU time includes that of the children that the parent waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from execd.proc.messages import Written
from execd.proc.process_tree import read_process

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

# Natively a read takes 20 microseconds: the reads stay within a turn of the warden's loop.
MAX_READS = 1000
MAX_TREES = 1000


class Figures(NamedTuple):
    write_bytes: int = 0
    wchar_bytes: int = 0
    cpu_ms: int = 0


class WrittenTotal:
    """The totals of one tree."""

    def __init__(self) -> None:
        self.total = Figures()
        self._last: dict[tuple[int, int], Figures] = {}
        """Of each process at the last read, by pid and start."""

    def add(self, members: Iterable[tuple[int, int]], *, parents_inherit: bool) -> None:
        """Read ``members`` again. ``parents_inherit``: a parent's figures include those of its
        ended children."""
        reads = ((member, _read(member[0])) for member in members)
        found = {member: figures for member, figures in reads if figures is not None}
        ended = [last for member, last in self._last.items() if member not in found]
        totals = []
        for field, total in enumerate(self.total):
            gained = sum(
                max(figures[field] - self._last.get(member, Figures())[field], 0)
                for member, figures in found.items()
            )
            inherited = sum(last[field] for last in ended) if parents_inherit else 0
            totals.append(total + max(gained - inherited, 0))
        self.total = Figures(*totals)
        self._last = found


class WritingTree(Protocol):
    """The part of a job that is read."""

    tag: int
    is_idle: bool
    members: dict[int, int]
    written: WrittenTotal


def read_written(
    sequence: int, jobs: Collection[WritingTree], *, may_read: bool, parents_inherit: bool
) -> Written:
    """Return the trees that run user code, with what they have written. ``may_read``: whether
    /proc may be read; otherwise the figures are those of the last read. ``parents_inherit``: see
    ``WrittenTotal.add``."""
    active = [job for job in jobs if not job.is_idle][-MAX_TREES:]
    reads_left = MAX_READS if may_read else 0
    for job in active:
        if reads_left:
            members = list(job.members.items())[:reads_left]
            reads_left -= len(members)
            job.written.add(members, parents_inherit=parents_inherit)
    totals = [job.written.total for job in active]
    return Written(
        sequence,
        [job.tag for job in active],
        [total.write_bytes for total in totals],
        [total.wchar_bytes for total in totals],
        [total.cpu_ms for total in totals],
    )


def _read(pid: int) -> Figures | None:
    """None: the process has ended."""
    process = read_process(pid)
    if process is None:
        return None
    cpu_ms = round((process.user_seconds + process.system_seconds) * 1000)
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            text = file.read()
    except OSError:  # ended, or a program of another user
        return Figures(cpu_ms=cpu_ms)
    fields = dict(line.partition(b": ")[::2] for line in text.splitlines())
    return Figures(int(fields.get(b"write_bytes", 0)), int(fields.get(b"wchar", 0)), cpu_ms)
