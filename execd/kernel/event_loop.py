"""The event loop of a session's top-level ``await``: made at the first ``await``, kept between
cells, interruptible.

An interrupt can find the loop in two states. A task is running Python code: the signal handler
raises KeyboardInterrupt right there. The loop is waiting: the handler cancels the cell's task and
wakes the loop, because a KeyboardInterrupt raised in the loop's own code would reach no task.

Runs in the user's interpreter: standard library only, Python 3.9.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from typing import TYPE_CHECKING, Any, ClassVar

from execd.kernel.descriptors import open_sockets

if TYPE_CHECKING:
    from collections.abc import Coroutine

CANCEL_SECONDS = 1.0
"""Time for an interrupted cell's task to end. After this time the task stays pending, like any task
that a cell leaves behind."""


class SessionLoop:
    """IPython's ``loop_runner``. Tasks left behind by a cell continue while later cells await."""

    # Loops of originals, never closed: see ``abandon_inherited_loop``.
    _abandoned: ClassVar[list[Any]] = []
    _abandoned_sockets: ClassVar[set[int]] = set()

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_sockets: set[int] = set()
        self._task: asyncio.Task[Any] | None = None
        self.was_interrupted = False
        """Whether an interrupt canceled the running cell's task."""

    def prepare_for_cell(self) -> None:
        """Make the session's loop the thread's current loop again.

        asyncio.run in an earlier cell has set the current loop to None.
        """
        self.was_interrupted = False
        if self._loop is not None and not self._loop.is_closed():
            asyncio.set_event_loop(self._loop)

    def __call__(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a cell's coroutine to its end. Raises the coroutine's error, KeyboardInterrupt."""
        loop = self._get_loop()
        task = self._task = loop.create_task(coroutine)
        try:
            return loop.run_until_complete(task)
        except KeyboardInterrupt:
            # Raised in a background task or out of the selector: the cell's task still waits.
            self._cancel_and_wait(loop, task)
            if task.done() and not task.cancelled():
                return task.result()
            raise
        finally:
            self._task = None

    def interrupt(self) -> bool:
        """Cancel the cell's task if the loop is waiting. Called by the signal handler.

        Returns False if Python code is running; the caller then raises KeyboardInterrupt at once,
        because running code may never wait again. Returns False for a second interrupt as well.
        """
        loop, task = self._loop, self._task
        if (
            self.was_interrupted
            or task is None
            or loop is None
            or not loop.is_running()
            or asyncio.current_task(loop) is not None
        ):
            return False
        self.was_interrupted = True
        loop.call_soon_threadsafe(task.cancel)  # wakes the loop, call_soon does not
        return True

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._loop.is_closed():
            open_before = open_sockets()
            self._loop = _find_or_make_loop()
            self._loop_sockets = open_sockets() - open_before
            asyncio.set_event_loop(self._loop)
        return self._loop

    def _cancel_and_wait(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        self.was_interrupted = True
        task.cancel()
        loop.run_until_complete(asyncio.wait([task], timeout=CANCEL_SECONDS))

    def close(self) -> None:
        """Close the zygote's loop. Each worker makes a loop of its own."""
        loop, self._loop = self._loop, None
        if loop is not None:
            assert not loop.is_running()
            loop.close()
            _forget_current_loop()

    def count_pending_tasks(self) -> int:
        """Return the number of tasks left behind by earlier cells."""
        return (
            0
            if self._loop is None or self._loop.is_closed()
            else len(asyncio.all_tasks(self._loop))
        )

    def own_sockets(self) -> set[int]:
        """Return the sockets by which the loop wakes itself. Sockets of a loop made by user code
        count as user code's."""
        has_loop = self._loop is not None and not self._loop.is_closed()
        return self._abandoned_sockets | (self._loop_sockets if has_loop else set())

    def abandon_inherited_loop(self) -> None:
        """Forget the original's loop. Called in a branch.

        Branch and original share the loop's kernel objects (epoll, the waking sockets). The branch
        can neither use nor close the loop: closing would remove descriptors from the shared epoll.
        ``_abandoned`` keeps the loop from being closed as garbage.
        """
        loop, self._loop = self._loop, None
        if loop is None or loop.is_closed():
            return
        self._abandoned.append(loop)
        self._abandoned_sockets.update(self._loop_sockets)
        _forget_current_loop()


def _find_or_make_loop() -> asyncio.AbstractEventLoop:
    """Return the thread's current loop, made by an earlier cell, or a new loop."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            loop = asyncio.get_event_loop()
    except RuntimeError:
        return asyncio.new_event_loop()
    return asyncio.new_event_loop() if loop.is_closed() else loop


def _forget_current_loop() -> None:
    asyncio.set_event_loop(None)
    if sys.version_info < (3, 14):
        # After set_event_loop(None), get_event_loop makes no new loop. With a new policy the
        # function makes a loop again, as at the start of a process. From 3.14 on the function never
        # makes a loop.
        asyncio.set_event_loop_policy(None)
