"""The brake: a thread in C that stops every process of the warden's PID namespace when the warden's
loop is too slow (``_brake.c``).

The brake only stops. ``fork_bombs`` says when to arm the brake, and the supervisor decides after a
stop and continues the processes.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

from execd.proc import spawn

if TYPE_CHECKING:
    from execd.proc.kernel_traits import KernelTraits


_library = spawn.load_library()
_library.execd_brake_start.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_int]
_library.execd_brake_arm.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_int64]
_library.execd_brake_arm.restype = None


class Brake:
    """The brake of this process, for the life of the process. The brake starts released."""

    def __init__(self, loadavg_fd: int, traits: KernelTraits) -> None:
        """Start the thread.

        ``loadavg_fd``: an open ``/proc/loadavg``; the newest pid there is then the count. -1: the
        count is sysinfo(2)'s. Raises OSError: with EPERM where the process is not the init of a PID
        namespace, because kill(-1) would stop the user's machine.
        """
        error = _library.execd_brake_start(
            loadavg_fd, int(traits.stop_pause_seconds * 1e9), traits.brake_quiet_rounds
        )
        if error:
            raise OSError(error, os.strerror(error))

    def arm(self, count: int, max_count: int, patience_seconds: float = 0.0) -> None:
        """Have the brake stop everything when the count, now ``count``, rises above ``max_count``.

        ``patience_seconds``: the brake also stops everything when nobody calls ``arm`` or
        ``release`` within that time. 0: the next call may come at any time. A brake that has
        stopped everything is released.
        """
        assert max_count > 0
        assert patience_seconds >= 0
        _library.execd_brake_arm(count, max_count, int(patience_seconds * 1e9))

    def release(self) -> None:
        """Have the brake stop nothing until the next ``arm``."""
        _library.execd_brake_arm(0, 0, 0)

    @property
    def may_have_fired(self) -> bool:
        """Whether ``take_stop`` may find a stop."""
        return bool(_library.execd_brake_may_have_fired())

    def take_stop(self) -> bool:
        """Whether the brake has stopped everything since the last call, or is about to.

        If so, the caller must continue the processes.
        """
        return bool(_library.execd_brake_fired())
