from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

import pytest

from execd.proc.memory_meter import (
    UNLIMITED_BYTES,
    CgroupMeter,
    MachineMeter,
    Reading,
    open_meter,
    parse_cgroup,
    parse_meminfo,
    parse_zoneinfo,
)

MIB = 1 << 20

GVISOR = b"""MemTotal:       24684084 kB
MemFree:        24669464 kB
MemAvailable:   24669400 kB
Buffers:               0 kB
Cached:             7400 kB
SwapCache:             0 kB
Active:            10908 kB
Inactive:           3700 kB
Active(anon):       7208 kB
Inactive(anon):        0 kB
Active(file):       3700 kB
Inactive(file):     3700 kB
Unevictable:          16 kB
Mlocked:               0 kB
SwapTotal:             0 kB
AnonPages:          7208 kB
Mapped:             7400 kB
Shmem:               300 kB
"""


VERSION_1 = b"""cache 300
rss 500
shmem 100
inactive_file 1
active_file 2
hierarchical_memory_limit 4000
total_cache 900
total_rss 1000
total_shmem 200
total_inactive_file 300
total_active_file 400
"""
VERSION_2 = b"""anon 1000
file 900
shmem 200
inactive_file 300
active_file 400
"""


def test_a_meminfo_as_gvisor_writes_it_is_read() -> None:
    assert parse_meminfo(GVISOR) == Reading(24684084 << 10, 14684 << 10, 7224 << 10, 300 << 10)


def test_this_kernels_meminfo_is_read() -> None:
    found = parse_meminfo(Path("/proc/meminfo").read_bytes())
    assert 0 < found.used_bytes < found.total_bytes
    assert 0 <= found.shared_bytes <= found.anonymous_bytes < found.total_bytes


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"MemTotal: 1 kB\n",
        GVISOR.replace(b"Shmem:", b"Shmoo:"),
        GVISOR.replace(b"MemAvailable", b"Mem"),
    ],
)
def test_what_is_no_meminfo_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match="meminfo"):
        parse_meminfo(text)


def test_pages_on_the_lists_of_the_cpus_are_summed_up() -> None:
    text = (
        b"Node 0, zone DMA\n"
        b"  pages free 3840\n"
        b"  pagesets\n"
        b"    cpu: 0\n"
        b"              count:    7\n"
        b"              high: 9\n"
    )
    text += b"    cpu: 1\n              count:    3\n"
    assert parse_zoneinfo(text) == 10 * mmap.PAGESIZE


def test_memory_on_the_lists_of_the_cpus_counts_as_free() -> None:
    with contextlib.closing(MachineMeter()) as meter:
        reading = meter.read()
        assert meter.refine(reading).used_bytes <= reading.used_bytes


@pytest.mark.parametrize(
    ("stat", "limit", "size"),
    [(VERSION_1, None, 4000), (VERSION_2, b"5000\n", 5000), (VERSION_2, b"max\n", UNLIMITED_BYTES)],
)
def test_page_cache_of_a_cgroup_is_not_in_use(stat: bytes, limit: bytes | None, size: int) -> None:
    assert parse_cgroup(b"2500\n", stat, limit) == Reading(size, 1800, 1200, 200)


def test_a_version_1_that_tells_no_shared_memory_has_none() -> None:
    assert parse_cgroup(
        b"2500\n", VERSION_1.replace(b"total_shmem", b"total_other"), None
    ) == Reading(4000, 1800, 1000, 0)


@pytest.mark.parametrize(
    ("usage", "stat", "limit"),
    [
        (b"", VERSION_1, None),
        (b"1\n", VERSION_2, None),
        (b"1\n", VERSION_1, b"1\n"),
        (b"1\n", b"anon", b"1\n"),
    ],
)
def test_what_is_no_cgroup_is_a_value_error(usage: bytes, stat: bytes, limit: bytes | None) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # some are int()'s own words
        parse_cgroup(usage, stat, limit)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory.usage_in_bytes": b"2500\n", "memory.stat": VERSION_1}, 4000),
        ({"memory.current": b"2500\n", "memory.stat": VERSION_2, "memory.max": b"5000\n"}, 5000),
    ],
)
def test_a_cgroup_of_either_version_is_read_by_its_files(
    tmp_path: Path, files: dict[str, bytes], expected: int
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with contextlib.closing(CgroupMeter(str(tmp_path))) as meter:
        assert meter.read() == meter.refine(meter.read()) == Reading(expected, 1800, 1200, 200)


def test_a_directory_without_the_files_is_an_error_and_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "memory.current").touch()
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match=r"memory\.usage_in_bytes"):
        open_meter(str(tmp_path))
    assert os.listdir("/proc/self/fd") == before
