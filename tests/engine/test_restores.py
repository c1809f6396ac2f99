"""A real engine that is restored, with clocks of the tests' own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import sys
import time
from typing import TYPE_CHECKING, cast

import pytest

from execd.engine import assembly
from execd.engine import restores as restores_module
from execd.engine.engine import Engine
from execd.engine.executions.command import code_program
from execd.engine.executions.submission import CellOptions, Submission
from execd.engine.restores import GAP_SECONDS, Readings, Restore
from execd.engine.spec_environment import SpecEnvironment
from execd.model import Command, ExitReason, State
from execd.proc.checkpoint_file import CheckpointFile
from tests.engine.conftest import make_config, shell_command
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from execd.engine.executions.execution import Execution

DAY = 86_400.0
SLEEP = "exec sleep 1000"


class Sandbox:
    """The clocks that the engine sees."""

    def __init__(self) -> None:
        self.frozen_seconds = self.missed_seconds = 0.0
        self.engine = cast("Engine", None)

    def clocks(self) -> Readings:
        passed = self.frozen_seconds
        return Readings(time.time() + passed + self.missed_seconds, time.monotonic() + passed)

    def restore_virtual_machine(self, seconds: float = DAY) -> None:
        """The monotonic clock has stood still."""
        self.missed_seconds += seconds

    def restore_gvisor(self, seconds: float = DAY) -> None:
        """The monotonic clock has moved on, and the platform reports."""
        self.frozen_seconds += seconds
        assert self.engine.restores.report(None)


@pytest.fixture
def sandbox(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sandbox:
    """On a kernel that does not tell of restores, whatever this kernel does."""
    no_file = functools.partial(CheckpointFile, path=str(tmp_path / "no file"))
    monkeypatch.setattr(restores_module, "CheckpointFile", no_file)
    return Sandbox()


@contextlib.asynccontextmanager
async def running(folder: Path, sandbox: Sandbox, **settings: object) -> AsyncIterator[Engine]:
    config = make_config(folder, **settings)
    environment = {"PATH": os.defpath}
    async with Engine.open(config, environment, clocks=sandbox.clocks) as engine:
        sandbox.engine = engine
        yield engine
    engine._parts.store.threads.shutdown(wait=True)  # the disk of a test does not hang


@pytest.fixture
async def engine(tmp_path: Path, sandbox: Sandbox) -> AsyncIterator[Engine]:
    async with running(tmp_path, sandbox) as engine:
        yield engine


async def begun(engine: Engine, script: str = SLEEP, **fields: object) -> Execution:
    execution = engine.submit(Submission(shell_command(script, **fields))).execution
    await execution.wait_started()
    return execution


async def test_a_jump_of_the_clock_is_noticed_and_begins_another_life(
    engine: Engine, sandbox: Sandbox
) -> None:
    before = engine.restores.instance_id
    assert not engine.restores.look()
    sandbox.restore_virtual_machine()
    assert engine.restores.look()
    assert not engine.restores.look()
    assert engine.restores.instance_id != before
    assert engine.restores.count == 1
    assert engine.restores.last_cause == "clock"


async def test_a_request_notices_a_jump_of_the_clock(engine: Engine, sandbox: Sandbox) -> None:
    sandbox.restore_virtual_machine()
    engine.restores.look_at_clocks(None)
    assert engine.restores.count == 1


async def test_an_engine_that_runs_nothing_has_no_timer_for_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restores_module, "LOOK_SECONDS", 0.01)
    async with running(tmp_path, Sandbox()) as engine:
        execution = await begun(engine, "sleep 0.2")
        assert engine.restores._timer is not None
        await execution.wait()
        await wait_until_async(lambda: engine.restores._timer is None, 20)


async def test_a_deadline_moves_by_the_time_of_the_freeze(engine: Engine, sandbox: Sandbox) -> None:
    execution = await begun(engine, timeout_seconds=50.0)
    deadline, last_output = execution.deadlines.deadline, execution.deadlines.last_output
    sandbox.restore_gvisor()
    assert execution.deadlines.deadline - deadline == pytest.approx(DAY, abs=20)
    assert execution.deadlines.deadline - deadline >= DAY  # never earlier
    assert execution.deadlines.last_output - last_output >= DAY
    assert execution.state is State.RUNNING


async def test_a_deadline_that_the_clock_did_not_count_stays(
    engine: Engine, sandbox: Sandbox
) -> None:
    execution = await begun(engine, timeout_seconds=50.0)
    deadline = execution.deadlines.deadline
    sandbox.restore_virtual_machine()
    assert engine.restores.look()
    assert execution.deadlines.deadline == deadline


async def test_a_deadline_fires_after_a_restore(engine: Engine, sandbox: Sandbox) -> None:
    began = time.monotonic()
    execution = await begun(engine, timeout_seconds=1.0)
    sandbox.restore_gvisor(GAP_SECONDS + 1.0)
    result = await execution.wait()
    assert result.exit_reason is ExitReason.TIMEOUT
    assert time.monotonic() - began >= 2.0


@pytest.mark.parametrize("is_noticed_first", [True, False])
async def test_a_command_outlives_a_caller_that_a_restore_took(
    engine: Engine, sandbox: Sandbox, is_noticed_first: bool
) -> None:
    """The end of a connection may reach the engine before the restore is noticed."""
    execution = await begun(engine)
    attachment = execution.attach()
    attachment.__enter__()
    sandbox.restore_virtual_machine()
    if is_noticed_first:
        assert engine.restores.look()
    attachment.__exit__()
    assert engine.restores.count == 1
    assert execution.cause is None
    assert execution.command.detached
    assert engine.get(execution.id) is execution
    execution.end(ExitReason.CANCELED, 0.0)
    await execution.wait()


async def test_a_command_without_a_restore_ends_with_its_caller(engine: Engine) -> None:
    execution = await begun(engine)
    with execution.attach():
        pass
    assert (await execution.wait()).exit_reason is ExitReason.CLIENT_DISCONNECTED


async def test_a_client_with_a_key_is_expected_back_from_the_restore_on(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    async with running(tmp_path, sandbox, reattach_seconds=30.0) as engine:
        command = shell_command(SLEEP)
        execution = engine.submit(Submission(command, key="k", payload=b"p")).execution
        await execution.wait_started()
        with execution.attach():
            pass  # the grace has begun
        before = execution.readers._reattach
        assert before is not None
        sandbox.restore_virtual_machine()
        assert engine.restores.look()
        assert before.cancelled()
        assert execution.readers._reattach is not before
        assert not execution.command.detached
        assert engine.submit(Submission(command, key="k", payload=b"p")).execution is execution
        execution.end(ExitReason.CANCELED, 0.0)
        await execution.wait()


async def test_finished_executions_do_not_age_by_the_freeze(
    engine: Engine, sandbox: Sandbox
) -> None:
    execution = await begun(engine, "true")
    await execution.wait()
    loop = asyncio.get_running_loop()
    execution.ended_monotonic -= 2 * DAY
    ended = execution.ended_monotonic
    sandbox.restore_gvisor()
    assert execution.ended_monotonic - ended >= DAY
    engine.restores._act_on(Restore("report", 9 * DAY))
    assert execution.ended_monotonic <= loop.time()


async def test_a_session_keeps_its_state_and_draws_other_numbers(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    settings = {"python": sys.executable, "queue_wait_seconds": 60.0}
    async with running(tmp_path, sandbox, **settings) as engine:
        await run_cell(engine, "import random; state = 1; random.seed(1)")
        session = engine.sessions.get("s")
        session._used -= DAY
        sandbox.restore_gvisor()
        assert session.idle_seconds < DAY
        restored = await run_cell(engine, "print(state, random.random())")
        await run_cell(engine, "random.seed(1)")
        seeded = await run_cell(engine, "print(state, random.random())")
        assert restored.startswith("1 ")
        assert restored != seeded
        assert session.generation == 1


async def run_cell(engine: Engine, code: str) -> str:
    command = Command(program=code_program(code))
    options = CellOptions(session_id="s", makes_session=True)
    execution = engine.submit(Submission(command, options)).execution
    result = await execution.wait()
    assert result.exit_reason is ExitReason.EXITED, result
    return (await execution.view.excerpt("stdout", 1000)).head.decode()


async def test_the_daemon_draws_other_numbers(engine: Engine, sandbox: Sandbox) -> None:
    state = random.getstate()
    sandbox.restore_virtual_machine()
    assert engine.restores.look()
    first = random.random()
    random.setstate(state)
    assert random.random() != first


async def test_reports_of_one_restore_count_once(engine: Engine, sandbox: Sandbox) -> None:
    spared = object()
    told: list[object] = []
    end = engine.restores.subscribe(lambda restore, spared: told.append((restore.cause, spared)))
    assert engine.restores.report(spared)
    assert not engine.restores.report(spared)
    assert told == [("report", spared)]
    sandbox.frozen_seconds += restores_module.SAME_SECONDS + 1
    assert engine.restores.report(None)
    sandbox.restore_virtual_machine()
    assert engine.restores.report(None), "a sign counts at any time"
    assert [cause for cause, _ in told] == ["report", "report", "clock"]  # type: ignore[misc]
    end()
    sandbox.restore_virtual_machine()
    assert engine.restores.look()
    assert len(told) == 3


async def test_a_look_acts_on_a_sign_alone(engine: Engine, sandbox: Sandbox) -> None:
    """What a report without the token comes to."""
    assert not engine.restores.look(None, was_told=True)
    sandbox.restore_virtual_machine()
    assert engine.restores.look(None, was_told=True)
    assert engine.restores.was_restored_lately


class TellingKernel:
    """The files of a gVisor that tells: a FIFO, and the pod's variables."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        told, self.variables = folder / "checkpoint", folder / "spec_environ"
        os.mkfifo(told)
        self._fifo = os.open(told, os.O_RDWR)
        make_file = functools.partial(CheckpointFile, path=str(told))
        monkeypatch.setattr(restores_module, "CheckpointFile", make_file)
        make_environment = functools.partial(SpecEnvironment, path=str(self.variables))
        monkeypatch.setattr(assembly, "SpecEnvironment", make_environment)

    def bring(self, pod_memory_bytes: int) -> None:
        self.variables.write_text(f"EXECD_POD_MEMORY_BYTES={pod_memory_bytes}\0")

    def tell(self, word: bytes) -> None:
        os.write(self._fifo, word)

    def close(self) -> None:
        os.close(self._fifo)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TellingKernel]:
    made = TellingKernel(tmp_path, monkeypatch)
    yield made
    made.close()


async def test_where_a_file_tells_of_restores_nothing_is_guessed(
    tmp_path: Path, sandbox: Sandbox, kernel: TellingKernel
) -> None:
    async with running(tmp_path / "engine", sandbox) as engine:
        execution = await begun(engine, timeout_seconds=50.0)
        deadline = execution.deadlines.deadline
        sandbox.restore_virtual_machine()
        assert not engine.restores.look()
        assert not engine.restores.look(None, was_told=True)
        engine.restores._detector._looked_at -= DAY  # the freeze of the restore that is told
        kernel.tell(b"restore\n")
        await wait_until_async(lambda: engine.restores.count == 1, 20)
        assert engine.restores.last_cause == "file"
        assert execution.deadlines.deadline - deadline >= DAY
        assert not engine.restores.look()


async def test_a_restored_pod_of_another_size_is_guarded(
    tmp_path: Path, sandbox: Sandbox, kernel: TellingKernel
) -> None:
    kernel.bring(2 << 20)
    async with running(tmp_path / "engine", sandbox, pod_memory_bytes=2 << 20) as engine:
        kernel.bring(1 << 20)
        kernel.tell(b"restore\n")
        await wait_until_async(lambda: engine.restores.count == 1, 20)
        assert engine.capabilities()["pod_memory"]["size_bytes"] == 1 << 20
        assert engine.stats().memory.pod_size_bytes == 1 << 20
        assert engine.warden._configuration.pod_bytes == 1 << 20
        assert engine.warden._stand_in._configuration.pod_bytes == 1 << 20
