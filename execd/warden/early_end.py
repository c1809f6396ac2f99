"""The early end: most programs end within a millisecond and leave no process behind. Such a program
never becomes a job (``_early_end.c``).

A job costs much more than a program with an early end: entries in the tables, a start-up watch, a
scan of /proc, counts of tasks, and turns of the loop in between. All of these serve programs that
live on, or whose descendants live on. So the warden waits for EARLY_SECONDS right after a start, as
long as no further request comes, and makes a job of a program that is still there.

The wait is no longer than the loop's own wait before it announces a start, and ends with the next
request, so nobody waits longer than without the early end.

Linux only: gVisor does not tell the newest pid. (The quick starts have another proof there.)
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from execd.proc import spawn
from execd.warden.own_peak import KIB


class EarlyEnd(NamedTuple):
    """What the kernel tells of a program that has ended: wait4(2). The program is reaped."""

    wait_status: int
    max_rss_bytes: int
    user_seconds: float
    system_seconds: float
    has_more: bool
    """A further child waits to be reaped, and its SIGCHLD has been taken."""

    @classmethod
    def of(cls, fields: EarlyEndFields) -> EarlyEnd:
        return cls(
            fields.wait_status,
            fields.max_rss_kib * KIB,
            fields.user_seconds,
            fields.system_seconds,
            bool(fields.has_more),
        )


class EarlyEndFields(ctypes.Structure):
    """``struct early_end`` of the C."""

    _fields_ = (
        ("wait_status", ctypes.c_int32),
        ("has_more", ctypes.c_int32),
        ("max_rss_kib", ctypes.c_int64),
        ("user_seconds", ctypes.c_double),
        ("system_seconds", ctypes.c_double),
    )


_library = spawn.load_library()
_library.execd_await_early_end.argtypes = [
    ctypes.c_int32,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
    ctypes.POINTER(EarlyEndFields),
]


class EarlyEnds:
    """Waits for early ends, with descriptors that live as long as the process."""

    def __init__(
        self, *, child_signals: int, requests: int, loadavg_fd: int, within_seconds: float
    ) -> None:
        """``child_signals``: see ``spawn.open_child_signals``. ``requests``: a wait ends when this
        descriptor has something to read. ``loadavg_fd``: an open ``/proc/loadavg``."""
        assert 0 < within_seconds < 1
        self._child_signals = child_signals
        self._requests = requests
        self._loadavg = loadavg_fd
        self._nanoseconds = int(within_seconds * 1e9)
        self._end = EarlyEndFields()

    def wait(self, pid: int) -> EarlyEnd | None:
        """Wait for the end of the child ``pid``. None: the child lives, or may have descendants,
        or another child has ended first. Then the child is not reaped."""
        end = self._end
        if not _library.execd_await_early_end(
            pid, self._child_signals, self._requests, self._loadavg, self._nanoseconds, end
        ):
            return None
        return EarlyEnd.of(end)
