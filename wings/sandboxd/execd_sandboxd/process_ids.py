"""The numbers by which callers name processes: 1, 2, 3 …, never used again. Pure.

sandboxd numbers processes by itself, and so does execd: a pid of the kernel would name two
processes after a reset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from execd.engine.engine_api import NotFound

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_REMEMBERED = 65_536


class ProcessIds:
    """The ids of executions by number. ``is_known``: whether the engine remembers the
    execution."""

    def __init__(self, is_known: Callable[[str], bool]) -> None:
        self._is_known = is_known
        self._executions: dict[int, str] = {}
        self._last = 0

    def add(self, execution_id: str) -> int:
        """Return a new number for the execution. The oldest numbers of forgotten executions go."""
        while self._executions:
            oldest = next(iter(self._executions))
            if len(self._executions) < MAX_REMEMBERED and self._is_known(self._executions[oldest]):
                break
            del self._executions[oldest]
        self._last += 1
        self._executions[self._last] = execution_id
        return self._last

    def execution_id(self, process_id: int) -> str:
        """Raises NotFound."""
        found = self._executions.get(process_id)
        if found is None or not self._is_known(found):
            raise NotFound(f"process_id: there is no process {process_id}")
        return found
