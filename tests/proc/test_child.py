from __future__ import annotations

import asyncio

from execd.proc.child import resolve


async def test_the_first_of_two_answers_holds() -> None:
    """The warden's answer and the loss of the warden may both come."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    resolve(future, 1)
    resolve(future, 2)
    assert future.result() == 1
