"""Threads for calls that block on files: as the user that commands run as, and few, however many
callers there are.

A caller that is cancelled leaves its call to a thread. The call ends there, and ``undo`` gets the
result that nobody takes.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from execd.errors import Unavailable
from execd.proc.spawn import KEEP_IDENTITY, Identity, act_as

if TYPE_CHECKING:
    from collections.abc import Callable

# Eight threads let a few transfers from slow mounts leave room for others. More would gain nothing
# on two cores, and each thread costs a stack.
MAX_THREADS = 8

# So many of the threads may walk whole trees; the rest are for short calls.
MAX_LONG = MAX_THREADS // 2

T = TypeVar("T")


class FileThreads:
    """An executor. ``close`` ends it. Every call may raise Unavailable after that."""

    def __init__(self, identity: Identity) -> None:
        """``identity``: who the threads act as, for a root daemon."""
        self._long = asyncio.Semaphore(MAX_LONG)
        # A thread that could not become that user breaks the executor: then every call is
        # Unavailable, and none is root's.
        begin = None if identity == KEEP_IDENTITY else partial(act_as, identity)
        self._executor = ThreadPoolExecutor(
            MAX_THREADS, thread_name_prefix="files", initializer=begin
        )

    def close(self) -> None:
        """Take no more calls. Calls under way end on their threads, which are not waited for: a
        disk may hang."""
        self._executor.shutdown(wait=False)

    async def run(self, call: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        """The result of ``call``, from a thread. If nobody is there any more to take it, it goes to
        ``undo``."""
        return await self._result(self._submit(call), undo)

    def _submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        try:
            return asyncio.get_running_loop().run_in_executor(self._executor, call)
        except RuntimeError:
            raise Unavailable("no more file operations: shutting down") from None

    async def _result(
        self, future: asyncio.Future[T], undo: Callable[[T], None] | None = None
    ) -> T:
        try:
            # Not shield: that one reports the exception of a call whose caller is gone (Python
            # 3.14) as unhandled.
            await asyncio.wait((future,))
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: self._abandon(done, undo))
            raise
        try:
            return future.result()
        except BrokenExecutor:
            raise Unavailable(
                "no file operations: the daemon cannot act as the user that commands run as"
            ) from None

    async def run_long(self, call: Callable[[Callable[[], bool]], T]) -> T:
        """As ``run``, for a call that may be long. It may ask whether its caller is gone, and end
        early then.

        Its place among the long ones is free when the call has ended, not when its caller has gone:
        clients that lose their patience and ask again would else take one thread each time.
        """
        stopped = threading.Event()
        await self._long.acquire()
        try:
            future = self._submit(lambda: call(stopped.is_set))
        except BaseException:
            self._long.release()
            raise
        future.add_done_callback(lambda _: self._long.release())
        try:
            return await self._result(future)
        finally:
            stopped.set()

    def _abandon(self, done: asyncio.Future[T], undo: Callable[[T], None] | None) -> None:
        # Asking for the exception marks it as seen. It was meant for a caller that is gone.
        if not done.cancelled() and done.exception() is None and undo is not None:
            self.end(lambda: undo(done.result()))

    def end(self, call: Callable[[], None]) -> asyncio.Future[None]:
        """Run ``call`` on a thread, or here when there are none any more. It is sure to run,
        awaited or not."""
        loop = asyncio.get_running_loop()
        try:
            return loop.run_in_executor(self._executor, call)
        except RuntimeError:
            call()
            finished = loop.create_future()
            finished.set_result(None)
            return finished
