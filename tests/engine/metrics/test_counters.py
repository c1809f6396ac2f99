"""The engine's counters, alone and of a real engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.engine.executions.submission import CellOptions, Submission
from execd.engine.metrics.counters import Counters, Histogram
from execd.errors import PreconditionFailed, ResourceExhausted
from execd.model import OWN_DIALECTS, Command, ExitReason, Origin, Program
from tests.engine.conftest import running, sh, shell_command
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from pathlib import Path

    from execd.engine.engine import Engine
    from execd.model import Result

V1 = Origin("v1")
values = st.floats(0.0, 1e9)


@given(st.lists(values))
def test_histogram_counts_each_value_up_to_each_bound(found: list[float]) -> None:
    histogram = Histogram((0.5, 2.0, 10.0))
    for value in found:
        histogram.observe(value)
    assert histogram.cumulated() == [
        (bound, sum(value <= bound for value in found)) for bound in (0.5, 2.0, 10.0, float("inf"))
    ]
    assert histogram.total == sum(found)


def test_value_on_a_bound_is_within_the_bound() -> None:
    histogram = Histogram((0.5, 2.0))
    histogram.observe(0.5)
    assert histogram.counts == [1, 0, 0]


def test_all_rows_exist_from_the_start() -> None:
    counters = Counters()
    counters.add_dialect("a_wing")
    rows = len(counters.executions)
    for reason in ExitReason:
        for dialect in (*OWN_DIALECTS, "a_wing", None):
            counters.record_end(dialect, reason, 1.0, (1, 2), "success")
    counters.add_dialect("a_wing")  # for a second port
    # A wing that has not told its name loses no end.
    counters.record_end("untold", ExitReason.EXITED, 1.0, (0, 0), None)
    assert counters.executions.pop(("untold", ExitReason.EXITED)) == 1
    for reason in set(ExitReason) - {ExitReason.EXITED}:
        assert counters.executions.pop(("untold", reason)) == 0
    assert len(counters.executions) == rows == (len(OWN_DIALECTS) + 2) * len(ExitReason)
    assert set(counters.executions.values()) == {1}
    assert counters.output_bytes == {"stdout": rows, "stderr": 2 * rows}


async def test_ends_are_counted_by_dialect_and_reason_with_duration_and_output(
    engine: Engine,
) -> None:
    await sh(engine, "printf 12345; printf 123 >&2; sleep 0.03", origin=V1)
    await sh(engine, "kill -9 $$", origin=Origin("python_runtime"))
    counters = engine.counters
    assert {key: n for key, n in counters.executions.items() if n} == {
        ("v1", ExitReason.EXITED): 1,
        ("python_runtime", ExitReason.SIGNALED): 1,
    }
    assert counters.output_bytes == {"stdout": 5, "stderr": 3}
    assert sum(counters.duration_seconds.counts) == sum(counters.queue_seconds.counts) == 2
    assert counters.duration_seconds.total >= 0.03


async def test_failed_start_has_no_duration(engine: Engine) -> None:
    missing = Command(program=Program(argv=("/no/such",), display="/no/such"), origin=V1)
    result = await engine.submit(Submission(missing)).execution.wait()
    assert result.exit_reason is ExitReason.SPAWN_FAILED
    assert engine.counters.executions["v1", ExitReason.SPAWN_FAILED] == 1
    assert sum(engine.counters.duration_seconds.counts) == 0
    assert engine.counters.refused_executions == 0


async def test_execution_without_a_place_is_refused_and_has_no_reason(tmp_path: Path) -> None:
    async with running(tmp_path, max_running=1, queue_wait_seconds=0.05) as engine:
        first = engine.submit(Submission(shell_command("sleep 60", origin=V1))).execution
        await first.wait_started()
        second = engine.submit(Submission(shell_command("true", origin=V1))).execution
        try:
            await second.wait()
        except ResourceExhausted:
            pass
        assert engine.counters.refused_executions == 1
        assert not any(engine.counters.executions.values())
        first.end(ExitReason.CANCELED, 0.0)
        await first.wait()
        assert engine.counters.executions["v1", ExitReason.CANCELED] == 1
        assert sum(engine.counters.queue_seconds.counts) == 1


async def run_cell(engine: Engine, session_id: str, code: str) -> Result:
    command = Command(program=Program(argv=(), display=code, is_code=True), origin=V1)
    options = CellOptions(session_id=session_id, makes_session=True)
    return await engine.submit(Submission(command, options)).execution.wait()


async def test_cells_branches_and_killed_processes_are_counted(engine: Engine) -> None:
    await run_cell(engine, "a", "1")
    await run_cell(engine, "a", "1 / 0")
    assert engine.counters.cells == {"success": 1, "error": 1}
    session = engine.sessions.get("a")
    await engine.sessions.fork(session, session_id=None, count=2)
    assert engine.counters.branches == 2
    assert engine.warden.killed_processes == 0
    sleeping = engine.submit(Submission(shell_command("exec sleep 60", origin=V1))).execution
    await sleeping.wait_started()
    sleeping.end(ExitReason.CANCELED, 0.0)
    await sleeping.wait()
    assert engine.warden.killed_processes == 1


async def test_cell_for_another_generation_is_refused_and_has_no_reason(engine: Engine) -> None:
    await run_cell(engine, "a", "1")
    command = Command(program=Program(argv=(), display="1", is_code=True), origin=V1)
    options = CellOptions(session_id="a", makes_session=True, expect_generation=7)
    cell = engine.submit(Submission(command, options))
    with pytest.raises(PreconditionFailed):
        await cell.execution.wait()
    assert engine.counters.refused_executions == 1
    assert sum(engine.counters.executions.values()) == 1


async def test_execution_that_a_restart_cut_off_is_counted_by_the_next_daemon(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as engine:
        execution = engine.submit(Submission(shell_command("sleep 60", detached=True))).execution
        await execution.wait_started()
        journal = (tmp_path / "state" / "journal").read_bytes()
    (tmp_path / "state" / "journal").write_bytes(journal)  # as if the end was never written
    async with running(tmp_path) as engine:
        assert engine.counters.executions[None, ExitReason.DAEMON_RESTARTED] == 1
        assert sum(engine.counters.duration_seconds.counts) == 0


async def test_lag_of_the_loop_is_measured_by_the_pings_that_watch_user_code(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, warden_ping_seconds=0.05) as engine:
        execution = engine.submit(Submission(shell_command("sleep 60"))).execution
        await execution.wait_started()
        lags = engine.counters.loop_lag_seconds
        await wait_until_async(lambda: sum(lags.counts) >= 3)
        assert lags.total >= 0
        execution.end(ExitReason.CANCELED, 0.0)
        await execution.wait()
