"""The memory that dying processes of a tree give back. Pure.

A dying process first gives its memory to the kernel, then becomes a zombie. In between the process
has no address space, and the memory still counts as used. Beside busy processes that can take more
than half a second.

A process without an address space is not always dying: in gVisor a process lives on like that when
its first thread has ended. So only memory that was seen counts, and only for RETURN_SECONDS: a
living process of this kind keeps nobody from being ended for long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

    from execd.proc.process_tree import Process

RETURN_SECONDS = 3.0


class _Returning(NamedTuple):
    rss_bytes: int
    """In the last scan in which the process had an address space."""
    since: float


class ReturningMemory:
    """The memory that the dying processes of one tree still hold."""

    def __init__(self) -> None:
        self._rss_bytes: dict[tuple[int, int], int] = {}
        """By pid and start, of the last scan."""
        self._returning: dict[tuple[int, int], _Returning] = {}

    def record_scan(self, members: Collection[Process], now: float) -> int:
        """Take note of the tree's processes in a scan. Returns the bytes on their way back."""
        returning = {}
        for process in members:
            key = process.pid, process.start
            if process.gives_memory_back:
                begun = _Returning(self._rss_bytes.get(key, 0), now)
                returning[key] = self._returning.get(key, begun)
        self._returning = returning
        self._rss_bytes = {
            (process.pid, process.start): process.rss_bytes
            for process in members
            if process.rss_bytes
        }
        return sum(
            each.rss_bytes for each in returning.values() if now - each.since < RETURN_SECONDS
        )
