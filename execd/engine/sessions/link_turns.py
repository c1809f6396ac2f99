"""Turns of links: how many bytes are read from all peers together before other callbacks run.

Cost is counted in bytes, as one number. A frame of any size costs FRAME_BYTES: to decode a frame
and act on the frame took 4 us, about the time of reading 4 KiB from a socket.

One link reads at most LINK_SHARE in a turn. All links together read LOOP_SHARE; then the remaining
links wait in a queue, first come, first served, until a later turn of the event loop. So a flood
delays all other callbacks by milliseconds, and a link with few frames waits for at most one share
of each flooding link. An unread link blocks the peer in the socket, and the output of an honest
peer is only delayed.

Until LOOP_SHARE is used up, a turn adds no callback to the event loop, so small cells pay nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

FRAME_BYTES = 4096
LINK_SHARE = 256 * 1024
LOOP_SHARE = 4 * LINK_SHARE


class Reader(Protocol):
    """A link, as seen by ``LinkTurns``."""

    def read_share(self) -> int:
        """Read at most LINK_SHARE and a frame. Return the cost."""


class FrameLease(Protocol):
    """The share of a link in the budget for bytes in flight (``in_flight``)."""

    def resize(self, size_bytes: int) -> None:
        """Set the size. Raises ResourceExhausted and keeps the old size."""

    def release(self) -> None:
        """Set the size to 0. Idempotent."""


class LinkTurns:
    """The queue of the links of an event loop.

    ``new_lease`` makes a lease of the budget for unfinished frames.
    """

    def __init__(self, new_lease: Callable[[], FrameLease]) -> None:
        self.new_lease = new_lease
        self._loop = asyncio.get_running_loop()
        self._left = LOOP_SHARE
        """Cost left for this turn; negative after a link's last frame."""
        self._waiting: dict[Reader, None] = {}
        self._will_renew = False

    def offer(self, reader: Reader) -> None:
        """Let a readable link read, now or in a later turn."""
        if self._left > 0 and not self._waiting:
            self._let_read(reader)
        else:
            assert self._will_renew, "a queue without a callback would wait forever"
            self._waiting[reader] = None  # a link in the queue keeps its place

    def _let_read(self, reader: Reader) -> None:
        try:
            cost = reader.read_share()
            assert cost >= 0
            self._left -= cost
        finally:
            if (self._left <= 0 or self._waiting) and not self._will_renew:
                self._will_renew = True
                self._loop.call_soon(self._renew)

    def _renew(self) -> None:
        """Begin a new turn."""
        assert self._will_renew
        self._will_renew = False
        self._left = LOOP_SHARE
        while self._waiting and self._left > 0:
            reader = next(iter(self._waiting))
            del self._waiting[reader]
            self._let_read(reader)
