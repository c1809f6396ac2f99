"""Episodes: the time between two resets, and the requests of the present episode.

Every request that may act upon the sandbox is inside the episode from ``enter`` to ``leave``. A
reset closes the episode: no request enters any more, and those inside end with their executions or
are cancelled. The next episode begins when nobody is inside. So a request whose body arrives slowly
cannot run in the next episode, whatever the request waits for.

Owners. The task of the request calls ``enter`` and ``leave``; ``Resets`` calls everything else. All
within the engine's loop, and ``enter`` is one step of the loop.

What can race. A task may be cancelled by its peer's departure and by the reset, in both orders:
``was_ended`` is True after a reset's cancellation, and the answer then fails on the wire.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from execd.errors import Conflict, Unavailable

if TYPE_CHECKING:
    from execd.engine.store.journal import EpisodeRecorded

RESET_WORDS = "the sandbox is being reset; repeat the request when the reset is over"


class EpisodeOver(Conflict):
    """The request is for another episode."""


class Episodes:
    """The present episode, and the requests inside."""

    def __init__(self, record: EpisodeRecorded) -> None:
        self.record = record
        self.is_closed = False
        """A reset is under way."""
        self._inside: set[asyncio.Task[Any]] = set()
        self._ended: set[asyncio.Task[Any]] = set()
        self._left = asyncio.Event()
        """While closed: somebody has left."""

    @property
    def current(self) -> str:
        """The opaque id of the episode."""
        return self.record.text

    def check(self, expected: str | None) -> None:
        """Raises EpisodeOver if the caller expects another episode."""
        if expected is not None and expected != self.current:
            raise EpisodeOver(
                f"X-Execd-Expect-Episode: the episode {expected[:64]!r} is over, and nothing was "
                "run; ask whoever has reset the sandbox",
                episode=self.current,
            )

    def enter(self, expected: str | None) -> None:
        """Put the calling task inside. Raises EpisodeOver, Unavailable during a reset."""
        self.check(expected)
        if self.is_closed:
            raise Unavailable(RESET_WORDS, retry_after_seconds=1)
        task = asyncio.current_task()
        assert task is not None, "requests have tasks"
        self._inside.add(task)

    def leave(self) -> None:
        """Idempotent."""
        task = asyncio.current_task()
        assert task is not None, "requests have tasks"
        self._inside.discard(task)
        if self.is_closed:
            self._left.set()
        self._ended.discard(task)

    def was_ended(self) -> bool:
        """Whether the reset has cancelled the calling task, which then goes on to answer."""
        task = asyncio.current_task()
        if task is None or task not in self._ended:
            return False
        self._ended.discard(task)
        task.uncancel()
        return True

    def close(self) -> None:
        """Let no request enter."""
        self.is_closed = True

    async def empty(self, patience_seconds: float, force_seconds: float) -> int:
        """Wait until nobody is inside; after the patience cancel the rest. Return how many are
        still inside after both."""
        assert self.is_closed, "others would enter"
        await self._wait(patience_seconds)
        for task in self._inside:
            self._ended.add(task)
            task.cancel()
        await self._wait(force_seconds)
        return len(self._inside)

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._inside:
                    self._left.clear()
                    await self._left.wait()

    def begin_next(self, record: EpisodeRecorded) -> None:
        """Open the next episode."""
        self.record = record
        self.open()

    def open(self) -> None:
        """Let requests enter again."""
        self.is_closed = False
