"""Where the figures of memory come from: the machine's ``/proc/meminfo``, or the files of a memory
cgroup.

A cgroup with a limit is the better source. Its figures show at once what was taken and what was
given back, and other programs of the machine do not move them.

Memory that the kernel takes back before it kills anybody does not count as used. Of a cgroup that
is the page cache of files, inactive and active: a file of 400 MB that was read twice is on the
active list (workingset.c of Linux), and as used memory it would end a tree in a cgroup of 512 MB.
``MemAvailable`` of the machine counts both lists as available too (proc_meminfo(5)).
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import NamedTuple

MEMINFO_BYTES = 8192
# Of a machine with a hundred CPUs. What is cut off is only not counted as free.
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
    """What a meter says of the moment."""

    total_bytes: int
    """The machine's memory, or the cgroup's limit."""
    used_bytes: int
    anonymous_bytes: int
    """What processes, tmpfs and memfd hold."""
    shared_bytes: int
    """The part of it in tmpfs and memfd, and in shared mappings."""


def parse_meminfo(text: bytes) -> Reading:
    """proc_meminfo(5). Raises ValueError."""
    found = _FIELDS.search(text)
    if found is None:
        raise ValueError("not a meminfo as Linux 3.14 and gVisor write it")
    total, available, active, inactive, unevictable, shared = (
        int(number) * 1024 for number in found.groups()
    )
    return Reading(total, total - available, active + inactive + unevictable, shared)


def parse_zoneinfo(text: bytes) -> int:
    """Bytes that are free and on the lists of the CPUs."""
    return sum(map(int, _LINGERING.findall(text))) * PAGE_BYTES


def parse_cgroup(usage: bytes, stat: bytes, limit: bytes | None) -> Reading:
    """The figures of a cgroup and all below it. Raises ValueError.

    ``limit``: of version 2, memory.max; None for version 1, whose memory.stat has the smallest
    limit of the cgroup and all above it.
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
    """The whole machine's memory, or the whole sandbox's. Descriptors for life: opening costs five
    times the reading in gVisor."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._meminfo = os.open("/proc/meminfo", os.O_RDONLY | os.O_CLOEXEC)
        self._zoneinfo = -1
        with contextlib.suppress(OSError):  # gVisor has none
            self._zoneinfo = os.open("/proc/zoneinfo", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> Reading:
        """Raises OSError, ValueError."""
        return parse_meminfo(os.pread(self._meminfo, MEMINFO_BYTES, 0))

    def refine(self, reading: Reading) -> Reading:
        """Count as free what lingers on the lists of the CPUs: worth its price where memory seems
        short. Raises OSError."""
        if self._zoneinfo < 0:
            return reading
        lingering_bytes = parse_zoneinfo(os.pread(self._zoneinfo, ZONEINFO_BYTES, 0))
        return reading._replace(used_bytes=reading.used_bytes - lingering_bytes)

    def close(self) -> None:
        os.close(self._meminfo)
        if self._zoneinfo >= 0:
            os.close(self._zoneinfo)


class CgroupMeter:
    """One memory cgroup, of version 1 or 2. Descriptors for life."""

    def __init__(self, directory: str) -> None:
        """``directory``: the cgroup, as this process sees it. Raises OSError: there is none, or no
        memory controller."""
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
        """Raises OSError, ValueError."""
        usage, stat, *limit = self._descriptors
        return parse_cgroup(
            os.pread(usage, NUMBER_BYTES, 0),
            os.pread(stat, CGROUP_STAT_BYTES, 0),
            os.pread(limit[0], NUMBER_BYTES, 0) if limit else None,
        )

    def refine(self, reading: Reading) -> Reading:
        """What is free is counted as free at once here."""
        return reading

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


Meter = MachineMeter | CgroupMeter


def open_meter(cgroup: str) -> Meter:
    """``cgroup``: its directory; empty: the machine. Raises OSError."""
    return CgroupMeter(cgroup) if cgroup else MachineMeter()
