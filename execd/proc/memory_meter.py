"""The source of memory figures: the machine's ``/proc/meminfo``, or the files of a memory cgroup.

A cgroup with a limit is the better source. Its figures show memory taken and memory given back at
once, and programs outside the cgroup do not move the figures.

Memory that the kernel reclaims before the OOM killer runs does not count as used. In a cgroup the
page cache of files is such memory, on the inactive and on the active list. A file of 400 MB that
was read twice is on the active list (workingset.c of Linux), and counted as used the file would end
a tree in a cgroup of 512 MB. ``MemAvailable`` of the machine counts both lists as available too
(proc_meminfo(5)).
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import NamedTuple

MEMINFO_BYTES = 8192
# Enough for a machine with a hundred CPUs. Pages past the end only do not count as free.
ZONEINFO_BYTES = 256 * 1024
CGROUP_STAT_BYTES = 16 * 1024
NUMBER_BYTES = 64
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
UNLIMITED_BYTES = 1 << 63

_NAMES = (
    rb"MemTotal",
    rb"MemAvailable",
    rb"Active\(anon\)",
    rb"Inactive\(anon\)",
    rb"Unevictable",
    rb"Shmem",
)
_FIELDS = re.compile(
    rb".*?".join(rb"^%s: +(\d+) kB$" % name for name in _NAMES), re.DOTALL | re.MULTILINE
)
_LINGERING = re.compile(rb"^ +count: +(\d+)$", re.MULTILINE)


class Reading(NamedTuple):
    """A meter's figures of one moment."""

    total_bytes: int
    """The machine's memory, or the cgroup's limit."""
    used_bytes: int
    anonymous_bytes: int
    """Memory of processes, tmpfs and memfd."""
    shared_bytes: int
    """The part of anonymous memory in tmpfs, memfd and shared mappings."""


def parse_meminfo(text: bytes) -> Reading:
    """Parse ``/proc/meminfo``, see proc_meminfo(5). Raises ValueError."""
    found = _FIELDS.search(text)
    if found is None:
        raise ValueError("not a meminfo as Linux 3.14 and gVisor write it")
    total, available, active, inactive, unevictable, shared = (
        int(number) * 1024 for number in found.groups()
    )
    return Reading(total, total - available, active + inactive + unevictable, shared)


def parse_zoneinfo(text: bytes) -> int:
    """Return the bytes of free pages on the lists of the CPUs."""
    return sum(map(int, _LINGERING.findall(text))) * PAGE_BYTES


def parse_cgroup(usage: bytes, stat: bytes, limit: bytes | None) -> Reading:
    """Parse the figures of a cgroup and its descendants. Raises ValueError.

    ``limit``: memory.max of version 2, or None for version 1. memory.stat of version 1 holds the
    smallest limit of the cgroup and its ancestors.
    """
    try:
        figures = {name: int(number) for name, number in map(bytes.split, stat.splitlines())}
        used_bytes = int(usage)
        if limit is None:
            total_bytes, prefix, process_bytes = (
                figures[b"hierarchical_memory_limit"],
                b"total_",
                figures[b"total_rss"],
            )
        else:
            total_bytes, prefix, process_bytes = _parse_limit(limit), b"", figures[b"anon"]
        shared_bytes = figures.get(prefix + b"shmem", 0)  # version 1 has it since Linux 4.10
        cache_bytes = figures[prefix + b"inactive_file"] + figures[prefix + b"active_file"]
    except KeyError as error:
        raise ValueError(f"not the figures of a memory cgroup: no {error}") from None
    return Reading(
        total_bytes, max(used_bytes - cache_bytes, 0), process_bytes + shared_bytes, shared_bytes
    )


def _parse_limit(text: bytes) -> int:
    return UNLIMITED_BYTES if text.strip() == b"max" else int(text)


class MachineMeter:
    """Reads the memory of the whole machine, or of the whole sandbox.

    The descriptors stay open: in gVisor opening costs five times as much as reading.
    """

    def __init__(self) -> None:
        """Open the files. Raises OSError."""
        self._meminfo = os.open("/proc/meminfo", os.O_RDONLY | os.O_CLOEXEC)
        self._zoneinfo = -1
        with contextlib.suppress(OSError):  # gVisor has none
            self._zoneinfo = os.open("/proc/zoneinfo", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> Reading:
        """Return a reading. Raises OSError, ValueError."""
        return parse_meminfo(os.pread(self._meminfo, MEMINFO_BYTES, 0))

    def refine(self, reading: Reading) -> Reading:
        """Count pages on the lists of the CPUs as free. Raises OSError.

        The file is long, so the caller pays the price only where memory seems short.
        """
        if self._zoneinfo < 0:
            return reading
        lingering_bytes = parse_zoneinfo(os.pread(self._zoneinfo, ZONEINFO_BYTES, 0))
        return reading._replace(used_bytes=reading.used_bytes - lingering_bytes)

    def close(self) -> None:
        os.close(self._meminfo)
        if self._zoneinfo >= 0:
            os.close(self._zoneinfo)


class CgroupMeter:
    """Reads a memory cgroup of version 1 or 2. The descriptors stay open."""

    def __init__(self, directory: str) -> None:
        """Open the files of the cgroup.

        ``directory``: the cgroup, as this process sees the path. Raises OSError if there is no
        cgroup or no memory controller.
        """
        self._descriptors: list[int] = []
        try:
            try:
                self._open(directory, "memory.current", "memory.stat", "memory.max")
            except FileNotFoundError:
                self.close()
                self._open(directory, "memory.usage_in_bytes", "memory.stat")
        except OSError:
            self.close()
            raise

    def _open(self, directory: str, *names: str) -> None:
        for name in names:
            self._descriptors.append(
                os.open(os.path.join(directory, name), os.O_RDONLY | os.O_CLOEXEC)
            )

    def read(self) -> Reading:
        """Return a reading. Raises OSError, ValueError."""
        usage, stat, *limit = self._descriptors
        return parse_cgroup(
            os.pread(usage, NUMBER_BYTES, 0),
            os.pread(stat, CGROUP_STAT_BYTES, 0),
            os.pread(limit[0], NUMBER_BYTES, 0) if limit else None,
        )

    def refine(self, reading: Reading) -> Reading:
        """Return the reading unchanged: a cgroup counts free memory as free at once."""
        return reading

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


Meter = MachineMeter | CgroupMeter


def open_meter(cgroup: str) -> Meter:
    """Open a meter. ``cgroup``: the cgroup's directory, or empty for the machine. Raises
    OSError."""
    return CgroupMeter(cgroup) if cgroup else MachineMeter()
