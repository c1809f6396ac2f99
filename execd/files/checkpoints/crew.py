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

    from execd.files.checkpoints.entries import TreeEntry

R = TypeVar("R")

BUFFER_BYTES = 1 << 20
MAX_BATCH = 64
"""Files that a thread takes at once: neighbours, whose directories stay open."""
SMALL_BYTES = 1 << 16
"""A smaller file is read by the calling thread alone. Another thread would wait for the interpreter
after each call of the kernel: two threads took 1.8 times as long for files of 1 KB, and half as
long for files of 256 KiB."""


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
        self,
        top: int,
        entries: Sequence[TreeEntry],
        work: Callable[[Place, TreeEntry], R],
        stop: Callable[[], bool],
    ) -> list[R]:
        """Return ``work`` of each file, in their order. Raises what ``work`` raises."""
        small: list[int] = []
        rest: list[int] = []
        for number, entry in enumerate(entries):
            (small if entry.size_bytes < SMALL_BYTES else rest).append(number)
        size = max(1, min(MAX_BATCH, len(rest) // (4 * (self._n_helpers + 1))))
        large: deque[Sequence[int]] = deque(
            rest[first : first + size] for first in range(0, len(rest), size)
        )
        results: dict[int, R] = {}

        def take(batches: deque[Sequence[int]]) -> None:
            place = Place(top, stop)
            with place.directories:
                while batches:
                    try:
                        batch = batches.popleft()
                    except IndexError:
                        return  # another thread was faster
                    for number in batch:
                        results[number] = work(place, entries[number])

        futures = []
        if self._executor is not None and len(large) > 1:
            n_helpers = min(self._n_helpers, len(large) - 1)
            futures = [self._executor.submit(take, large) for _ in range(n_helpers)]
        try:
            take(deque([small]))
            take(large)
        finally:
            large.clear()
            wait([future for future in futures if not future.cancel()])
        for future in futures:
            if not future.cancelled():
                future.result()
        return [results[number] for number in range(len(entries))]
