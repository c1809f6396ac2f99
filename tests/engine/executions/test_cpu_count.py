from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from execd.engine.executions.cpu_count import available_cpus

if TYPE_CHECKING:
    from pathlib import Path

ALL = float(len(os.sched_getaffinity(0)))
V2 = "0::/pod/own\n"
V1 = "5:memory:/other\n3:cpu,cpuacct:/pod/own\n0::/\n"


@pytest.mark.parametrize(
    ("own_cgroups", "files", "expected"),
    [
        pytest.param(V2, {"pod/own/cpu.max": "10000 100000\n"}, 0.1, id="v2"),
        pytest.param(
            V2,
            {"pod/own/cpu.max": "max 100000\n", "pod/cpu.max": "20000 100000\n"},
            0.2,
            id="v2, of the one above",
        ),
        pytest.param(
            V2, {"cpu.max": "5000 20000\n"}, 0.25, id="v2, only the mount's root is visible"
        ),
        pytest.param(V2, {"pod/own/cpu.max": "max 100000\n"}, ALL, id="v2, no quota"),
        pytest.param(
            V1,
            {
                "cpu/pod/own/cpu.cfs_quota_us": "10000\n",
                "cpu/pod/own/cpu.cfs_period_us": "100000\n",
            },
            0.1,
            id="v1",
        ),
        pytest.param(
            "0::/pod:a/own\n", {"pod:a/own/cpu.max": "10000 100000\n"}, 0.1, id="v2, a colon"
        ),
        pytest.param(
            V1,
            {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            0.5,
            id="v1, the root",
        ),
        pytest.param(
            V1,
            {"cpu/pod/own/cpu.cfs_quota_us": "-1\n", "cpu/pod/own/cpu.cfs_period_us": "100000\n"},
            ALL,
            id="v1, none",
        ),
        pytest.param(
            V1, {"pod/own/cpu.max": "1000 100000\n"}, ALL, id="the folder is another controller's"
        ),
        pytest.param(
            V2, {"pod/own/cpu.max": "100000000 100000\n"}, ALL, id="a quota of more than there is"
        ),
        pytest.param(V2, {"pod/own/cpu.max": "what\n"}, ALL, id="not a quota"),
        pytest.param(None, {}, ALL, id="no cgroups"),
    ],
)
def test_cpus_are_those_of_the_smallest_quota(
    tmp_path: Path, own_cgroups: str | None, files: dict[str, str], expected: float
) -> None:
    listing, mount = tmp_path / "cgroup", tmp_path / "mount"
    if own_cgroups is not None:
        listing.write_text(own_cgroups)
    for name, text in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(text)
    assert available_cpus(listing, mount) == expected
