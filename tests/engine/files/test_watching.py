"""What a watch says, with a scripted queue."""

from __future__ import annotations

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
