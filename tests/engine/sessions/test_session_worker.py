"""The daemon's object for a worker: each reply goes to its own caller."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.engine.sessions.test_manager import run, sessions_in
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from pathlib import Path

SLOW = """
import os, time
class Slow:
    def __dir__(self):
        open('asked', 'w').close()
        while not os.path.exists('answer'): time.sleep(0.01)
        return ['attribute']
slow = Slow()
"""


async def test_a_late_reply_to_a_caller_that_left_is_not_the_next_callers(tmp_path: Path) -> None:
    async with sessions_in(tmp_path) as engine:
        session = await engine.sessions.create()
        await run(engine, session, SLOW)
        left = asyncio.create_task(engine.sessions.complete(session, "slow.", 5))
        await wait_until_async(lambda: (tmp_path / "base/asked").exists(), 20)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        worker = session.worker
        assert worker is not None
        assert worker._answer is None
        asking = asyncio.create_task(engine.sessions.variables(session, 10))
        await wait_until_async(lambda: worker._answer is not None, 20)
        (tmp_path / "base/answer").touch()
        assert (await asking).total == 4
