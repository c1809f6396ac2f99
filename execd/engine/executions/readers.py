"""The readers of an execution: how many are attached, and whether the last leaving ends the run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable


class Readers:
    """Counts the attached readers. Owns a timer, ended by ``close``."""

    __slots__ = ("_on_abandoned", "_reattach", "count", "is_delivered", "reattach_seconds")

    def __init__(self, on_abandoned: Callable[[], None]) -> None:
        """``on_abandoned``: called when nobody reads, nobody has got the reply, and nobody is
        expected back."""
        self.count = 0
        self.is_delivered = False
        """Whether some reader has got the whole reply."""
        self.reattach_seconds = 0.0
        """How long a client that left is expected back; 0: not at all."""
        self._on_abandoned: Callable[[], None] | None = on_abandoned
        self._reattach: asyncio.TimerHandle | None = None

    def attach(self) -> Attachment:
        return Attachment(self)

    def add(self) -> None:
        self.count += 1
        if self._reattach is not None:
            self._reattach.cancel()

    def remove(self, *, is_delivered: bool) -> None:
        assert self.count > 0
        self.count -= 1
        if is_delivered or self.count or self._on_abandoned is None:
            return
        if self.reattach_seconds > 0:
            loop = asyncio.get_running_loop()
            self._reattach = loop.call_later(self.reattach_seconds, self._on_abandoned)
        else:
            self._on_abandoned()

    def restart_grace(self) -> None:
        """The grace of a client that is expected back begins anew, if a grace has begun."""
        if self.count == 0 and self._reattach is not None and self._on_abandoned is not None:
            self._reattach.cancel()
            loop = asyncio.get_running_loop()
            self._reattach = loop.call_later(self.reattach_seconds, self._on_abandoned)

    def close(self) -> None:
        """The execution has ended: nobody's leaving means anything any more."""
        if self._reattach is not None:
            self._reattach.cancel()
        self._on_abandoned = None  # the owner's method: owner and readers would be a circle


class Attachment:
    """One reader of an execution, for as long as the block."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._is_delivered = False

    def __enter__(self) -> Self:
        self._readers.add()
        return self

    def __exit__(self, *_: object) -> None:
        self._readers.remove(is_delivered=self._is_delivered)

    def delivered(self) -> None:
        """The reply has been written in full."""
        self._is_delivered = self._readers.is_delivered = True

    def excuse(self) -> None:
        """The daemon sends the reader away for being too slow. This is not the reader's decision,
        and ends nothing."""
        self._is_delivered = True
