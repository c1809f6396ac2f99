"""The daemon's own watch over the pod's memory, while the warden is silent.

Processes. The daemon, with this code in its loop; the warden, stopped by user code or waiting for
CPU time; user code, which may fill the memory meanwhile.

Steps. The daemon acts more coarsely than the warden, in two steps. When the reserve is touched, the
largest process below the warden gets KILL: a process and not a tree, because the daemon does not
know the tree of a process. When three quarters of the reserve are gone and memory still shrinks,
the warden ends with all user code, so that the pod survives.

What can race. The scan for the largest process runs in a thread and takes about 20 ms in gVisor,
and far longer without CPU time.
  * If the process ends before the signal, the kernel may give the pid to a new process. So the
    thread reads the process again right before the signal and compares the start times.
  * The warden may have ended the cause before or during the scan: the largest process left is
    innocent. So the stand-in ends nothing if the warden has answered meanwhile, if the memory that
    comes back is enough (``MemoryPolicy.given_back_bytes``), or while a process gives its memory
    back: such a process has no address space and is not dead yet.
  * The warden may have ended the cause before the first sample. Then no sample has seen the fall of
    anonymous memory, and in gVisor the memory still shows as used: more of the used memory is not
    anonymous than before user code ran.
For the last two reasons the stand-in waits MAX_WAIT_SECONDS at the most: some processes live on
without an address space, and other memory of the sandbox may have grown. Whenever nothing is ended
for one of these reasons, the next sample decides anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from execd.proc import process_tree
from execd.proc.memory import MemoryMonitor
from execd.proc.task_meter import is_gvisor

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.proc.memory_meter import Reading
    from execd.proc.messages import Configure
    from execd.proc.process_tree import Process

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 0.02
SCAN_SECONDS = 1.0
EXEC_SECONDS = 0.01
"""A process shows no address space in the middle of an exec either, as a rule for less than this
time."""
MAX_WAIT_SECONDS = 0.5
"""For memory on its way back, in one shortage. Not longer: a hog may fill the rest meanwhile."""
LAST_QUARTER = 4


class Action(enum.Enum):
    """The consequence of a sample."""

    NOTHING = enum.auto()
    END_LARGEST = enum.auto()
    END_ALL = enum.auto()


class LastResort:
    """Decides from the remaining memory. Each action gets time to show its effect."""

    def __init__(self, reserve_bytes: int, *, may_end_all: bool) -> None:
        self._reserve_bytes = reserve_bytes
        self._may_end_all = may_end_all
        self._threshold_bytes = reserve_bytes
        self._left_bytes = reserve_bytes

    def decide(self, left_bytes: int) -> Action:
        """Return the action for a sample.

        After END_LARGEST the next action comes when half of the then remaining memory is gone too.
        """
        assert self._threshold_bytes <= self._reserve_bytes, "an action only lowers the threshold"
        before, self._left_bytes = self._left_bytes, left_bytes
        if left_bytes >= self._reserve_bytes:
            self._threshold_bytes = self._reserve_bytes
            return Action.NOTHING
        if self._may_end_all and left_bytes < min(self._reserve_bytes // LAST_QUARTER, before):
            return Action.END_ALL
        if left_bytes >= self._threshold_bytes:
            return Action.NOTHING
        self._threshold_bytes = left_bytes - max(abs(left_bytes) // 2, 1)
        return Action.END_LARGEST

    def retract(self) -> None:
        """The latest END_LARGEST has ended nothing."""
        self._threshold_bytes = self._reserve_bytes


class KilledProcess(NamedTuple):
    """A process that has got KILL."""

    pid: int
    """In the numbering of this process's PID namespace."""
    rss_bytes: int
    environment: frozenset[bytes]
    """The environment entries at the start of the process, perhaps with the marker of an
    execution."""


class MemoryStandIn:
    """Watches memory from ``begin``, when the warden falls silent, until ``end``, when the warden
    answers.

    Both calls are allowed at any time, also twice in a row.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        configuration: Configure,
        *,
        warden_pid: Callable[[], int | None],
        runtime_bytes: Callable[[], int],
        on_killed: Callable[[KilledProcess], None],
        end_all: Callable[[], None],
    ) -> None:
        """``runtime_bytes``: see ``MemoryPolicy``. ``on_killed`` is called after each killed
        process. ``end_all`` ends the warden."""
        self._loop = loop
        self._warden_pid = warden_pid
        self._runtime_bytes = runtime_bytes
        self._on_killed = on_killed
        self._end_all = end_all
        self._monitor = MemoryMonitor()
        self._is_ready = False
        self.configure(configuration)
        self._shared_bytes_before = self._rest_bytes_before = 0
        self._sampled_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._waits_until = 0.0
        """Until then memory on its way back is waited for, in the present shortage. 0: nothing was
        waited for yet."""

    def configure(self, configuration: Configure) -> None:
        self._configuration = configuration
        self._last_resort = LastResort(
            configuration.reserve_bytes, may_end_all=not configuration.only_growth
        )
        if self._is_ready:
            # A stand-in that had no reserve to watch at the start stays out of use.
            self._monitor.configure(configuration)

    def start(self) -> None:
        """Note the memory before user code runs. Before ``start``, ``begin`` does nothing."""
        if self._configuration.reserve_bytes:
            self._monitor.configure(self._configuration)
            reading = self._monitor.reading()
            self._is_ready = reading is not None
            if reading is not None:
                self._shared_bytes_before = reading.shared_bytes
                self._rest_bytes_before = reading.used_bytes - reading.anonymous_bytes

    async def close(self) -> None:
        """Stop, and wait for a scan in progress."""
        self._is_ready = False
        self.end()
        self._monitor.close()
        if self._ending is not None:
            await asyncio.wait((self._ending,))

    def begin(self) -> None:
        """Sample now and every SAMPLE_SECONDS."""
        if self._is_ready and self._timer is None:
            # User code can stop the warden again and again. The rate of samples does not grow.
            self._monitor.policy.runtime_bytes = self._runtime_bytes()
            due_in_seconds = self._sampled_at + SAMPLE_SECONDS - self._loop.time()
            self._timer = self._loop.call_later(max(due_in_seconds, 0.0), self._sample)

    def end(self) -> None:
        """Stop sampling, because the warden samples again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sample(self) -> None:
        assert self._is_ready, "close() cancels the timer"
        self._sampled_at = self._loop.time()
        self._timer = self._loop.call_later(SAMPLE_SECONDS, self._sample)
        reading = self._monitor.reading()
        if reading is None or not self._monitor.policy.has_been_whole:
            return
        left_bytes = self._monitor.policy.left_bytes(reading)
        if left_bytes >= self._configuration.reserve_bytes:
            self._waits_until = 0.0
        action = self._last_resort.decide(left_bytes)
        warden_pid = self._warden_pid()
        if (
            action is Action.END_LARGEST
            and warden_pid is not None
            and (self._ending is None or self._ending.done())
        ):
            ending = self._end_largest(warden_pid, self._least_bytes(reading, left_bytes))
            self._ending = self._loop.create_task(ending, name="memory-stand-in")
        elif action is Action.END_ALL:
            log.error(
                "memory is nearly gone and the warden is silent: all user code ends",
                extra={"left_bytes": left_bytes},
            )
            self._end_all()

    async def _end_largest(self, warden_pid: int, least_bytes: int) -> None:
        largest, gives_back = await asyncio.to_thread(find_largest_process, warden_pid)
        if largest is None or largest.rss_bytes <= least_bytes:
            return
        ended = None
        has_answered = self._timer is None
        gives_back = gives_back or self._shows_late()
        if not (has_answered or not self._is_short() or (gives_back and self._may_wait())):
            ended = await asyncio.to_thread(end_process, warden_pid, largest)
        if ended is None:
            self._last_resort.retract()
            return
        figures = {"process_pid": ended.pid, "rss_bytes": ended.rss_bytes}
        log.warning(
            "memory is short and the warden is silent: the largest process has got KILL",
            extra=figures,
        )
        self._on_killed(ended)

    def _is_short(self) -> bool:
        reading = self._monitor.reading() if self._is_ready else None
        if reading is None:
            return False
        policy = self._monitor.policy
        left_bytes = policy.left_bytes(reading) + max(policy.given_back_bytes(reading), 0)
        return left_bytes < policy.reserve_bytes

    def _shows_late(self) -> bool:
        """Whether memory that was given back before the first sample may explain the shortage.
        Outside gVisor memory shows as free at once, and the rest grows with the kernel's own."""
        reading = self._monitor.reading() if self._is_ready and is_gvisor() else None
        if reading is None:
            return False
        rest_bytes = reading.used_bytes - reading.anonymous_bytes - self._rest_bytes_before
        missing_bytes = self._configuration.reserve_bytes - self._monitor.policy.left_bytes(reading)
        return rest_bytes >= missing_bytes

    def _may_wait(self) -> bool:
        now = self._loop.time()
        self._waits_until = self._waits_until or now + MAX_WAIT_SECONDS
        return now < self._waits_until

    def _least_bytes(self, reading: Reading, left_bytes: int) -> int:
        """Return the RSS below which no process is the cause.

        Then files in memory are the cause, or programs of the machine outside execd.
        """
        shared_bytes = reading.shared_bytes - self._shared_bytes_before
        if not self._configuration.only_growth:
            return max(shared_bytes, 0)
        missing_bytes = self._configuration.reserve_bytes - left_bytes
        return max(shared_bytes, min(missing_bytes, left_bytes), 0)


def find_largest_process(root: int) -> tuple[Process | None, bool]:
    """Return the process with the largest RSS below ``root``, and whether a process below ``root``
    gives its memory back.

    Blocks for the time of a scan.
    """
    scan = process_tree.Scan()
    scan.advance(SCAN_SECONDS)
    below = [
        process for process in process_tree.descendants(scan.processes, root) if not process.is_dead
    ]
    giving_back = [process for process in below if process.gives_memory_back]
    if giving_back:
        time.sleep(EXEC_SECONDS)
    largest = max(below, key=lambda process: process.rss_bytes, default=None)
    return largest, any(map(_still_gives_memory_back, giving_back))


def _still_gives_memory_back(seen: Process) -> bool:
    now = process_tree.read_process(seen.pid)
    return now is not None and now.start == seen.start and now.gives_memory_back


def end_process(root: int, process: Process) -> KilledProcess | None:
    """KILL a process below ``root``, unless the process has ended."""
    environment = process_tree.read_environment(process.pid)
    now = process_tree.read_process(process.pid)
    if now is None or now.start != process.start:
        return None
    with contextlib.suppress(ProcessLookupError):
        # Tells the warden, before the process shrinks, that the daemon ends a process (``memory``).
        # A warden that is silent for lack of CPU time has got no SIGCONT yet.
        os.kill(root, signal.SIGCONT)
        os.kill(process.pid, signal.SIGKILL)
    return KilledProcess(process.pid, process.rss_bytes, environment)
