"""The choice of the pod's effective memory limit."""

from __future__ import annotations

import pytest

from execd.proc.messages import Configure
from execd.proc.pod_memory import CgroupLimit, PodMemory, choose, find, memory_cgroups

MIB = 1 << 20
GIB = 1 << 30
NONE = 1 << 62

V1_MOUNTS = """31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 {root} /sys/fs/cgroup/memory rw shared:5 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("cgroup", "root", "expected"),
    [
        ("4:memory:/a/b\n1:cpu:/x\n", "/", ["/a/b", "/a", ""]),
        ("4:memory:/\n", "/", [""]),
        ("4:hugetlb,memory:/docker/1\n", "/docker/1", [""]),
        ("4:memory:/docker/1/user\n", "/docker/1", ["/user", ""]),
        ("4:memory:/docker/11\n", "/docker/1", []),
        ("4:memory:/\n", "/../..", []),
        ("1:cpu:/x\n", "/", []),
    ],
    ids=[
        "below the root",
        "the root",
        "a container's",
        "below a container's",
        "another's",
        "a namespace's",
        "none",
    ],
)
def test_the_memory_cgroup_of_version_1_and_those_above_it_are_found(
    cgroup: str, root: str, expected: list[str]
) -> None:
    found = memory_cgroups(cgroup, V1_MOUNTS.format(root=root))
    assert found == [f"/sys/fs/cgroup/memory{path}" for path in expected]


def test_the_cgroup_of_version_2_and_those_above_it_are_found() -> None:
    assert memory_cgroups("0::/user.slice/x\n", V2_MOUNTS) == [
        "/sys/fs/cgroup/user.slice/x", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup",
    ]  # fmt: skip


def test_where_both_versions_are_mounted_both_are_found() -> None:
    found = memory_cgroups("4:memory:/a\n0::/b\n", V1_MOUNTS.format(root="/"))
    assert "/sys/fs/cgroup/memory/a" in found
    assert "/sys/fs/cgroup/unified/b" in found


def test_a_mount_point_with_a_blank_is_read() -> None:
    mounts = V2_MOUNTS.replace("/sys/fs/cgroup", r"/my\040groups")
    assert memory_cgroups("0::/a\n", mounts) == ["/my groups/a", "/my groups"]


@pytest.mark.parametrize(
    ("setting", "machine", "limits", "expected"),
    [
        (None, 24 * GIB, [], PodMemory("machine", 24 * GIB, 512 * MIB)),
        (None, 2 * GIB, [], PodMemory("machine", 2 * GIB, 2 * GIB // 10)),
        (None, 24 * GIB, [CgroupLimit("a", NONE)], PodMemory("machine", 24 * GIB, 512 * MIB)),
        (
            None,
            24 * GIB,
            [CgroupLimit("a", 512 * MIB)],
            PodMemory("cgroup", 512 * MIB, 96 * MIB, "a"),
        ),
        (None, 24 * GIB, [CgroupLimit("a", 20 * GIB)], PodMemory("cgroup", 20 * GIB, 2 * GIB, "a")),
        (
            None,
            24 * GIB,
            [CgroupLimit("a/b", 2 * GIB), CgroupLimit("a", GIB)],
            PodMemory("cgroup", GIB, GIB // 10, "a"),
        ),
        (
            None,
            24 * GIB,
            [CgroupLimit("a/b", GIB), CgroupLimit("a", GIB)],
            PodMemory("cgroup", GIB, GIB // 10, "a"),
        ),
        (
            None,
            24 * GIB,
            [CgroupLimit("a", 128 * MIB)],
            PodMemory("cgroup", 128 * MIB, 32 * MIB, "a"),
        ),
        (0, 24 * GIB, [CgroupLimit("a", 512 * MIB)], PodMemory("off")),
        (0, None, [], PodMemory("off")),
        (GIB, 24 * GIB, [CgroupLimit("a", 2 * GIB)], PodMemory("setting", GIB, GIB // 10, "a")),
        (3 * GIB, 24 * GIB, [CgroupLimit("a", GIB)], PodMemory("cgroup", GIB, GIB // 10, "a")),
        (GIB, 24 * GIB, [], PodMemory("setting", GIB, GIB // 10)),
        (48 * GIB, 24 * GIB, [], PodMemory("machine", 24 * GIB, 512 * MIB)),
        (None, None, [], PodMemory("unknown")),
        (GIB, None, [], PodMemory("setting", GIB, GIB // 10)),
    ],
)
def test_the_smallest_limit_is_the_pods(
    setting: int | None, machine: int | None, limits: list[CgroupLimit], expected: PodMemory
) -> None:
    assert choose(setting, machine, limits) == expected


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, PodMemory("node", 24 * GIB, 24 * GIB // 10)),
        (GIB, PodMemory("setting", GIB, GIB // 10)),
        (48 * GIB, PodMemory("node", 24 * GIB, 24 * GIB // 10)),
        (0, PodMemory("off")),
    ],
)
def test_in_gvisor_the_setting_or_the_memory_of_the_node_is_the_pods(
    setting: int | None, expected: PodMemory
) -> None:
    found = choose(setting, 24 * GIB, [], has_own_usage=True)
    assert found == expected
    assert not found.configuration().only_growth, "the usage is the sandbox's own"


def test_only_the_machine_is_shared_with_others() -> None:
    assert choose(None, 24 * GIB, []).configuration() == Configure(512 * MIB, 0, "", True)
    assert choose(None, 24 * GIB, [CgroupLimit("a", 2 * GIB)]).configuration() == Configure(
        2 * GIB // 10, 0, "a", False
    )
    assert choose(GIB, 24 * GIB, []).configuration() == Configure(GIB // 10, GIB, "", False)
    assert choose(0, 24 * GIB, []).configuration() == Configure(0, 0, "", False)
    assert not choose(None, None, []).is_guarded


@pytest.mark.linux_only("MemTotal in gVisor is the node's")
def test_without_a_setting_this_machines_memory_is_guarded() -> None:
    found = find(None)
    assert found.source in ("machine", "cgroup")
    assert 0 < found.reserve_bytes < found.size_bytes
    assert find(0) == PodMemory("off")
