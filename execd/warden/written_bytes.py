"""What each tree has written, from /proc/PID/io (proc_pid_io(5)).

The kernel adds the figures of a child to the figures of the parent that waits for the child. gVisor
does not, and counts only ``wchar``. An orphan takes its figures along when the orphan ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from execd.proc.messages import Written

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from execd.warden.job import Job

# Natively a read takes 10 microseconds: the reads stay within a turn of the warden's loop.
MAX_READS = 1000
MAX_TREES = 1000


def read_written(sequence: int, jobs: Collection[Job], *, may_read: bool) -> Written:
    """Return the trees that run user code, with what they have written. ``may_read``: whether
    /proc may be read; otherwise the figures are 0."""
    active = [job for job in jobs if not job.is_idle][-MAX_TREES:]
    reads_left = MAX_READS if may_read else 0
    write_bytes, wchar_bytes = [], []
    for job in active:
        pids = list(job.members)[:reads_left]
        reads_left -= len(pids)
        to_disk, to_all = _sum(pids)
        write_bytes.append(to_disk)
        wchar_bytes.append(to_all)
    return Written(
        sequence,
        [job.tag for job in active],
        [int(job.spawned_at * 1000) for job in active],
        write_bytes,
        wchar_bytes,
    )


def _sum(pids: Iterable[int]) -> tuple[int, int]:
    write_bytes = wchar_bytes = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/io", "rb") as file:
                text = file.read()
        except OSError:  # ended, or a program of another user
            continue
        fields = dict(line.partition(b": ")[::2] for line in text.splitlines())
        write_bytes += int(fields.get(b"write_bytes", 0))
        wchar_bytes += int(fields.get(b"wchar", 0))
    return write_bytes, wchar_bytes
