"""What a subject's processes use: CPU, memory and wake-ups, read from /proc for all subjects alike.

A subject's own processes are those that live while nothing runs: the daemon and the processes kept
below it. Own CPU is read from the kernel's CPU clock of each process, in nanoseconds, ended threads
included (clock_getcpuclockid(3)). The processes of commands come and go, and are no part of the own
CPU; the own processes wait for commands, so the kernel adds a command's CPU to the parent's account
of ended children, in clock ticks of 10 ms (proc_pid_stat(5): cutime, cstime).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

MIB = 1 << 20
_libc = ctypes.CDLL(None)
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_WAITS = "voluntary_ctxt_switches:"


class Process(NamedTuple):
    """A process id alone may name another process later."""

    pid: int
    started_ticks: int


@dataclass(frozen=True)
class Counts:
    """Of one process, since its start."""

    own_seconds: float
    ended_children_ticks: int
    waits: int
    """How often a thread of the process has waited: each end of a wait is a wake-up."""


Reading = dict[Process, Counts]


@dataclass(frozen=True)
class Used:
    """Between two readings, by the processes that are in both."""

    own_seconds: float
    with_commands_seconds: float
    waits: int


def tree(pid: int) -> list[int]:
    """The process and all below."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [pid, *(each.pid for each in psutil.Process(pid).children(recursive=True))]
    return []


def read(pid: int) -> Reading:
    found: Reading = {}
    for each in tree(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ended_ticks = int(fields[13]) + int(fields[14])
            process = Process(each, int(fields[19]))
            found[process] = Counts(_cpu_seconds(each), ended_ticks, _waits(each))
    return found


def _cpu_seconds(pid: int) -> float:
    clock = ctypes.c_int()
    if _libc.clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise ProcessLookupError(pid)
    return time.clock_gettime(clock.value)


def _waits(pid: int) -> int:
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in (thread / "status").read_text().splitlines():
                if line.startswith(_WAITS):
                    total += int(line[len(_WAITS) :])
    return total


def used(before: Reading, after: Reading) -> Used:
    own, ended, waits = 0.0, 0, 0
    for process in before.keys() & after.keys():
        own += after[process].own_seconds - before[process].own_seconds
        ended += after[process].ended_children_ticks - before[process].ended_children_ticks
        waits += after[process].waits - before[process].waits
    return Used(own, own + ended / _TICKS_PER_SECOND, waits)


def resident_mib(pid: int) -> float:
    """RSS of the process itself."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES / MIB


def proportional_mib(pid: int) -> float:
    """PSS of the process and of all processes below."""
    total = 0
    for each in tree(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
            total += int(rollup.partition("\nPss:")[2].split()[0]) * 1024
    return total / MIB


def end_others(pid: int, own: Reading) -> None:
    """Kill what lives below the process and was not in the reading: commands."""
    own_pids = {process.pid for process in own}
    for each in tree(pid):
        if each not in own_pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
