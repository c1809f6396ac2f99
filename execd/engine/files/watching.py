"""A watch on files for the event loop: wait for the inotify queue, pause, and read on a thread.

Only a consumer's request leads to a read. A slow consumer lets the kernel's queue fill; the kernel
then drops events, and the consumer learns of the loss. Memory is bounded by one batch.

Reading a batch is Python code that runs for as long as changes come, and holds the interpreter's
lock against the event loop. So watches take turns: a single watch reads at a time, and after each
read all watches rest for as long as the read took. Without turns, 60 watches of a directory with
15,000 changes a second held up ``GET /`` for 3.7 s.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from execd.engine.files.transfers import Transfer
from execd.errors import ResourceExhausted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from execd.engine.files.threads import FileThreads
    from execd.files.watch.watcher import News, Watch

# Each watch is a stream and an inotify queue with, often, thousands of kernel watches. The kernel
# allows 128 queues a user by default.
MAX_WATCHES = 64


class Watches:
    """All watches of a service and its views: their number, and their turns to read."""

    def __init__(self) -> None:
        self._count = 0
        self._turn = asyncio.Lock()
        self.is_over = False
        """No news are told any more: the daemon, or the episode, ends."""
        self._waits: set[asyncio.Future[None]] = set()

    def begin(self) -> None:
        """Count a new watch. Raises ResourceExhausted."""
        if self._count >= MAX_WATCHES:
            raise ResourceExhausted(
                f"{MAX_WATCHES} watches are under way already; end one of them, or watch their "
                "common directory with recursive=true",
                retry_after_seconds=10,
            )
        self._count += 1

    def end(self) -> None:
        """Count the end of a watch."""
        assert self._count > 0, "a watch ended twice"
        self._count -= 1

    def end_streams(self) -> None:
        """End all iterations of news now. Otherwise each would hold up the end of the daemon."""
        self.is_over = True
        for wait in self._waits:
            _wake(wait)

    def begin_again(self) -> None:
        """Tell news again, after ``end_streams``: all iterations of before are over."""
        self.is_over = False

    async def wait_readable(self, fd: int, timeout_seconds: float | None) -> bool:
        """Wait until the queue is readable, or ``end_streams`` is called. False: the timeout came
        first."""
        loop = asyncio.get_running_loop()
        wait: asyncio.Future[None] = loop.create_future()
        self._waits.add(wait)
        loop.add_reader(fd, _wake, wait)
        try:
            if self.is_over:
                return True
            async with asyncio.timeout(timeout_seconds):
                await wait
            return True
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(fd)
            self._waits.discard(wait)

    async def take_turn(self, read: Callable[[], Awaitable[News]]) -> News:
        """Wait for the turn, read, and let the next watch read after a rest."""
        loop = asyncio.get_running_loop()
        await self._turn.acquire()
        began = loop.time()
        try:
            return await read()
        finally:
            loop.call_later(loop.time() - began, self._turn.release)


class Watching(Transfer):
    """A watch: an async context manager that ends the watch."""

    def __init__(self, threads: FileThreads, watch: Watch, watches: Watches) -> None:
        """The caller has counted the watch in ``watches``."""
        super().__init__(threads, watch.close)
        self._watches = watches
        self._watch = watch
        self.place = watch.place
        """Path below the root, links resolved."""
        self.n_directories = watch.n_directories
        self.is_complete = watch.is_complete
        """Whether the watch covers every directory of the tree."""

    async def __aexit__(self, *error: object) -> None:
        self._watches.end()
        await super().__aexit__(*error)

    async def news(
        self, debounce_seconds: float, heartbeat_seconds: float = 0
    ) -> AsyncGenerator[News | None, None]:
        """Yield batches of changes; the last batch reports the end of the watch. Without such a
        batch the iteration ends only with the daemon.

        A batch gathers the changes within ``debounce_seconds`` of the first change. Yields None
        whenever ``heartbeat_seconds`` pass without a change (0: never).
        """
        while True:
            if not await self._watches.wait_readable(self._watch.fd, heartbeat_seconds or None):
                yield None
                continue
            if self._watches.is_over:
                return
            await asyncio.sleep(debounce_seconds)
            news = await self.read_now()
            if news.changes or news.missing is not None or news.is_over:
                yield news
            if news.is_over:
                return

    async def read_now(self) -> News:
        """Return the changes since the last read, without waiting for a change."""
        return await self._watches.take_turn(lambda: self.run(self._watch.read))


def _wake(wait: asyncio.Future[None]) -> None:
    if not wait.done():
        wait.set_result(None)
