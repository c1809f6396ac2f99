"""The brake: a thread in C that stops everything in the warden's namespace when the warden's loop
is too slow (``_brake.c``)."""

from __future__ import annotations

import ctypes
import os
from typing import NamedTuple

from execd.proc import spawn


class BrakeTiming(NamedTuple):
    """How the brake looks and stops."""

    pause_seconds: float
    """Between two looks, and between two rounds of SIGSTOP."""
    quiet_rounds: int
    """Everything stands still when so many rounds have found no new task. 0: after the first
    round."""


# Natively a bomb makes ten processes a millisecond, and the earlier the brake looks, the smaller
# the crowd that the brake itself competes with for the CPU. A look takes 3 microseconds; in gVisor
# ten times as much.
NATIVE_TIMING = BrakeTiming(pause_seconds=0.005, quiet_rounds=0)
GVISOR_TIMING = BrakeTiming(pause_seconds=0.02, quiet_rounds=5)

_library = spawn.load_library()
_library.execd_brake_start.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_int]
_library.execd_brake_arm.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_int64]
_library.execd_brake_arm.restype = None


class Brake:
    """One for the life of the process, which must be the init of a PID namespace. Raises
    OSError."""

    def __init__(self, loadavg_fd: int, timing: BrakeTiming) -> None:
        """``loadavg_fd``: an open ``/proc/loadavg``, whose newest pid is then the count; -1:
        sysinfo(2) counts."""
        error = _library.execd_brake_start(
            loadavg_fd, int(timing.pause_seconds * 1e9), timing.quiet_rounds
        )
        if error:
            raise OSError(error, os.strerror(error))

    def arm(self, count: int, max_count: int, patience_seconds: float = 0.0) -> None:
        """Stop everything once the count, which is ``count`` now, is above ``max_count``. The brake
        stops once.

        ``patience_seconds``: everything is also stopped when the brake is not armed again, or
        released, by then. 0: never.
        """
        assert max_count > 0
        assert patience_seconds >= 0
        _library.execd_brake_arm(count, max_count, int(patience_seconds * 1e9))

    def release(self) -> None:
        _library.execd_brake_arm(0, 0, 0)

    def take_stop(self) -> bool:
        """Whether the brake has stopped everything since the last call: somebody must judge and
        thaw."""
        return bool(_library.execd_brake_fired())
