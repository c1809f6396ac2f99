from __future__ import annotations

import asyncio
import contextlib

import pytest

from execd.engine.episodes import EpisodeOver, Episodes
from execd.engine.store.journal import EpisodeRecorded
from execd.errors import Unavailable

FIRST, SECOND = EpisodeRecorded("abc", 1), EpisodeRecorded("abc", 2)


async def request(episodes: Episodes, until: asyncio.Event, log: list[str]) -> None:
    """A request as the middleware serves it."""
    try:
        episodes.enter(None)
        await until.wait()
        log.append("done")
    except asyncio.CancelledError:
        if not episodes.was_ended():
            raise
        await asyncio.sleep(0)  # the answer is written
        log.append("ended")
    finally:
        episodes.leave()


async def test_a_request_of_another_episode_does_not_enter() -> None:
    episodes = Episodes(FIRST)
    episodes.enter("abc-1")
    episodes.leave()
    with pytest.raises(EpisodeOver) as caught:
        episodes.enter("abc-2")
    assert caught.value.details == {"episode": "abc-1"}


async def test_a_closed_episode_lets_nobody_in_and_a_new_one_does() -> None:
    episodes = Episodes(FIRST)
    episodes.close()
    with pytest.raises(Unavailable):
        episodes.enter(None)
    with pytest.raises(EpisodeOver):
        episodes.enter("abc-2")
    episodes.begin_next(SECOND)
    episodes.enter("abc-2")
    episodes.leave()


async def test_requests_leave_by_themselves_within_the_patience() -> None:
    episodes, until, log = Episodes(FIRST), asyncio.Event(), list[str]()
    task = asyncio.create_task(request(episodes, until, log))
    await asyncio.sleep(0)
    episodes.close()
    emptying = asyncio.create_task(episodes.empty(60.0, 60.0))
    await asyncio.sleep(0)
    assert not emptying.done()
    until.set()
    assert await emptying == 0
    await task
    assert log == ["done"]


async def test_a_request_that_does_not_leave_is_cancelled_and_answers() -> None:
    episodes, log = Episodes(FIRST), list[str]()
    task = asyncio.create_task(request(episodes, asyncio.Event(), log))
    await asyncio.sleep(0)
    episodes.close()
    assert await episodes.empty(0.0, 60.0) == 0
    await task
    assert log == ["ended"]


async def test_a_request_that_resists_is_counted() -> None:
    episodes, release = Episodes(FIRST), asyncio.Event()

    async def resist() -> None:
        episodes.enter(None)
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()
        episodes.leave()

    task = asyncio.create_task(resist())
    await asyncio.sleep(0)
    episodes.close()
    assert await episodes.empty(0.0, 0.01) == 1
    release.set()
    await task


async def test_a_request_whose_peer_leaves_is_not_ended_by_a_reset() -> None:
    episodes, log = Episodes(FIRST), list[str]()
    task = asyncio.create_task(request(episodes, asyncio.Event(), log))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == []
    episodes.close()
    assert await episodes.empty(0.0, 0.0) == 0
