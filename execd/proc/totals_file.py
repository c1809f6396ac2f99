"""Figures of all trees together: the warden writes them to a memfd after each scan, and the daemon
reads them when somebody asks.

A file and not a message, because a message would wake the warden for each reader, and cost the
reader more than all other figures. The daemon reads by system call and maps nothing: user code that
took over the warden could cut off a mapped file, and a read of the mapping would end the daemon.
"""

from __future__ import annotations

import math
import os
import struct
from typing import NamedTuple

FORM = struct.Struct("<5Qd")


class Totals(NamedTuple):
    """As of the latest scan."""

    zygote_bytes: int
    """Resident size of the trees that run no user code: the zygote and the workers of the pool.
    Shared pages count in each process."""
    sessions_bytes: int
    """The same of the other adopted workers, with their trees."""
    commands_bytes: int
    """The same of the started programs, with their trees."""
    processes: int
    """The processes of all trees."""
    runtime_bytes: int
    """The estimate of gVisor's own memory; 0 elsewhere."""
    cpu_seconds: float
    """CPU time of all trees since the start of the warden, ended trees included."""


def make() -> int:
    """Return the descriptor of a new file. Raises OSError."""
    return os.memfd_create("execd-totals", os.MFD_CLOEXEC)


def write(fd: int, totals: Totals) -> None:
    os.pwrite(fd, FORM.pack(*totals), 0)


def read(fd: int) -> Totals | None:
    """Return the figures, or None if there are none yet. The writer is not trusted."""
    try:
        data = os.pread(fd, FORM.size, 0)
    except OSError:
        return None
    if len(data) != FORM.size:
        return None
    totals = Totals(*FORM.unpack(data))
    is_sane = max(totals[:5]) < 1 << 63 and math.isfinite(totals.cpu_seconds)
    return totals if is_sane and totals.cpu_seconds >= 0 else None
