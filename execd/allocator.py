"""The daemon's memory allocator: glibc's malloc, in two places where the defaults do not fit a
daemon of many small requests. Other C libraries have neither function, and nothing is done there.

Arenas. By default each new thread gets an arena of its own, up to 8 for each CPU, and memory that
is free in one arena is no use to another. The daemon's threads mostly wait.

Free memory. malloc gives memory back to the kernel only from the end of its heap. A daemon under a
mixed load keeps holes between the objects that live longer: twice the memory in use after ten
minutes, and more each minute. malloc_trim(3) gives the pages of the holes back, in half a
millisecond. The start of the daemon leaves 0.8 MiB of such holes too. A fixed, low M_MMAP_THRESHOLD
(mallopt(3)) leaves no holes, but then an upload takes three times the CPU, for the pages of each
piece.
"""

from __future__ import annotations

import contextlib
import ctypes
import math

# <malloc.h>
_M_ARENA_MAX = -8
ARENAS = 2
PAUSE_SECONDS = 10.0
"""Between two returns. The daemon's requests take the pages again, at a page fault each."""


def limit_arenas() -> None:
    """Keep malloc to ARENAS (mallopt(3)). To be called before the first thread begins."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS)


def give_back_memory() -> None:
    """Give the free memory of this process back to the kernel: malloc_trim(3)."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t())


class MemoryReturn:
    """Gives free memory back to the kernel, PAUSE_SECONDS apart."""

    def __init__(self) -> None:
        self._next = -math.inf

    def step(self, now: float) -> float:
        """Give memory back, unless the last time was less than PAUSE_SECONDS ago.

        Called after commands and cells (``housekeeping``). Return when the next step is due on the
        clock of ``now``; infinity: after further work.
        """
        if now < self._next:
            return self._next
        give_back_memory()
        self._next = now + PAUSE_SECONDS
        return math.inf
