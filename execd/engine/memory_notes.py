"""Notes in the journal while the pod's memory is nearly full, so that the next daemon can name the
likely cause when the kernel ends the pod.

The figures are read when something ends for memory, or should and cannot: the warden tells. Growth
that outruns the warden leaves no note.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING

from execd.engine.store.journal import MemoryRecovered, MemoryShortage
from execd.proc.memory import MAX_LEAD_RESERVES, unused_bytes
from execd.proc.memory_meter import open_meter

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.engine.store.journal import Record
    from execd.proc.pod_memory import PodMemory

NEAR_RESERVES = 1 + MAX_LEAD_RESERVES
"""Memory is nearly full with less than so many reserves left: in gVisor the warden ends fast trees
early."""


class MemoryNotes:
    """Call ``look`` when something ends for memory, ``step`` in each round of the housekeeper, and
    ``close`` at the end of the daemon."""

    def __init__(
        self,
        memory: PodMemory,
        runtime_bytes: Callable[[], int],
        note: Callable[[Record], None],
        plan_round: Callable[[], None],
    ) -> None:
        """``runtime_bytes``: gVisor's own memory. ``note`` appends to the journal. ``plan_round``
        has the housekeeper begin a round soon."""
        self._memory = memory
        self._runtime_bytes = runtime_bytes
        self._note = note
        self._plan_round = plan_round
        self._has_noted = False

    def look(self) -> None:
        """Note the shortage, if there is one."""
        if (shortage := self._read()) is not None:
            self._note(shortage)
            self._has_noted = True
            self._plan_round()

    def step(self) -> float:
        """Note the end of the shortage. Return when the next round is due, on the loop's clock."""
        if self._has_noted and self._read() is None:
            self.close()
        return -math.inf if self._has_noted else math.inf

    def close(self) -> None:
        """The daemon ends in order, or the shortage is over."""
        if self._has_noted:
            self._note(MemoryRecovered())
            self._has_noted = False

    def _read(self) -> MemoryShortage | None:
        if not self._memory.is_guarded:
            return None
        with (
            contextlib.suppress(OSError, ValueError),
            contextlib.closing(open_meter(self._memory.cgroup)) as meter,
        ):
            reading = meter.read()
            size_bytes = min(self._memory.size_bytes, reading.total_bytes)
            left_bytes = unused_bytes(reading, size_bytes, self._runtime_bytes())
            if left_bytes < NEAR_RESERVES * self._memory.reserve_bytes:
                return MemoryShortage(time.time(), left_bytes, size_bytes)
        return None
