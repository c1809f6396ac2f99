"""The brake: stops everything in the warden's namespace when tasks grow faster than the warden's loop turns (``_brake.c``)."""

from __future__ import annotations

import ctypes
import os

from execd.proc import spawn

_library = spawn.load_library()
_library.execd_brake_start.argtypes = [ctypes.c_int, ctypes.c_uint64]
_library.execd_brake_arm.argtypes = [ctypes.c_int64, ctypes.c_int64]
_library.execd_brake_arm.restype = None


class Brake:
    """One for the life of the process, which must be the init of a PID namespace. Raises OSError."""

    def __init__(self, loadavg_fd: int, pause_seconds: float) -> None:
        """``loadavg_fd``: an open ``/proc/loadavg``, whose newest pid is then the count; -1: sysinfo(2) counts."""
        error = _library.execd_brake_start(loadavg_fd, int(pause_seconds * 1e9))
        if error:
            raise OSError(error, os.strerror(error))

    def arm(self, count: int, max_count: int) -> None:
        """Stop everything once the count, which is ``count`` now, is above ``max_count``. The brake stops once."""
        assert max_count > 0
        _library.execd_brake_arm(count, max_count)

    def release(self) -> None:
        _library.execd_brake_arm(0, 0)

    def has_stopped(self) -> bool:
        """Whether the brake has stopped everything since the last call: somebody must judge and thaw."""
        return bool(_library.execd_brake_fired())
