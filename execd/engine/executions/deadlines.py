"""The clocks of one execution: its deadline, its limit of silence, and the time of its answer.

Deadlines are times of the monotonic clock, because the warden reports the end of a program on the
same clock. The time of the answer is a time of the loop's clock. A timer only calls back; whether a
deadline has passed is decided by the monotonic clock, because the loop's clock stands still within
a turn and a timer can fire early.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, TypeVar

from execd.model import ExitReason

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

T = TypeVar("T")


class Deadlines:
    """Owns its timers; ``stop`` ends all of them."""

    __slots__ = (
        "_look_for_restore",
        "_loop",
        "_on_overrun",
        "_overdue",
        "_read_output",
        "_timers",
        "answer_at",
        "deadline",
        "last_output",
    )

    def __init__(
        self,
        on_overrun: Callable[[ExitReason, float], None],
        read_output: Callable[[], object],
        look_for_restore: Callable[[], object],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """``on_overrun``: called with TIMEOUT or NO_OUTPUT_TIMEOUT and with the time at which the
        limit passed, perhaps long ago (the daemon was stopped, or had no CPU). ``read_output``:
        takes what the program has written by now, before its silence is judged.
        ``look_for_restore``: calls ``postpone`` if the sandbox was frozen, before a limit is
        judged."""
        self.deadline = math.inf
        self.answer_at = math.inf
        self.last_output = 0.0
        """When the program last wrote, on the monotonic clock; set by the owner."""
        self._loop = loop
        self._overdue: asyncio.Future[None] | None = self._loop.create_future()
        self._on_overrun: Callable[[ExitReason, float], object] = on_overrun
        self._read_output: Callable[[], object] = read_output
        self._look_for_restore: Callable[[], object] = look_for_restore
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def overdue(self) -> asyncio.Future[None]:
        """Done when the answer is due. Until ``close``."""
        assert self._overdue is not None
        return self._overdue

    def start(
        self,
        timeout_seconds: float,
        no_output_timeout_seconds: float | None,
        *,
        has_ended: bool,
    ) -> None:
        """The program runs: begin to count both limits from now.

        ``has_ended``: the end of the program is known already, as with most programs. Then no timer
        is set. ``deadline`` tells whether the program was in time.
        """
        assert self.deadline == math.inf, "the clocks of an execution start once"
        self.last_output = time.monotonic()
        self.deadline = self.last_output + timeout_seconds
        if has_ended:
            return
        self._check_deadline()
        if no_output_timeout_seconds is not None:
            self._check_silence(no_output_timeout_seconds)

    def postpone(self, seconds: float) -> None:
        """The program did not run for so long, although the clock did. The timers stay: a timer
        that fires too early begins anew."""
        assert seconds >= 0.0
        self.deadline += seconds
        self.last_output += seconds

    def _check_deadline(self) -> None:
        if self.deadline <= time.monotonic():
            self._look_for_restore()
        seconds_left = self.deadline - time.monotonic()
        if seconds_left <= 0:
            self._on_overrun(ExitReason.TIMEOUT, self.deadline)
        else:
            self._timers.append(self._loop.call_later(seconds_left, self._check_deadline))

    def _check_silence(self, limit_seconds: float) -> None:
        """Check when the limit could have passed, rather than at each write."""
        if self.last_output + limit_seconds <= time.monotonic():
            self._look_for_restore()
            self._read_output()
        seconds_left = self.last_output + limit_seconds - time.monotonic()
        if seconds_left <= 0:
            self._on_overrun(ExitReason.NO_OUTPUT_TIMEOUT, self.last_output + limit_seconds)
        else:
            self._timers.append(
                self._loop.call_later(seconds_left, self._check_silence, limit_seconds)
            )

    def answer_within(self, seconds: float) -> None:
        """Make the answer due after so many seconds, unless it is due earlier."""
        answer_at = self._loop.time() + seconds
        if answer_at < self.answer_at:
            self.answer_at = answer_at
            self._timers.append(self._loop.call_at(answer_at, self.answer_now))

    def answer_now(self) -> None:
        """Make the answer due."""
        if self._overdue is not None and not self._overdue.done():
            self._overdue.set_result(None)

    @property
    def seconds_to_answer(self) -> float:
        """Seconds until the answer is due; inf while no answer is due."""
        return self.answer_at - self._loop.time()

    async def unless_overdue(self, future: asyncio.Future[T]) -> T | None:
        """Return the future's result, or None if the answer is due first."""
        if not future.done():
            await first_of(future, self.overdue)
            if not future.done():
                return None
        return future.result()

    def stop(self) -> None:
        """Judge no limit any more. The answer can still become due (``answer_within``)."""
        for timer in self._timers:
            timer.cancel()
        self._timers = []
        # Both callbacks belong to the owner: without this line owner and clocks would be a circle,
        # which only the garbage collector ends.
        self._on_overrun = self._read_output = self._look_for_restore = _ignore

    def close(self) -> None:
        """The answer is given: keep no future for as long as the execution is remembered."""
        self.stop()
        self._overdue = None


def _ignore(*_: object) -> None:
    """Stand in for the callbacks of clocks that have stopped."""


async def first_of(*futures: asyncio.Future[Any]) -> None:
    """Wait until one of the futures is done; cancel none of them.

    asyncio.wait does the same and takes three times as long for a few futures.
    """
    for future in futures:
        if future.done():
            return
    woken = futures[0].get_loop().create_future()

    def wake(_: object) -> None:
        if not woken.done():
            woken.set_result(None)

    for future in futures:
        future.add_done_callback(wake)
    try:
        await woken
    finally:
        for future in futures:
            future.remove_done_callback(wake)
