"""The warden's own peak memory, which the kernel mixes into the figure of each program.

A vforked child has the memory of its parent until the exec, and the kernel keeps the peak of this
memory in the child's ``ru_maxrss`` (getrusage(2)), Linux and gVisor alike. So the figure of a
program that stays smaller than the warden is the warden's peak, and says nothing of the program.
"""

from __future__ import annotations

import resource

STATUS_BYTES = 8192
KIB = 1024
# The kernel keeps the counters of pages for each CPU, and adds up the counters at some times only:
# the two figures of the same peak differ by some 200 KB on two CPUs.
TOLERANCE_BYTES = 1 << 20


class OwnPeak:
    """Knows the warden's peak, and reads the peak again only for a program that was larger."""

    def __init__(self) -> None:
        self._bytes = 0

    @property
    def hiding_bytes(self) -> int:
        """The largest figure that may be the warden's own peak, as far as is known."""
        return self._bytes + TOLERANCE_BYTES

    def may_hide(self, max_rss_bytes: int) -> bool:
        """Whether ``max_rss_bytes`` of a program may be the warden's own peak."""
        if max_rss_bytes <= self.hiding_bytes:
            return True
        # A program of this size has taken the kernel milliseconds; the read takes 30 microseconds.
        self._bytes = _read_own_peak()
        return max_rss_bytes <= self.hiding_bytes


def _read_own_peak() -> int:
    """Return the largest resident size of this process so far, in bytes: proc_pid_status(5).

    gVisor has no such figure. Its ``ru_maxrss`` of this process is an upper bound, because the
    daemon has vforked this process.
    """
    with open("/proc/self/status", "rb", buffering=0) as file:
        for line in file.read(STATUS_BYTES).splitlines():
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * KIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
