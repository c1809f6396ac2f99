"""A second thread of the warden, for the moments in which the first thread is held inside vfork(2).

vfork holds its caller until the child execs. A warden that is held does not answer its daemon,
which takes the warden for dead and ends everything. User code prolongs the moment with a signal: a
child that is stopped (SIGSTOP to the pids that come next) neither execs nor ends. The brake stops
the child too, when it stops everything (``fork_bombs``).

The watch looks every CHECK_SECONDS while programs are being started, and sleeps otherwise. A
stopped child is continued; a child that has been held for KILL_AFTER_SECONDS is killed, which frees
the caller as exec does. A killed child has not run the program, so the main thread may start the
program again.

The two threads share three attributes, and every one has a single writer: ``_begun_at`` and
``_leaders`` the main thread, ``killed_pid`` the watch while the main thread is held. The child is
known by its command line, which is the warden's own until the exec: other stopped children are
orphans that some user stopped.
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
# So long after the last start the watch goes to sleep.
AWAKE_SECONDS = 1.0


class SpawnWatch:
    """``begin`` and ``end`` bracket each vfork. The thread ends with its process."""

    def __init__(self, leaders: Container[int]) -> None:
        """``leaders``: pids that are past their exec."""
        self.killed_pid = 0
        """The child that the watch has killed during the last vfork; 0: none."""
        self._leaders = leaders
        self._begun_at = self._last_begun_at = math.inf
        self._is_asleep = False
        # Not the module threading: its import is a tenth of the warden's memory.
        self._wake = _thread.allocate_lock()
        self._wake.acquire()
        _thread.start_new_thread(self._run, ())

    def begin(self) -> None:
        """The calling thread is about to vfork."""
        self.killed_pid = 0
        self._begun_at = self._last_begun_at = time.monotonic()
        if self._is_asleep and self._wake.locked():
            self._wake.release()

    def end(self) -> None:
        """The vfork has returned."""
        self._begun_at = math.inf

    def _run(self) -> None:
        while True:
            # A start that begins between the test and the sleep finds ``_is_asleep`` set, and
            # releases.
            self._is_asleep = True
            if time.monotonic() - self._last_begun_at < AWAKE_SECONDS:
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
            if process is None or process.parent != os.getpid() or process.dead:
                continue
            if process_tree.read_command_line(pid) == own_command_line:
                return process
        return None
