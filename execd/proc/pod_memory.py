"""The memory of the pod, found at start, and after a restore in a pod of another size: the size,
the source of the usage, and the reserve.

The smallest limit counts: the setting, the limits of this process's memory cgroup and of every
visible cgroup above, and the machine's memory. The usage is read where the limit is. With a setting
and without a cgroup limit, the usage is the machine's: gVisor shows a sandbox the sandbox's own
usage there, together with the node's size.

In gVisor without a setting the pod's size is unknown: there are no memory cgroups, and MemTotal is
the container's limit if runsc was told a limit (docker run --memory), and otherwise the node's
memory, as in a pod of Kubernetes. MemTotal is guarded then, or a command fills the node until no
program of the node gets on.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from execd.proc import kernel_traits
from execd.proc.memory_meter import open_meter
from execd.proc.messages import Configure

if TYPE_CHECKING:
    from collections.abc import Iterator

MIN_RESERVE_BYTES = 96 << 20
# Programs of the machine outside execd share the memory. They can be expected to leave at most this
# much free.
MAX_MACHINE_RESERVE_BYTES = 512 << 20

Source = Literal["setting", "cgroup", "machine", "node", "off", "unknown"]


class CgroupLimit(NamedTuple):
    """The limit of a cgroup."""

    directory: str
    """The cgroup's directory."""
    size_bytes: int


@dataclass(slots=True)
class PodMemory:
    """The memory that the pod may use. All who ask share one object, which changes with a restore
    in a pod of another size."""

    source: Source
    """The origin of the limit. ``node``: the machine's memory as gVisor shows it, with a usage that
    is the sandbox's alone. With ``off`` and ``unknown`` the pod's memory is not guarded."""
    size_bytes: int = 0
    reserve_bytes: int = 0
    cgroup: str = ""
    """Directory of the cgroup with the usage that counts; empty: the machine's usage counts."""

    @property
    def is_guarded(self) -> bool:
        """Whether the warden keeps a reserve free."""
        return self.reserve_bytes > 0

    def become(self, other: PodMemory) -> None:
        self.source, self.size_bytes = other.source, other.size_bytes
        self.reserve_bytes, self.cgroup = other.reserve_bytes, other.cgroup

    def configuration(self) -> Configure:
        """Return the message for the warden.

        The size of a cgroup is left out: the limit of a pod may change while the pod runs, so the
        warden reads the cgroup's present limit.
        """
        size_bytes = self.size_bytes if self.source == "setting" else 0
        return Configure(
            self.reserve_bytes, size_bytes, self.cgroup, only_growth=self.source == "machine"
        )


def find(setting: int | None) -> PodMemory:
    """Return the memory of this pod.

    ``setting``: --pod-memory-bytes; 0 switches the guard off, None means the limits of the system.
    """
    if not kernel_traits.find().tells_cgroups:
        return choose(setting, _size_bytes(), [], has_own_usage=True)
    with open("/proc/self/cgroup") as cgroup, open("/proc/self/mountinfo") as mountinfo:
        directories = memory_cgroups(cgroup.read(), mountinfo.read())
    sizes = ((path, _size_bytes(path)) for path in directories)
    limits = [CgroupLimit(path, size) for path, size in sizes if size is not None]
    return choose(setting, _size_bytes(), limits)


def choose(
    setting: int | None,
    machine_bytes: int | None,
    limits: list[CgroupLimit],
    *,
    has_own_usage: bool = False,
) -> PodMemory:
    """Return the memory of a pod with the given limits.

    ``machine_bytes``: None if unknown. ``limits``: of cgroups, the innermost first.
    ``has_own_usage``: the machine's usage is that of the pod alone. What the other programs of a
    node use is hidden then, so the reserve has no upper bound.
    """
    if setting == 0:
        return PodMemory("off")
    found: PodMemory | None = None
    if machine_bytes is not None:
        limits = [limit for limit in limits if limit.size_bytes < machine_bytes]
        reserve_bytes = _reserve_bytes(machine_bytes)
        if has_own_usage:
            found = PodMemory("node", machine_bytes, reserve_bytes)
        else:
            reserve_bytes = min(reserve_bytes, MAX_MACHINE_RESERVE_BYTES)
            found = PodMemory("machine", machine_bytes, reserve_bytes)
    if limits:
        # Among equal limits the limit of the outermost cgroup is reached first.
        smallest = min(reversed(limits), key=lambda limit: limit.size_bytes)
        size_bytes = smallest.size_bytes
        found = PodMemory("cgroup", size_bytes, _reserve_bytes(size_bytes), smallest.directory)
    if setting is not None and (found is None or setting < found.size_bytes):
        return PodMemory("setting", setting, _reserve_bytes(setting), found.cgroup if found else "")
    return found or PodMemory("unknown")


def _reserve_bytes(size_bytes: int) -> int:
    """Return a tenth of the size, and at least MIN_RESERVE_BYTES, for time to act.

    A pod so small that execd itself would touch the reserve keeps a quarter.
    """
    return min(max(MIN_RESERVE_BYTES, size_bytes // 10), size_bytes // 4)


def memory_cgroups(cgroup: str, mountinfo: str) -> list[str]:
    """Return the directories of this process's memory cgroup and its mounted ancestors, innermost
    first.

    ``cgroup``, ``mountinfo``: contents of the files in /proc/self, see cgroups(7) and
    proc_pid_mountinfo(5).
    """
    paths: dict[str, str] = {}
    for line in cgroup.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            paths["cgroup2"] = path
        elif "memory" in controllers.split(","):
            paths["cgroup"] = path
    found: list[str] = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        root, mount_point = map(_unescape, left.split()[3:5])
        kind, _, options = right.split()[:3]
        if kind not in paths or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        own, root = paths[kind], root.rstrip("/")
        # A mount with a different root shows a different part of the hierarchy.
        if own == root or own.startswith(f"{root}/"):
            found += _upwards(mount_point.rstrip("/"), own[len(root) :].strip("/"))
    return found


def _upwards(top: str, below: str) -> Iterator[str]:
    names = below.split("/") if below else []
    for depth in range(len(names), -1, -1):
        yield "/".join([top, *names[:depth]])


def _unescape(text: str) -> str:
    """Decode a blank and its like: mountinfo writes a backslash and three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _size_bytes(cgroup: str = "") -> int | None:
    """Return the size of a cgroup, or of the machine. None: there is no memory controller, as in
    the root cgroup, or in version 2 beside version 1."""
    try:
        with contextlib.closing(open_meter(cgroup)) as meter:
            return meter.read().total_bytes
    except (OSError, ValueError):
        return None
