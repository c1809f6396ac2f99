"""How many CPUs the pod has."""

from __future__ import annotations

import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def available_cpus(own_cgroups: Path = OWN_CGROUPS, mount: Path = CGROUPS) -> float:
    """CPUs by affinity, or fewer by the quota of a cgroup: cpu.max of v2, cpu.cfs_quota_us of v1
    (cgroups(7))."""
    quotas = [
        quota
        for folder in _cgroup_folders(own_cgroups, mount)
        if (quota := _quota(folder)) is not None
    ]
    return min([float(len(os.sched_getaffinity(0))), *quotas])


def _cgroup_folders(own_cgroups: Path, mount: Path) -> list[Path]:
    """The cgroup of this process and the visible cgroups above: each may have a
    quota.

    A container that shows its own cgroup as the root of the mount still has the host's path in
    /proc/self/cgroup. The folders of that path are then missing, and the root is the container's
    own.
    """
    try:
        lines = own_cgroups.read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            root = mount
        elif "cpu" in controllers.split(","):
            root = mount / "cpu"
        else:
            continue
        own = root / path.lstrip("/")
        folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return folders


def _quota(folder: Path) -> float | None:
    """Return the quota in CPUs; ``None`` without a readable quota."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = " ".join((folder / name).read_text() for name in names).split()
        except (OSError, ValueError):
            continue
        if quota not in ("max", "-1"):
            return int(quota) / int(period)
    return None
