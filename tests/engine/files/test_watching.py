"""What a watch says, with a scripted queue."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, cast

from execd.engine.files.watching import Watches, Watching
from execd.files.watch.watcher import News

if TYPE_CHECKING:
    from collections.abc import Callable


class ScriptedWatch:
    place, n_directories, is_complete = b"", 1, True

    def __init__(self, fd: int, *news: News) -> None:
        self.fd = fd
        self._news = list(news)

    def read(self) -> News:
        return self._news.pop(0)

    def close(self) -> None:
        pass


class NoThreads:
    async def run(self, work: Callable[[], News]) -> News:
        return work()


async def test_a_batch_that_says_nothing_is_left_out_and_one_that_tells_of_a_loss_is_not() -> None:
    lost, over = News([], missing="queue"), News([], is_over=True)
    readable, writable = os.pipe()
    try:
        os.write(writable, b"always readable")
        watch = ScriptedWatch(readable, News([]), lost, News([]), over)
        watching = Watching(cast("Any", NoThreads()), cast("Any", watch), Watches())
        assert [news async for news in watching.news(0.0)] == [lost, over]
    finally:
        os.close(readable)
        os.close(writable)


async def test_the_end_of_the_daemon_ends_the_news_that_wait_and_those_to_come() -> None:
    readable, writable = os.pipe()
    try:
        watches = Watches()
        watch = ScriptedWatch(readable)
        watching = Watching(cast("Any", NoThreads()), cast("Any", watch), watches)

        async def read() -> list[News | None]:
            return [news async for news in watching.news(0.0)]

        waiting = asyncio.create_task(read())
        await asyncio.sleep(0)
        assert not waiting.done()
        watches.end_streams()
        assert await waiting == []
        assert await read() == []
    finally:
        os.close(readable)
        os.close(writable)


async def test_read_now_does_not_wait_for_a_change() -> None:
    nothing = News([])
    watching = Watching(
        cast("Any", NoThreads()), cast("Any", ScriptedWatch(-1, nothing)), Watches()
    )
    assert await watching.read_now() is nothing
