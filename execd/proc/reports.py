"""Requests for figures of the warden that wait for their answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from execd.proc.child import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.proc.messages import Message

T = TypeVar("T")


class Reports(Generic[T]):
    """The open requests of one kind, by sequence number."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._sequence = 0
        self._open: dict[int, asyncio.Future[T | None]] = {}

    def request(
        self, make: Callable[[int], Message], send: Callable[[Message], None] | None
    ) -> asyncio.Future[T | None]:
        """Send the message that ``make`` makes with the next number. Return a future for the
        answer. ``send`` None: there is no warden, and the answer is None."""
        future: asyncio.Future[T | None] = self._loop.create_future()
        if send is None:
            future.set_result(None)
            return future
        self._sequence += 1
        self._open[self._sequence] = future
        send(make(self._sequence))
        return future

    def answer(self, sequence: int, report: T) -> None:
        """Take an answer. An unknown number is ignored."""
        future = self._open.pop(sequence, None)
        if future is not None:
            resolve(future, report)

    def lose(self) -> None:
        """The warden is lost: the answers to all open requests are None."""
        for future in self._open.values():
            resolve(future, None)
        self._open.clear()
