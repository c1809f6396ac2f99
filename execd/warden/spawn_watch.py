"""The spawn watch: a second thread of the warden, for the time in which vfork(2) holds the main
thread.

vfork holds its caller until the child execs or ends. A held warden does not answer the daemon, and
the daemon then takes the warden for dead and ends everything. User code can prolong a vfork with a
signal: a child that got SIGSTOP (sent to the pids that come next) neither execs nor ends. The brake
stops the child too when the brake stops everything (``fork_bombs``).

The watch checks every CHECK_SECONDS while programs are being started, and sleeps otherwise. The
watch continues a stopped child. The watch kills a child that has been held for
KILL_AFTER_SECONDS, and the death of the child frees the caller as exec does. A killed child has not
run the program, so the main thread may start the program again.

The two threads share attributes without a lock, and each attribute has a single writer. The main
thread writes ``_begun_at``, ``last_begun_at`` and ``_leaders``; the watch writes ``_is_asleep``,
and writes ``killed_pid`` while the main thread is held. Until the exec the child has the warden's
own command line, and the watch knows the child by that line: all further stopped children of the
warden are orphans that some user stopped.
"""

from __future__ import annotations

import _thread
import math
import os
import signal
import time
from typing import TYPE_CHECKING

from execd.proc import process_tree
from execd.warden.job import send_signal

if TYPE_CHECKING:
    from collections.abc import Container

CHECK_SECONDS = 0.05
HELD_SECONDS = 0.1
KILL_AFTER_SECONDS = 1.0
# The watch goes to sleep this long after the last start.
AWAKE_SECONDS = 1.0


class SpawnWatch:
    """The watching thread. Call ``begin`` before each vfork and ``end`` after the vfork.

    The thread ends with the process.
    """

    def __init__(self, leaders: Container[int]) -> None:
        """``leaders``: pids of programs that are past the exec. The watch leaves them alone."""
        self.killed_pid = 0
        """Pid of the child that the watch killed during the last vfork; 0: none."""
        self._leaders = leaders
        self._begun_at = self.last_begun_at = math.inf
        self._is_asleep = False
        # Importing the module threading would add a tenth to the warden's memory.
        self._wake = _thread.allocate_lock()
        self._wake.acquire()
        _thread.start_new_thread(self._run, ())

    def begin(self) -> None:
        """Start watching: the calling thread is about to vfork."""
        assert self._begun_at == math.inf, "vfork does not nest"
        self.killed_pid = 0
        self._begun_at = self.last_begun_at = time.monotonic()
        if self._is_asleep and self._wake.locked():
            self._wake.release()

    def end(self) -> None:
        """Stop watching: the vfork has returned."""
        self._begun_at = math.inf

    def _run(self) -> None:
        while True:
            # A race with ``begin``. If ``begin`` stores the time first, the test below sees the
            # time and the watch stays awake. If the test comes first, ``begin`` finds
            # ``_is_asleep`` set and releases the lock.
            self._is_asleep = True
            if time.monotonic() - self.last_begun_at < AWAKE_SECONDS:
                self._is_asleep = False
                time.sleep(CHECK_SECONDS)
            else:
                self._wake.acquire()
            held_seconds = time.monotonic() - self._begun_at
            if held_seconds > HELD_SECONDS:
                self._free_caller(held_seconds)

    def _free_caller(self, held_seconds: float) -> None:
        child = self._find_held_child()
        if child is None:
            return
        if held_seconds > KILL_AFTER_SECONDS:
            self.killed_pid = child.pid
            send_signal(child.pid, signal.SIGKILL)
        elif child.state == "T":
            send_signal(child.pid, signal.SIGCONT)

    def _find_held_child(self) -> process_tree.Process | None:
        own_command_line = process_tree.read_command_line(os.getpid())
        for pid in sorted(process_tree.pids(), reverse=True):
            if pid in self._leaders:
                continue
            process = process_tree.read_process(pid)
            if process is None or process.parent != os.getpid() or process.is_dead:
                continue
            if process_tree.read_command_line(pid) == own_command_line:
                return process
        return None
