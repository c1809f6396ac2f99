"""The sentinel: a thread that sleeps in epoll_wait(2), and wakes when the process goes on after a
stop.

The kernel ends the epoll_wait of a process that goes on after a stop with EINTR, without a signal
handler, on Linux (signal(7), "Interruption of system calls and library functions by stop signals")
and in gVisor. In gVisor this holds for SIGSTOP and SIGCONT, for a pause of the sandbox, for a
checkpoint that leaves the sandbox running, and for a restore (measured with runsc 20240729). Python
and uvloop hide EINTR, so the thread calls the C library itself.

A sentinel costs a thread, and no wake-up.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

EVENT_BYTES = 16
"""At least the size of struct epoll_event, which nobody reads."""
FOREVER = -1


class StopSentinel:
    """Calls ``on_continued`` in the thread after each stop. ``close`` ends the thread."""

    def __init__(self, on_continued: Callable[[], object]) -> None:
        self._on_continued = on_continued
        self._end = os.eventfd(0, os.EFD_CLOEXEC)
        self._poll = select.epoll()
        self._poll.register(self._end, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="stop-sentinel", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        os.eventfd_write(self._end, 1)
        if self._thread.ident is not None:
            self._thread.join()
        self._poll.close()
        os.close(self._end)

    def _run(self) -> None:
        # Signals are the main thread's, and would look like stops here.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        epoll_wait = ctypes.CDLL(None, use_errno=True).epoll_wait
        event = ctypes.create_string_buffer(EVENT_BYTES)
        while epoll_wait(self._poll.fileno(), event, 1, FOREVER) < 0:
            if ctypes.get_errno() != errno.EINTR:
                return  # impossible by epoll_wait(2); a loop of errors would take a CPU
            self._on_continued()
