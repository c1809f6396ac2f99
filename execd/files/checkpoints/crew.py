"""Threads that go through a list of files together.

Reading and hashing wait for the disk, or run without the interpreter's lock. The caller's own
thread works too, so the work is done even if no other thread has time.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import wait
from typing import TYPE_CHECKING, TypeVar

from execd.files.checkpoints.directories import Directories

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

T = TypeVar("T")
R = TypeVar("R")

BUFFER_BYTES = 1 << 20
MAX_BATCH = 64
"""Files that a thread takes at once: neighbours, whose directories stay open."""


class Place:
    """What each thread holds while it works: the directories of the root, and a buffer."""

    def __init__(self, top: int, stop: Callable[[], bool]) -> None:
        self.directories = Directories(top)
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        self.stop = stop


class Crew:
    """Helpers of the calling thread."""

    def __init__(self, executor: Executor | None = None, n_helpers: int = 0) -> None:
        """``executor``: with threads that act as the calling thread does."""
        self._executor = executor
        self._n_helpers = n_helpers

    def share(
        self, top: int, items: Sequence[T], work: Callable[[Place, T], R], stop: Callable[[], bool]
    ) -> list[R]:
        """Return ``work`` of each item, in their order. Raises what ``work`` raises."""
        size = max(1, min(MAX_BATCH, len(items) // (4 * (self._n_helpers + 1))))
        batches = deque(range(0, len(items), size))
        results: dict[int, list[R]] = {}

        def take_batches() -> None:
            place = Place(top, stop)
            with place.directories:
                while batches:
                    try:
                        first = batches.popleft()
                    except IndexError:
                        return  # another thread was faster
                    results[first] = [work(place, item) for item in items[first : first + size]]

        futures = []
        if self._executor is not None and len(batches) > 1:
            n_helpers = min(self._n_helpers, len(batches) - 1)
            futures = [self._executor.submit(take_batches) for _ in range(n_helpers)]
        try:
            take_batches()
        finally:
            batches.clear()
            wait([future for future in futures if not future.cancel()])
        for future in futures:
            if not future.cancelled():
                future.result()
        return [result for first in sorted(results) for result in results[first]]
