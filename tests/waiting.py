"""Waiting for facts: bounded, and named."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_SECONDS = 0.005


def wait_until(fact: Callable[[], object], deadline_seconds: float = 5.0) -> None:
    """Return when ``fact()`` is true; fail, naming the fact, when time runs out."""
    deadline = time.monotonic() + deadline_seconds
    while not fact():
        assert time.monotonic() < deadline, f"not within {deadline_seconds} s: {fact}"
        time.sleep(POLL_SECONDS)


async def wait_until_async(fact: Callable[[], object], deadline_seconds: float = 5.0) -> None:
    """The same without holding up the loop."""
    deadline = time.monotonic() + deadline_seconds
    while not fact():
        assert time.monotonic() < deadline, f"not within {deadline_seconds} s: {fact}"
        await asyncio.sleep(POLL_SECONDS)
