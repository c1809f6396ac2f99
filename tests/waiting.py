"""Waiting for facts: bounded, and named.

The default deadline is far longer than a fact needs, and each deadline is longer on a slow or busy
machine (tests/patience.py). A fact ends the wait at once, so only a failing test waits as long.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from tests.patience import patience

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_SECONDS = 0.005
DEADLINE_SECONDS = 10.0


def wait_until(fact: Callable[[], object], deadline_seconds: float = DEADLINE_SECONDS) -> None:
    """Return when ``fact()`` is true; fail, naming the fact, when time runs out."""
    began = time.monotonic()
    while not fact():
        patience.check(began, deadline_seconds, fact)
        time.sleep(POLL_SECONDS)


async def wait_until_async(
    fact: Callable[[], object], deadline_seconds: float = DEADLINE_SECONDS
) -> None:
    """The same without holding up the loop."""
    began = time.monotonic()
    while not fact():
        patience.check(began, deadline_seconds, fact)
        await asyncio.sleep(POLL_SECONDS)
