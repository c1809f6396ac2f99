"""Turns in time, and whole commands waiting for a turn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from execd.engine.executions import starts
from execd.engine.executions.command import code_program
from execd.engine.executions.starts import Starts
from execd.engine.executions.submission import CellOptions, Submission
from execd.errors import ResourceExhausted, Unavailable
from execd.model import Command, ExitReason, State
from tests.engine.conftest import make_config, running, sh, shell_command

if TYPE_CHECKING:
    from pathlib import Path

    from execd.engine.engine import Engine
    from execd.engine.executions.execution import Execution

BUSY = "while :; do :; done"


@pytest.fixture
def starts_never_end_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "STARTING_SECONDS", 1e6)
    monkeypatch.setattr(starts, "MAX_STARTING_SECONDS", 1e6)


@pytest.fixture
def starts_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "STARTING_SECONDS", 0.02)


def begin(engine: Engine, script: str) -> Execution:
    return engine.submit(Submission(shell_command(script))).execution


async def end(*executions: Execution) -> None:
    for execution in executions:
        execution.end(ExitReason.CANCELED, 0.0)
    await asyncio.gather(*(execution.wait() for execution in executions))


@pytest.mark.parametrize(
    ("cpus", "max_starting", "starting_seconds"),
    [(0.1, 2, 1.0), (0.6, 2, 0.5 / 0.6), (1, 2, 0.5), (3.5, 7, 0.5), (16, 32, 0.5)],
)
async def test_the_number_of_starts_follows_the_size_of_the_pod(
    tmp_path: Path, cpus: float, max_starting: int, starting_seconds: float
) -> None:
    facts = Starts(make_config(tmp_path, pod_cpus=cpus)).facts()
    assert facts == {
        "cpus": cpus,
        "max_running": 256,
        "max_starting": max_starting,
        "starting_seconds": starting_seconds,
        "running": 0,
        "queued": 0,
    }


async def test_a_setting_overrides_the_number_of_starts(tmp_path: Path) -> None:
    facts = Starts(make_config(tmp_path, pod_cpus=1, max_starting=9)).facts()
    assert facts["max_starting"] == 9


async def test_there_is_a_timer_only_while_somebody_waits(tmp_path: Path) -> None:
    queue = Starts(make_config(tmp_path, max_starting=1))
    queue.arrive("a")
    assert queue._timer is None
    turn = queue.arrive("b")
    assert queue._timer is not None
    await turn
    queue.leave("a")
    queue.leave("b")
    assert queue._timer is None
    assert queue.facts()["running"] == queue.facts()["queued"] == 0


async def test_there_is_no_timer_for_a_command_that_waits_for_an_end(tmp_path: Path) -> None:
    queue = Starts(make_config(tmp_path, max_running=1, max_queued=1))
    queue.arrive("a")
    turn = queue.arrive("b")
    assert queue._timer is None
    queue.leave("a")
    await turn
    assert queue._timer is None


@pytest.mark.usefixtures("starts_never_end_by_age")
async def test_a_command_that_computes_in_its_first_moments_keeps_the_next_one_waiting(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, max_starting=1) as engine:
        busy = begin(engine, BUSY)
        await busy.wait_started()
        waiting = begin(engine, "echo hi")
        assert (waiting.state, engine.capabilities()["commands"]["queued"]) == (State.QUEUED, 1)
        await end(busy)
        assert (await waiting.wait()).exit_code == 0


@pytest.mark.usefixtures("starts_end_soon")
async def test_a_command_that_goes_on_computing_keeps_nobody_waiting_for_good(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, max_starting=1) as engine:
        busy = [begin(engine, BUSY) for _ in range(4)]
        assert (await sh(engine, "echo hi")).text == "hi"
        assert {execution.state for execution in busy} == {State.RUNNING}
        await end(*busy)


@pytest.mark.usefixtures("starts_never_end_by_age")
@pytest.mark.parametrize(
    "script", ["exec sleep 1000", "sleep 1000; true", "sleep 1000 | cat", "kill -STOP $$"]
)
async def test_a_command_that_sleeps_keeps_nobody_waiting(tmp_path: Path, script: str) -> None:
    async with running(tmp_path, max_starting=1, queue_wait_seconds=60.0) as engine:
        asleep = [begin(engine, script) for _ in range(20)]
        await asyncio.gather(*(execution.wait_started() for execution in asleep))
        assert (await sh(engine, "echo hi")).text == "hi"
        await end(*asleep)


@pytest.mark.usefixtures("starts_never_end_by_age")
async def test_a_wait_for_a_start_is_bounded_as_any_wait_in_the_queue(tmp_path: Path) -> None:
    async with running(tmp_path, max_starting=1, queue_wait_seconds=0.05) as engine:
        busy = begin(engine, BUSY)
        await busy.wait_started()
        waiting = begin(engine, "echo hi")
        with pytest.raises(ResourceExhausted):
            await waiting.wait()
        assert not waiting.may_have_run
        await end(busy)


@pytest.mark.usefixtures("starts_never_end_by_age")
async def test_a_kill_in_the_queue_loses_no_start(tmp_path: Path) -> None:
    async with running(tmp_path, max_starting=1) as engine:
        busy = begin(engine, BUSY)
        waiting = [begin(engine, "echo hi") for _ in range(3)]
        await end(waiting[1])
        assert not waiting[1].may_have_run
        await end(busy)
        assert [(await waiting[n].wait()).exit_code for n in (0, 2)] == [0, 0]


@pytest.mark.usefixtures("starts_never_end_by_age")
async def test_a_daemon_that_drains_sends_whoever_waits_for_a_start_away(tmp_path: Path) -> None:
    async with running(tmp_path, max_starting=1) as engine:
        busy = begin(engine, BUSY)
        await busy.wait_started()
        waiting = begin(engine, "echo hi")
        await engine.drain()
        with pytest.raises(Unavailable):
            await waiting.wait()
        assert (await busy.wait()).exit_reason is ExitReason.SHUTDOWN


@pytest.mark.usefixtures("starts_never_end_by_age")
async def test_commands_start_in_the_order_they_came(tmp_path: Path) -> None:
    async with running(tmp_path, max_starting=2) as engine:
        executions = [begin(engine, "true") for _ in range(30)]
        await asyncio.gather(*(execution.wait() for execution in executions))
        started = [execution.started_at or 0.0 for execution in executions]
        # Two at a time: the spawns of neighbours may be told in either order.
        assert all(first <= third for first, third in zip(started, started[2:], strict=False))


@pytest.mark.usefixtures("starts_never_end_by_age")
async def test_few_of_a_crowd_compute_at_once(tmp_path: Path) -> None:
    program = (
        "import time\n"
        "print(time.monotonic())\n"
        "while time.process_time() < 0.1: pass\n"
        "print(time.monotonic())"
    )
    async with running(tmp_path, max_starting=2) as engine:
        outcomes = await asyncio.gather(
            *(sh(engine, f"exec python3 -c '{program}'") for _ in range(12))
        )
    spans = [tuple(map(float, outcome.text.split())) for outcome in outcomes]
    assert max(sum(begin <= at < end for begin, end in spans) for at, _ in spans) <= 2


@pytest.mark.usefixtures("starts_never_end_by_age")
async def test_cells_need_no_start(tmp_path: Path) -> None:
    async with running(tmp_path, max_starting=1) as engine:
        busy = begin(engine, BUSY)
        await busy.wait_started()
        command = Command(program=code_program("1 + 1"))
        options = CellOptions(makes_session=True, is_last=True)
        cell = engine.submit(Submission(command, options)).execution
        assert (await cell.wait()).exit_reason is ExitReason.EXITED
        await end(busy)
