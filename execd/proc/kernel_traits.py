"""Traits of the kernel: everything in which Linux and gVisor differ for execd, one field for each
behaviour, as one frozen value for each kernel. ``find`` asks the kernel once.

The rest of execd asks for a behaviour and never for the kernel's name. docs/gvisor.md tells the
probes and the measurements behind the figures.
"""

from __future__ import annotations

import functools
import signal
from typing import NamedTuple

LOADAVG_BYTES = 128


class KernelTraits(NamedTuple):
    """Times are in seconds."""

    # Facts that the kernel tells.

    tells_load: bool
    tells_cgroups: bool
    """/proc/self/cgroup and the memory controller are there. Otherwise the machine's usage is that
    of the pod alone."""
    starts_follow_monotonic_clock: bool
    """The start of a process in /proc counts by the monotonic clock. Otherwise by the time of day,
    which jumps and drifts."""
    adds_written_bytes_to_parent: bool
    """An ended child's written bytes count for the parent that has waited (/proc/PID/io)."""

    # Acts of the kernel.

    obeys_oom_score: bool
    """oom_score_adj decides which process ends first when memory ends."""
    uses_memory_of_pod: bool
    """The kernel's own memory is the pod's: see ``sentry_memory`` of the warden."""
    limits_processes_of_namespace: bool
    """RLIMIT_NPROC counts the tasks of the PID namespace. Otherwise those of the user."""
    signals_terminals: bool
    """The kernel sends SIGWINCH to the group in the foreground of a terminal that gets another
    size, and SIGHUP with the end of the session's leader (ioctl_tty(2), credentials(7)). gVisor
    sends SIGWINCH since June 2026, and only a program in a terminal could tell."""
    hangs_up_stopped_groups: bool
    """An orphaned process group gets SIGHUP when one member ends while another is stopped. Linux
    sends SIGHUP only when the group becomes an orphan: setpgid(2)."""
    stops_forks_under_way: bool
    """The child of a process that has a stop signal pending is born stopped. Otherwise a fork under
    way goes on, and its child has not been stopped."""
    bombs_hold_calls: bool
    """While N processes fork, each system call of the warden and of the daemon waits for the forks
    of all N. Otherwise a bomb competes for the CPU alone."""

    # How long things take.

    announce_seconds: float
    """A program that ends within this time is reported by one message, Exited, instead of Spawned
    and Exited. Each message costs both sides a wake-up. `true` takes 3 to 6 ms in gVisor."""
    flight_seconds: float
    """A program that ends within this time never becomes a job, as long as only starts arrive.
    Nobody waits for the end: further programs start meanwhile. Natively with 0.0015 most of 16
    programs at once live too long."""
    look_pause_seconds: float
    """A program in flight that has computed nothing for so long becomes a job; 0: no program does.
    In gVisor a program of a crowd takes long, and each job costs a millisecond. A program that
    waits is worth a job earlier, because the daemon learns that the program waits. gVisor counts
    CPU time by ticks of 10 ms."""
    drain_seconds: float
    """Work that needs a job of each program waits so long for the programs in flight to end, and no
    program begins meanwhile. In gVisor with 0.008 a scan makes jobs of twice as many programs."""
    count_seconds: float
    """Between two counts of tasks. A count costs ten times as much in gVisor."""
    freeze_seconds: float
    """A freeze gives up after this time if rounds of SIGSTOP still find new tasks."""
    quiet_rounds: int
    """So many rounds of a freeze must find nothing new."""
    brake_quiet_rounds: int
    """So many rounds of a stop by the brake, which the next freeze repeats."""
    stop_pause_seconds: float
    """Between two rounds, of a freeze and of the brake. Natively a bomb makes ten processes a
    millisecond, and the earlier the brake counts, the smaller the crowd that competes with the
    brake for the CPU."""
    nudges: tuple[int, ...]
    """In gVisor a process that waits in vfork(2) takes no signal, and goes on once the child has
    called exec. A second SIGSTOP has no effect while the first is pending. A different stop signal
    makes the process check for signals, and the process then takes SIGSTOP, the lowest number,
    first. SIGCONT discards all stop signals, so no handler runs. Each round sends SIGSTOP too: a
    process that was just forked has no SIGSTOP yet, and may ignore the nudges."""
    burst_tasks: int
    """A burst is this growth since the last count. Where bombs hold calls each burst is frozen,
    because meanwhile N doubles. Honest programs fork at most 200 times a second in gVisor."""
    brake_burst_tasks: int
    """The brake stops everything after this growth, if the warden's next count is late; 0: by the
    limits of the trees. Not fewer than two bursts: each freeze of a bomb that is not over its limit
    yet ends with a thaw, and in gVisor each thaw is a risk."""
    late_seconds: float
    """The brake stops everything when the warden's next count is this late and there are enough
    tasks for a tree to be over the limit. In gVisor a tree stops growing at the kernel's limit of
    processes, and 450 processes that try to fork held the warden up for a minute."""


LINUX = KernelTraits(
    tells_load=True,
    tells_cgroups=True,
    starts_follow_monotonic_clock=True,
    adds_written_bytes_to_parent=True,
    obeys_oom_score=True,
    uses_memory_of_pod=False,
    limits_processes_of_namespace=False,
    signals_terminals=True,
    hangs_up_stopped_groups=False,
    stops_forks_under_way=True,
    bombs_hold_calls=False,
    announce_seconds=0.0015,
    flight_seconds=0.004,
    look_pause_seconds=0.0,
    drain_seconds=0.0,
    count_seconds=0.02,
    freeze_seconds=1.0,
    quiet_rounds=1,
    brake_quiet_rounds=0,
    stop_pause_seconds=0.005,
    nudges=(),
    burst_tasks=64,
    brake_burst_tasks=0,
    late_seconds=0.25,
)
GVISOR = KernelTraits(
    tells_load=False,
    tells_cgroups=False,
    starts_follow_monotonic_clock=False,
    adds_written_bytes_to_parent=False,
    obeys_oom_score=False,
    uses_memory_of_pod=True,
    limits_processes_of_namespace=True,
    signals_terminals=False,
    hangs_up_stopped_groups=True,
    stops_forks_under_way=False,
    bombs_hold_calls=True,
    announce_seconds=0.008,
    flight_seconds=0.05,
    look_pause_seconds=0.012,
    drain_seconds=0.025,
    count_seconds=0.05,
    freeze_seconds=3.0,
    quiet_rounds=5,
    brake_quiet_rounds=5,
    stop_pause_seconds=0.02,
    nudges=(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    burst_tasks=24,
    brake_burst_tasks=48,
    late_seconds=0.5,
)


@functools.cache
def find() -> KernelTraits:
    """Return the traits of this kernel.

    ``/proc/loadavg`` of gVisor holds zeros, and Linux assigns no pid 0.
    """
    with open("/proc/loadavg", "rb") as file:
        newest_pid = int(file.read(LOADAVG_BYTES).split()[4])
    return LINUX if newest_pid else GVISOR
