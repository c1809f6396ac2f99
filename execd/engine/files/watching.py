"""A watch on files for the event loop: wait for the inotify queue, pause, and read on a thread.

Only a consumer's request leads to a read. A slow consumer lets the kernel's queue fill; the kernel
then drops events, and the consumer learns of the loss. Memory is bounded by one batch.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Self

from execd.errors import ResourceExhausted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from execd.engine.files.threads import FileThreads
    from execd.files.watch.watcher import News, Watch

# Each watch is a stream and an inotify queue with, often, thousands of kernel watches. The kernel
# allows 128 queues a user by default.
MAX_WATCHES = 64


class WatchCount:
    """The number of watches under way, in a service and all its views."""

    def __init__(self) -> None:
        self._count = 0

    def begin(self) -> None:
        """Count a new watch. Raises ResourceExhausted."""
        if self._count >= MAX_WATCHES:
            raise ResourceExhausted(
                f"{MAX_WATCHES} watches are under way already", retry_after_seconds=10
            )
        self._count += 1

    def end(self) -> None:
        """Count the end of a watch."""
        assert self._count > 0, "a watch ended twice"
        self._count -= 1


class Watching:
    """A watch: an async context manager that ends the watch."""

    def __init__(self, threads: FileThreads, watch: Watch, on_end: Callable[[], None]) -> None:
        self._threads = threads
        self._on_end = on_end
        self._watch = watch
        self._lock = threading.Lock()
        self.place = watch.place
        """Path below the root, links resolved."""
        self.n_directories = watch.n_directories
        self.is_complete = watch.is_complete
        """Whether the watch covers every directory of the tree."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._on_end()
        await asyncio.wait((self._threads.submit_closing(self._close),))

    async def news(
        self, debounce_seconds: float, heartbeat_seconds: float = 0
    ) -> AsyncGenerator[News | None, None]:
        """Yield batches of changes; the last batch reports the end of the watch.

        A batch gathers the changes within ``debounce_seconds`` of the first change. Yields None
        whenever ``heartbeat_seconds`` pass without a change (0: never).
        """
        while True:
            if not await self._readable(heartbeat_seconds or None):
                yield None
                continue
            await asyncio.sleep(debounce_seconds)
            news = await self._threads.run(self._read)
            if news.changes or news.missing is not None or news.is_over:
                yield news
            if news.is_over:
                return

    async def _readable(self, timeout_seconds: float | None) -> bool:
        """Wait until the queue is readable. False: the timeout came first."""
        loop = asyncio.get_running_loop()
        is_readable: asyncio.Future[None] = loop.create_future()
        fd = self._watch.fd

        def on_readable() -> None:
            if not is_readable.done():
                is_readable.set_result(None)

        loop.add_reader(fd, on_readable)
        try:
            async with asyncio.timeout(timeout_seconds):
                await is_readable
            return True
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(fd)

    def _read(self) -> News:
        with self._lock:
            return self._watch.read()

    def _close(self) -> None:
        with self._lock:
            self._watch.close()
