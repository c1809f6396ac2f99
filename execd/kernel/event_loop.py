"""The event loop of a session's top-level ``await``: made when first needed, kept between cells,
interruptible.

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
"""How long an interrupted cell's task may take to end. Then it is left pending, as any task that a
cell leaves behind."""


class SessionLoop:
    """IPython's ``loop_runner``. Tasks that a cell leaves behind go on while later cells await."""

    _abandoned: ClassVar[list[Any]] = []
    _abandoned_sockets: ClassVar[set[int]] = set()

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_sockets: set[int] = set()
        self._task: asyncio.Task[Any] | None = None
        self.was_interrupted = False
        """Whether the running cell's task was canceled by ``interrupt``."""

    def prepare_for_cell(self) -> None:
        """Before each cell: the loop is the thread's own again, whatever asyncio.run did
        meanwhile."""
        self.was_interrupted = False
        if self._loop is not None and not self._loop.is_closed():
            asyncio.set_event_loop(self._loop)

    def __call__(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        loop = self._get_loop()
        task = self._task = loop.create_task(coroutine)
        try:
            return loop.run_until_complete(task)
        except KeyboardInterrupt:
            # Raised in another task than the cell's, or out of the selector: the cell's is still
            # waiting.
            self._cancel_and_wait(loop, task)
            if task.done() and not task.cancelled():
                return task.result()
            raise
        finally:
            self._task = None

    def interrupt(self) -> bool:
        """Of a signal handler: cancel the cell's task if the loop is waiting. False: raise
        KeyboardInterrupt where you are.

        Code that runs, a task's or not, is better stopped where it is: it may never wait again.
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
        loop.call_soon_threadsafe(task.cancel)  # which also wakes it
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
        """In the zygote, whose forks each make their own."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()
            _forget_current_loop()

    def count_pending_tasks(self) -> int:
        """How many tasks earlier cells have left."""
        return (
            0
            if self._loop is None or self._loop.is_closed()
            else len(asyncio.all_tasks(self._loop))
        )

    def own_sockets(self) -> set[int]:
        """The sockets it wakes itself with: no business of the user's."""
        has_loop = self._loop is not None and not self._loop.is_closed()
        return self._abandoned_sockets | (self._loop_sockets if has_loop else set())

    def abandon_inherited_loop(self) -> None:
        """In a branch: forget the original's loop.

        The kernel's side of it (epoll, its waking socket) is shared with the original, so it can
        neither be used nor properly closed: closing takes its descriptors off the shared epoll. It
        is kept, so that it is not closed as garbage.
        """
        loop, self._loop = self._loop, None
        if loop is None or loop.is_closed():
            return
        self._abandoned.append(loop)
        self._abandoned_sockets.update(self._loop_sockets)
        _forget_current_loop()


def _find_or_make_loop() -> asyncio.AbstractEventLoop:
    """The one that earlier cells have used already, or a new one."""
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
        # With None set, get_event_loop would make none; a new policy's does. From 3.14 on it never
        # does.
        asyncio.set_event_loop_policy(None)
