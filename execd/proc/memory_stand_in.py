"""The daemon's own watch over the pod's memory, while the warden is silent.

The warden may be stopped by user code, or wait for CPU time, while user code fills the memory. When
three quarters of the reserve are gone and memory still shrinks, the warden ends with all user code,
so that the pod survives. Rejected: to end the largest process alone. The daemon does not know the
tree of a process, and has to tell memory on its way back from memory that is gone: 170 lines for
neighbours of a program that stops the warden and fills the memory at the same time.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from execd.proc.memory import MemoryMonitor

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from execd.proc.messages import Configure

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 0.02
LAST_QUARTER = 4


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
        runtime_bytes: Callable[[], int],
        end_all: Callable[[], None],
    ) -> None:
        """``runtime_bytes``: see ``MemoryPolicy``. ``end_all`` ends the warden."""
        self._loop = loop
        self._runtime_bytes = runtime_bytes
        self._end_all = end_all
        self._monitor = MemoryMonitor()
        self._is_ready = False
        self._configuration = configuration
        self._left_bytes = configuration.reserve_bytes
        """At the last sample."""
        self._sampled_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def configure(self, configuration: Configure) -> None:
        self._configuration = configuration
        if self._is_ready:
            # A stand-in that had no reserve to watch at the start stays out of use.
            self._monitor.configure(configuration)

    def start(self) -> None:
        """Note the memory before user code runs. Before ``start``, ``begin`` does nothing.

        Where further programs of the machine fill the same memory, nothing is watched: the end of
        all user code may not save the machine.
        """
        if self._configuration.reserve_bytes and not self._configuration.only_growth:
            self._monitor.configure(self._configuration)
            self._is_ready = self._monitor.reading() is not None

    def close(self) -> None:
        self._is_ready = False
        self.end()
        self._monitor.close()

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
        # The reserve may never have been whole: that is no fault of a program.
        if reading is None or not self._monitor.policy.has_been_whole:
            return
        before, self._left_bytes = self._left_bytes, self._monitor.policy.left_bytes(reading)
        if self._left_bytes < min(self._configuration.reserve_bytes // LAST_QUARTER, before):
            log.error(
                "memory is nearly gone and the warden is silent: all user code ends",
                extra={"left_bytes": self._left_bytes},
            )
            self._end_all()
