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

The two threads share words without a lock, also while the main thread is in C (``starts``),
and each word has a single writer. The main thread writes ``begun_at`` and ``last_begun_at``; the
watch writes ``is_asleep``, and writes ``killed_pid`` while the main thread is held. The main thread
also writes ``_leaders``. Until the exec the child has the warden's
own command line, and the watch knows the child by that line: all further stopped children of the
warden are orphans that some user stopped.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
import time
from typing import TYPE_CHECKING

from execd.proc import process_tree, spawn
from execd.warden.job import send_signal

if TYPE_CHECKING:
    from collections.abc import Container

CHECK_SECONDS = 0.05
HELD_SECONDS = 0.1
KILL_AFTER_SECONDS = 1.0
# The watch goes to sleep this long after the last start.
AWAKE_SECONDS = 1.0


_NANOSECONDS = 1_000_000_000


class WatchWords(ctypes.Structure):
    """``struct spawn_watch`` of ``_starts.c``. Times are nanoseconds of the monotonic clock;
    0: never, or no vfork is under way."""

    _fields_ = (
        ("begun_at", ctypes.c_int64),
        ("last_begun_at", ctypes.c_int64),
        ("is_asleep", ctypes.c_int32),
        ("killed_pid", ctypes.c_int32),
    )


_library = spawn.load_library()
_library.execd_watch_begin.argtypes = [ctypes.POINTER(WatchWords), ctypes.c_int64]
_library.execd_watch_may_sleep.argtypes = [
    ctypes.POINTER(WatchWords),
    ctypes.c_int64,
    ctypes.c_int64,
]


class SpawnWatch:
    """The watching thread. Call ``begin`` before each vfork and ``end`` after the vfork.

    The thread ends with the process.
    """

    def __init__(self, leaders: Container[int]) -> None:
        """``leaders``: pids of programs that are past the exec. The watch leaves them alone."""
        self.words = WatchWords()
        self._leaders = leaders
        # Importing the module threading would add a tenth to the warden's memory.
        self._wake = _thread.allocate_lock()
        self._wake.acquire()
        _thread.start_new_thread(self._run, ())

    def begin(self) -> None:
        """Start watching: the calling thread is about to vfork."""
        assert not self.words.begun_at, "vfork does not nest"
        is_asleep = _library.execd_watch_begin(self.words, time.monotonic_ns())
        if is_asleep and self._wake.locked():
            self._wake.release()

    def end(self) -> None:
        """Stop watching: the vfork has returned."""
        self.words.begun_at = 0

    def _run(self) -> None:
        while True:
            # A race with ``begin``. If ``begin`` stores the time first, the watch sees the time and
            # stays awake. If the watch says first that it sleeps, ``begin`` releases the lock.
            if _library.execd_watch_may_sleep(
                self.words, time.monotonic_ns(), int(AWAKE_SECONDS * _NANOSECONDS)
            ):
                self._wake.acquire()
            else:
                time.sleep(CHECK_SECONDS)
            begun_at = self.words.begun_at
            held_seconds = (time.monotonic_ns() - begun_at) / _NANOSECONDS if begun_at else 0.0
            if held_seconds > HELD_SECONDS:
                self._free_caller(held_seconds)

    def _free_caller(self, held_seconds: float) -> None:
        child = self._find_held_child()
        if child is None:
            return
        if held_seconds > KILL_AFTER_SECONDS:
            self.words.killed_pid = child.pid
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
