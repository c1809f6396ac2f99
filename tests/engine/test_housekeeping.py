"""Rounds of housekeeping: only when a round is due."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

import pytest

from execd import allocator
from execd.engine import housekeeping
from execd.engine.executions.submission import Submission
from execd.engine.housekeeping import Housekeeper
from execd.model import ExitReason
from tests.engine.conftest import running, sh, shell_command
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from pathlib import Path

    from execd.engine.engine import Engine

PAUSE_SECONDS = 0.05


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "PAUSE_SECONDS", PAUSE_SECONDS)
    monkeypatch.setattr(allocator, "PAUSE_SECONDS", 0.0)  # no round for free memory alone


class Rounds:
    """Counts rounds. ``due_in_seconds``: when each round says that the next round is due."""

    def __init__(self, due_in_seconds: float) -> None:
        self.due_in_seconds = due_in_seconds
        self.began_at: list[float] = []

    async def __call__(self) -> float:
        now = asyncio.get_running_loop().time()
        self.began_at.append(now)
        return now + self.due_in_seconds


async def test_without_a_plan_there_is_no_round_and_no_timer() -> None:
    keeper, rounds = Housekeeper(), Rounds(math.inf)
    keeper.start(rounds)
    assert keeper._timer is None
    keeper.plan_soon()
    await wait_until_async(lambda: len(rounds.began_at) == 1)
    await wait_until_async(lambda: keeper._timer is None)
    await keeper.close()
    assert len(rounds.began_at) == 1


async def test_the_earliest_plan_counts() -> None:
    keeper, rounds = Housekeeper(), Rounds(math.inf)
    keeper.start(rounds)
    loop = asyncio.get_running_loop()
    keeper.plan(loop.time() + 3600.0)
    keeper.plan(loop.time())
    keeper.plan(loop.time() + 7200.0)
    await wait_until_async(lambda: len(rounds.began_at) == 1)
    await keeper.close()


@pytest.mark.parametrize("due_in_seconds", [-math.inf, PAUSE_SECONDS])
async def test_a_pause_comes_between_two_rounds(due_in_seconds: float) -> None:
    keeper, rounds = Housekeeper(), Rounds(due_in_seconds)
    keeper.start(rounds)
    keeper.plan(asyncio.get_running_loop().time())
    await wait_until_async(lambda: len(rounds.began_at) >= 3)
    await keeper.close()
    first, second, third = rounds.began_at[:3]
    # uvloop's timers count milliseconds.
    assert min(second - first, third - second) > PAUSE_SECONDS - 0.002


def timer_of(engine: Engine) -> asyncio.TimerHandle | None:
    return engine._parts.housekeeper._timer


async def test_a_daemon_that_remembers_nothing_has_no_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, retention_count=0) as engine:
        assert timer_of(engine) is None
        planned: list[float] = []  # a late test finds a timer that has fired
        housekeeper = engine._parts.housekeeper
        set_timer = housekeeper._set_timer

        def watched(at: float) -> None:
            planned.append(at)
            set_timer(at)

        monkeypatch.setattr(housekeeper, "_set_timer", watched)
        await sh(engine, "true")
        assert planned[0] < math.inf
        await wait_until_async(lambda: timer_of(engine) is None)


async def test_the_next_round_is_after_the_oldest_execution_is_too_old(tmp_path: Path) -> None:
    async with running(tmp_path, retention_seconds=1200.0) as engine:
        outcome = await sh(engine, "true")
        due = outcome.execution.ended_monotonic + 1200.0 + 100.0
        await wait_until_async(
            lambda: (timer := timer_of(engine)) is not None and abs(timer.when() - due) < 1.0
        )


async def test_rounds_go_on_while_a_command_runs(tmp_path: Path) -> None:
    """The command may fill the disk, or remove the state dir."""
    async with running(tmp_path) as engine:
        execution = engine.submit(Submission(shell_command("sleep 1000"))).execution
        n_rounds = 0
        tidy = engine.retention.tidy

        async def counted() -> None:
            nonlocal n_rounds
            n_rounds += 1
            await tidy()

        engine.retention.tidy = counted  # type: ignore[method-assign]
        await wait_until_async(lambda: n_rounds >= 5)
        execution.end(ExitReason.CANCELED, 0.0)
        await execution.wait()


async def test_executions_of_a_former_daemon_have_a_round_too(tmp_path: Path) -> None:
    async with running(tmp_path) as engine:
        submitted = engine.submit(
            Submission(shell_command("true"), execution_id="kept", key=None, payload=b"")
        )
        await submitted.execution.wait()
    async with running(tmp_path) as engine:
        assert timer_of(engine) is not None


async def test_a_round_after_the_last_work_gives_free_memory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first round gives memory back, and what the second command has freed waits a pause."""
    monkeypatch.setattr(allocator, "PAUSE_SECONDS", 3600.0)
    async with running(tmp_path, retention_count=0) as engine:
        loop = asyncio.get_running_loop()

        def waits_a_pause() -> bool:
            timer = timer_of(engine)
            return timer is not None and abs(timer.when() - loop.time() - 3600.0) < 60.0

        await sh(engine, "true")
        # A slow first command may end in the first round, and the rest of its end come after.
        await wait_until_async(lambda: timer_of(engine) is None or waits_a_pause())
        await sh(engine, "true")
        await wait_until_async(waits_a_pause)
