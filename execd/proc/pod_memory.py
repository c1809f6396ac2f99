"""What the pod's memory is, found once at start: the size, whose figures tell the usage, and how
much must stay free.

The smallest limit counts: the setting, the limits of this process' memory cgroup and of every
cgroup above it that can be seen, and the machine's memory. Usage is taken from where the limit is.
With a setting and no cgroup that has a limit, usage is the machine's: gVisor shows a sandbox its
own usage there, and the node's size.

In gVisor without a setting nothing is known of the pod: MemTotal is the node's, and there are no
memory cgroups.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from execd.proc.memory_meter import UNLIMITED_BYTES, CgroupMeter, MachineMeter
from execd.proc.messages import Configure
from execd.proc.task_meter import is_gvisor

if TYPE_CHECKING:
    from collections.abc import Iterator

MIN_RESERVE_BYTES = 96 << 20
# Other programs of the machine share the memory: they can be expected to leave so much and no more.
MAX_MACHINE_RESERVE_BYTES = 512 << 20

Source = Literal["setting", "cgroup", "machine", "off", "unknown"]


class CgroupLimit(NamedTuple):
    directory: str
    """Of the cgroup."""
    size_bytes: int


class PodMemory(NamedTuple):
    source: Source
    """Whose limit it is. ``off`` and ``unknown``: nothing guards the pod's memory."""
    size_bytes: int = 0
    reserve_bytes: int = 0
    cgroup: str = ""
    """Directory of the cgroup whose usage counts; empty: the machine's does."""

    @property
    def is_guarded(self) -> bool:
        return self.reserve_bytes > 0

    def configuration(self) -> Configure:
        """For the warden, which goes by a cgroup's limit as it is at the moment: limits of pods are
        changed while they run."""
        size_bytes = self.size_bytes if self.source == "setting" else 0
        return Configure(
            self.reserve_bytes, size_bytes, self.cgroup, only_growth=self.source == "machine"
        )


def find(setting: int | None) -> PodMemory:
    """``setting``: --pod-memory-bytes; 0 switches the guard off, None leaves it to what is
    found."""
    if is_gvisor():
        return choose(setting, None, [])
    with open("/proc/self/cgroup") as cgroup, open("/proc/self/mountinfo") as mountinfo:
        directories = memory_cgroups(cgroup.read(), mountinfo.read())
    return choose(
        setting, _machine_bytes(), [CgroupLimit(path, _limit_bytes(path)) for path in directories]
    )


def choose(setting: int | None, machine_bytes: int | None, limits: list[CgroupLimit]) -> PodMemory:
    """``machine_bytes``: None if it says nothing of the pod. ``limits``: of cgroups, the innermost
    first."""
    if setting == 0:
        return PodMemory("off")
    found: PodMemory | None = None
    if machine_bytes is not None:
        limits = [limit for limit in limits if limit.size_bytes < machine_bytes]
        reserve_bytes = min(_reserve_bytes(machine_bytes), MAX_MACHINE_RESERVE_BYTES)
        found = PodMemory("machine", machine_bytes, reserve_bytes)
    if limits:
        # Of several with the same limit the outermost is full first.
        smallest = min(reversed(limits), key=lambda limit: limit.size_bytes)
        size_bytes = smallest.size_bytes
        found = PodMemory("cgroup", size_bytes, _reserve_bytes(size_bytes), smallest.directory)
    if setting is not None and (found is None or setting < found.size_bytes):
        return PodMemory("setting", setting, _reserve_bytes(setting), found.cgroup if found else "")
    return found or PodMemory("unknown")


def _reserve_bytes(size_bytes: int) -> int:
    """A tenth, and enough to act in time; a pod so small that execd itself would touch the reserve
    keeps a quarter."""
    return min(max(MIN_RESERVE_BYTES, size_bytes // 10), size_bytes // 4)


def memory_cgroups(cgroup: str, mountinfo: str) -> list[str]:
    """Directories of this process' memory cgroup and those above it, as far as they are mounted;
    the innermost first.

    ``cgroup``, ``mountinfo``: contents of the files of that name in /proc/self, see cgroups(7) and
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
        # else the mount shows another part of the hierarchy
        if own == root or own.startswith(f"{root}/"):
            found += _upwards(mount_point.rstrip("/"), own[len(root) :].strip("/"))
    return found


def _upwards(top: str, below: str) -> Iterator[str]:
    names = below.split("/") if below else []
    for depth in range(len(names), -1, -1):
        yield "/".join([top, *names[:depth]])


def _unescape(text: str) -> str:
    """mountinfo writes blanks and the like as a backslash and three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _limit_bytes(directory: str) -> int:
    try:
        with contextlib.closing(CgroupMeter(directory)) as meter:
            return meter.read().total_bytes
    except (OSError, ValueError):
        return UNLIMITED_BYTES  # no memory controller: the root, or version 2 beside version 1


def _machine_bytes() -> int | None:
    try:
        with contextlib.closing(MachineMeter()) as meter:
            return meter.read().total_bytes
    except (OSError, ValueError):
        return None
