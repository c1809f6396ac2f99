"""Shares the event loop among links: how much is read of all peers together before other callbacks
have their turn.

Cost is counted in bytes, since one number is easier to keep than two. A frame of any size costs as
much as FRAME_BYTES read from a socket: decoding it and acting on it took 4 us, and 4 KiB are read
in about that time.

One link reads LINK_SHARE at the most when its turn comes. All links together read LOOP_SHARE; then
the rest wait in the order in which they came, and go on in a later turn of the loop. So a flood
delays everybody else by milliseconds, and a link that has little to say is not behind those that
flood: it waits for one share of each at the most. A peer that is not read is blocked by its socket,
which is no harm to honest output.

A turn of the loop costs nothing here until LOOP_SHARE is used up, because the small cells of an
ordinary day must not.
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
    """A link."""

    def read_share(self) -> int:
        """Read what is there, LINK_SHARE at the most (and one frame more). Returns the cost."""


class FrameLease(Protocol):
    """What one link holds of the budget for bytes in flight."""

    def resize(self, size_bytes: int) -> None:
        """Raises ResourceExhausted, and then nothing has changed."""

    def release(self) -> None:
        """Idempotent."""


class Unbounded:
    """A lease of a budget without an end."""

    def resize(self, size_bytes: int) -> None:
        pass

    def release(self) -> None:
        pass


class LinkTurns:
    """One for all links of an event loop. ``new_lease``: of the budget that unfinished frames count
    against."""

    def __init__(self, new_lease: Callable[[], FrameLease] = Unbounded) -> None:
        self.new_lease = new_lease
        self._loop = asyncio.get_running_loop()
        self._left = LOOP_SHARE
        self._waiting: dict[Reader, None] = {}
        self._will_renew = False

    def offer(self, reader: Reader) -> None:
        """It has something to read: it reads now, or as soon as it is its turn."""
        if self._left > 0 and not self._waiting:
            self._let_read(reader)
        else:
            assert self._will_renew
            self._waiting[reader] = None  # which keeps the place that it may have

    def _let_read(self, reader: Reader) -> None:
        try:
            self._left -= reader.read_share()
        finally:
            if (self._left <= 0 or self._waiting) and not self._will_renew:
                self._will_renew = True
                self._loop.call_soon(self._renew)

    def _renew(self) -> None:
        self._will_renew = False
        self._left = LOOP_SHARE
        while self._waiting and self._left > 0:
            reader = next(iter(self._waiting))
            del self._waiting[reader]
            self._let_read(reader)
