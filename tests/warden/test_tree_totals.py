"""Figures of all trees together: of stand-ins, and of a real warden."""

from __future__ import annotations

import asyncio
import resource
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from execd.proc.process_tree import Process
from execd.warden.tree_totals import TreeTotals
from tests.patience import patience
from tests.waiting import DEADLINE_SECONDS, POLL_SECONDS, wait_until_async

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from execd.proc.client import WardenClient
    from execd.proc.totals_file import Totals
    from tests.proc.conftest import Wardens

MIB = 1 << 20
BUSY = "while :; do :; done"
LARGE = """exec python3 -c '
import time
x = bytearray(64 << 20)
print("ready", flush=True)
time.sleep(60)
'"""


def job(
    tree_bytes: int, *, is_idle: bool = False, is_adopted: bool = False, members: int = 1
) -> Any:
    return SimpleNamespace(
        account=SimpleNamespace(tree_bytes=tree_bytes),
        is_idle=is_idle,
        is_adopted=is_adopted,
        members=dict.fromkeys(range(members), 0),
    )


def test_memory_is_told_by_part() -> None:
    jobs = [
        job(1, is_idle=True),
        job(2, is_idle=True, is_adopted=True),
        job(4, is_adopted=True, members=3),
        job(8),
        job(16, members=9),
    ]
    # The scan has seen two of the pids: other trees began later.
    found = TreeTotals().sum(jobs, {0: process(0.0, 0.0), 2: process(0.0, 0.0)})
    assert found[:4] == (3, 4, 24, 7)


def test_the_estimate_of_the_runtimes_memory_is_told() -> None:
    totals = TreeTotals()
    totals.runtime_bytes = 5
    assert totals.sum([], {}).runtime_bytes == 5


def process(user_seconds: float, system_seconds: float) -> Process:
    return Process(1, "R", 0, 1, 1, 0, user_seconds=user_seconds, system_seconds=system_seconds)


def test_cpu_time_never_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = SimpleNamespace(ru_utime=1.0, ru_stime=0.5)
    monkeypatch.setattr(resource, "getrusage", lambda _who: ended)
    totals = TreeTotals()
    living = {0: process(2.0, 0.25), 1: process(0.25, 0.0)}
    assert totals.sum([job(1, members=2)], living).cpu_seconds == 4.0
    assert totals.sum([], {}).cpu_seconds == 4.0  # the kernel counts a little less
    ended.ru_utime = 5.0
    assert totals.sum([], {}).cpu_seconds == 5.5


def read(client: WardenClient) -> Totals:
    found = client.read_totals()
    assert found is not None
    return found


async def read_until(client: WardenClient, fits: Callable[[Totals], bool]) -> Totals:
    """Return the first totals that fit."""
    began = time.monotonic()
    while True:
        found = read(client)
        if fits(found):
            return found
        patience.check(began, DEADLINE_SECONDS, found)
        await asyncio.sleep(POLL_SECONDS)


async def test_living_and_ended_programs_are_in_the_totals(
    wardens: Wardens, client: WardenClient
) -> None:
    # The warden makes the file's first figures when the warden is configured.
    await wait_until_async(lambda: client.read_totals() is not None)
    before = read(client)
    assert before.commands_bytes == before.processes == 0
    large = await wardens.run(client, LARGE)
    await large.says("ready")
    busy = await wardens.run(client, BUSY)

    least_seconds = before.cpu_seconds + 0.5
    seen = await read_until(
        client,
        lambda found: found.commands_bytes > 64 * MIB and found.cpu_seconds > least_seconds,
    )
    assert seen.processes >= 2
    for program in (large, busy):
        client.end_tree(program.child.tag)
        await asyncio.wait_for(program.child.exited, 20)
    after = await read_until(client, lambda found: found.processes == 0)
    assert after.cpu_seconds > least_seconds
    assert after.commands_bytes == 0
    assert (after.zygote_bytes, after.sessions_bytes) == (0, 0)


async def test_a_lost_warden_has_no_totals(wardens: Wardens) -> None:
    async with wardens.start() as client:
        pass
    assert client.read_totals() is None
