"""The bytes that a directory takes on the disk, counted as the kubelet counts an emptyDir:
``st_blocks`` of every entry and of the directories themselves, each inode once, on the file system
of the top only. So a sparse file counts as what is allocated, and a hard link once.

The count runs in a thread while user code rewrites the tree, and works in slices, so that neither
the event loop nor user code waits for a tree of millions of files.
"""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING, NamedTuple

from execd.files.resolve import Forbidden, TreeChanged
from execd.files.tree_walk import Step, walk

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK_BYTES = 512
# Inodes with more links are remembered, to count each once. Beyond this number each link counts
# with its share of the inode.
MAX_LINKED = 100_000
ENTRIES_PER_CHECK = 64
# A slice of work, and the rest after it: in the walk for a decision, and in any other walk.
SLICE_SECONDS = 0.005
# The part of the time without CPU that counts as work: the disk may work meanwhile, or other
# processes may have the CPU.
WAITING_SHARE = 8
NOTHING_FORBIDDEN = Forbidden(frozenset(), frozenset())


class DiskUsage(NamedTuple):
    used_bytes: int
    n_unreadable: int
    """Directories and entries that could not be read; a walk that user code cut short by moving
    directories counts as one."""
    n_entries: int
    busy_seconds: float


def file_system_bytes(path: str) -> tuple[int, int]:
    """Return the used bytes and the size of the file system of ``path``. Raises OSError."""
    found = os.statvfs(path)
    return (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_blocks * found.f_frsize


def count(path: str, *, rest_seconds: float, stop: Callable[[], bool] = lambda: False) -> DiskUsage:
    """Count the bytes below ``path``. ``rest_seconds``: the pause after each SLICE_SECONDS.

    Ends early if ``stop`` returns True. Raises OSError if ``path`` cannot be read at all.
    """
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    counter = _Counter(os.fstat(top))
    began = slice_began = time.monotonic()
    cpu_began, rested_seconds = time.thread_time(), 0.0
    try:
        for visit in walk(top, NOTHING_FORBIDDEN):
            counter.n_entries += 1
            if visit.step is Step.REFUSED and visit.error is not None:
                counter.n_unreadable += 1
            if visit.step is not Step.LEAVE and visit.info is not None:
                counter.add(visit.info)
            if counter.n_entries % ENTRIES_PER_CHECK == 0:
                now = time.monotonic()
                if now - slice_began > SLICE_SECONDS:
                    if stop():
                        break
                    time.sleep(rest_seconds)
                    slice_began = time.monotonic()
                    rested_seconds += slice_began - now
    except (TreeChanged, OSError):
        counter.n_unreadable += 1
    finally:
        os.close(top)
    awake_seconds = time.monotonic() - began - rested_seconds
    busy_seconds = max(time.thread_time() - cpu_began, awake_seconds / WAITING_SHARE)
    return DiskUsage(counter.used_bytes, counter.n_unreadable, counter.n_entries, busy_seconds)


class _Counter:
    def __init__(self, top: os.stat_result) -> None:
        self.used_bytes = top.st_blocks * BLOCK_BYTES
        self.n_unreadable = self.n_entries = 0
        self._device = top.st_dev
        self._linked: set[int] = set()

    def add(self, info: os.stat_result) -> None:
        if info.st_dev != self._device:
            return
        n_bytes = info.st_blocks * BLOCK_BYTES
        if info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode):
            if info.st_ino in self._linked:
                return
            if len(self._linked) < MAX_LINKED:
                self._linked.add(info.st_ino)
            else:
                n_bytes //= info.st_nlink
        self.used_bytes += n_bytes
