"""Threads for blocking calls on files: few threads, acting as the user of commands.

A cancelled caller leaves its call to the thread. The call ends in the thread, and ``undo`` gets the
result.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from execd.errors import Unavailable
from execd.proc.spawn import KEEP_IDENTITY, Identity, act_as

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

# Eight threads let a few transfers from slow mounts leave room for others. More would gain nothing
# on two cores, and each thread costs a stack.
MAX_THREADS = 8

# Threads for walks of whole trees; the rest are for short calls.
MAX_LONG = MAX_THREADS // 2

# Calls at a time that copy megabytes from a file to a socket. Each keeps a CPU busy, and in gVisor
# the event loop waits behind all of them: with eight, 300 downloads at once held up ``GET /`` for
# 2.8 s; with two, for 1.2 s.
MAX_COPYING = 2
# How long a call waits for its turn to copy. The calls before may hang on a disk.
COPY_WAIT_SECONDS = 1.0

T = TypeVar("T")


def as_user(identity: Identity, call: Callable[[], T]) -> T:
    """Run ``call`` in a thread with the user's file rights, and return the result. Blocking.

    Raises the errors of ``call``, and OSError if the daemon cannot act as the user.
    """
    if identity == KEEP_IDENTITY:
        return call()

    def run() -> T:
        act_as(identity)
        return call()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


class FileThreads:
    """An executor for file calls. After ``close``, every call may raise Unavailable."""

    def __init__(
        self,
        identity: Identity,
        name: str = "files",
        n_threads: int = MAX_THREADS,
        n_long: int = MAX_LONG,
    ) -> None:
        """``identity``: the user that the threads act as, for a root daemon. ``n_long``: how many
        threads may be in long calls."""
        self._long = asyncio.Semaphore(n_long)
        self._copying = asyncio.Semaphore(MAX_COPYING)
        # A thread that cannot become the user breaks the executor. Every call is then Unavailable,
        # and no call runs as root.
        begin = None if identity == KEEP_IDENTITY else partial(act_as, identity)
        self._executor = ThreadPoolExecutor(n_threads, thread_name_prefix=name, initializer=begin)
        self._working: set[asyncio.Future[Any]] = set()
        """The calls under way, with and without a caller."""

    @property
    def executor(self) -> Executor:
        """The threads themselves, for calls that share their work between threads."""
        return self._executor

    def close(self) -> None:
        """Refuse further calls. Does not wait for the threads: a disk may hang."""
        self._executor.shutdown(wait=False)

    async def settle(self, within_seconds: float) -> bool:
        """Wait until no call is under way, which a cancelled caller has left too. Return whether
        that is so in time."""
        until = time.monotonic() + within_seconds
        while self._working and (left := until - time.monotonic()) > 0:
            await asyncio.wait(self._working, timeout=left)
        return not self._working

    def _note(self, future: asyncio.Future[T]) -> asyncio.Future[T]:
        self._working.add(future)
        future.add_done_callback(self._working.discard)
        return future

    async def run(self, call: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        """Run ``call`` in a thread and return the result.

        If the caller is cancelled, ``undo`` gets the result, in a thread.
        """
        return await self._result(self._submit(call), undo)

    async def run_copying(self, call: Callable[[], T]) -> T:
        """Run in a thread a ``call`` that copies megabytes: MAX_COPYING at a time, but no call
        waits longer than COPY_WAIT_SECONDS for its turn."""
        try:
            async with asyncio.timeout(COPY_WAIT_SECONDS):
                await self._copying.acquire()
        except TimeoutError:
            return await self.run(call)
        try:
            return await self.run(call)
        finally:
            self._copying.release()

    def _submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        try:
            return self._note(asyncio.get_running_loop().run_in_executor(self._executor, call))
        except RuntimeError:
            raise Unavailable(
                "no more file operations: execd is shutting down; repeat the request when execd is "
                "back"
            ) from None

    async def _result(
        self, future: asyncio.Future[T], undo: Callable[[T], None] | None = None
    ) -> T:
        try:
            # ``asyncio.shield`` would report the exception of a call without a caller as unhandled
            # (Python 3.14).
            await asyncio.wait((future,))
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: self._abandon(done, undo))
            raise
        try:
            return future.result()
        except BrokenExecutor:
            raise Unavailable(
                "no file operations: the daemon cannot act as the user that commands run as; "
                "restart execd, or set another --run-as"
            ) from None

    async def run_long(self, call: Callable[[Callable[[], bool]], T]) -> T:
        """Run a long ``call`` in a thread and return the result.

        ``call`` gets a function to ask whether the caller is gone, and may end early then. A long
        call keeps a place among the long calls until the call ends, not until the caller leaves.
        Otherwise an impatient client with repeated requests would take a thread with each request.
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
        # ``exception()`` marks the exception as retrieved; the caller is gone.
        assert done.done()
        if not done.cancelled() and done.exception() is None and undo is not None:
            self.submit_closing(lambda: undo(done.result()))

    def submit_closing(self, call: Callable[[], None]) -> asyncio.Future[None]:
        """Run ``call`` in a thread; after ``close``, in the caller's thread.

        ``call`` runs whether or not the caller awaits the result.
        """
        loop = asyncio.get_running_loop()
        try:
            return self._note(loop.run_in_executor(self._executor, call))
        except RuntimeError:
            call()
            finished = loop.create_future()
            finished.set_result(None)
            return finished
