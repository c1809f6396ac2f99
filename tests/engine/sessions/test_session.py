"""One session in a real engine: the loss of its state is reported, by this daemon or the next."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from execd.engine.executions.submission import CellOptions, Submission
from execd.engine.sessions.session import Session
from execd.engine.sessions.session_log import LogBudget
from execd.engine.store.journal import JournalState, SessionDeleted, SessionRecorded, decode
from execd.errors import InvalidArgument
from execd.kernel import frames
from execd.model import ExitReason, Limits
from tests.engine.conftest import sh
from tests.engine.sessions.test_manager import begin, code_command, run, sessions_in
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_loss_of_state_is_reported_once_however_many_restarts_came_before(
    tmp_path: Path,
) -> None:
    async with sessions_in(tmp_path) as engine:
        session = await engine.sessions.create()
        await run(engine, session, "x = 1")
        for _ in range(2):
            await engine.sessions.restart(session)
        cell = await run(engine, session, "x = 2")
        assert (cell.cell.generation, cell.cell.state_lost) == (3, True)
        cell = await run(engine, session, "x")
        assert (cell.cell.generation, cell.cell.state_lost) == (3, False)


async def test_the_journal_has_each_generation_before_its_first_cell_runs(tmp_path: Path) -> None:
    async with sessions_in(tmp_path) as engine:
        session = await engine.sessions.create()
        for generation in (1, 2):
            cell = begin(engine, session, "import time; time.sleep(1000)")
            await cell.wait_started()
            records, _, _ = decode((tmp_path / "state/journal").read_bytes())
            assert JournalState(records).generations == {session.id: generation}
            cell.end(ExitReason.CANCELED, 0.0)
            await cell.wait()
    async with sessions_in(tmp_path) as engine:
        again = await engine.sessions.create(session_id=session.id)
        cell = await run(engine, again, "1")
        assert (cell.cell.generation, cell.cell.state_lost) == (3, True)


async def test_a_session_for_a_single_cell_is_not_in_the_journal(tmp_path: Path) -> None:
    """The session is deleted before any daemon could ask for it, so its records are not written."""
    async with sessions_in(tmp_path) as engine:
        options = CellOptions(makes_session=True, is_last=True)
        cell = engine.submit(Submission(code_command("1"), options))
        await cell.execution.wait()
        await wait_until_async(lambda: len(engine.sessions) == 0, 20)
        records, _, _ = decode((tmp_path / "state/journal").read_bytes())
        assert [r for r in records if isinstance(r, SessionRecorded | SessionDeleted)] == []


@pytest.mark.parametrize(("cwd", "expected"), [(None, "s"), ("in", "s/in"), ("/", "/")])
async def test_a_command_in_a_session_begins_at_the_directory_of_the_session(
    tmp_path: Path, cwd: str | None, expected: str
) -> None:
    (tmp_path / "base/s/in").mkdir(parents=True)
    async with sessions_in(tmp_path) as engine:
        session = await engine.sessions.create(cwd=str(tmp_path / "base/s"))
        outcome = await sh(engine, "pwd", cwd=cwd, session_id=session.id)
        assert outcome.text == os.path.join(tmp_path, "base", expected)


class RefusingWorker:
    marker_id = "s"
    limits = Limits()
    interpreter = None

    async def request(self, frame: dict[str, Any], _: float) -> None:
        raise frames.FrameError("too long")


class Context:
    config = SimpleNamespace(base_dir="/base")
    warden = SimpleNamespace(has_namespace=True)

    async def ensure_base_dir(self) -> None:
        pass

    async def build_environment(self, *_: object) -> tuple[dict[str, str], None]:
        return {}, None


@pytest.mark.parametrize(("cwd", "field"), [(None, "env"), ("/long", "cwd")])
async def test_a_configuration_over_the_size_of_a_frame_is_blamed_on_what_the_caller_gave(
    cwd: str | None, field: str
) -> None:
    context, host = cast("Any", Context()), cast("Any", SimpleNamespace(log_budget=LogBudget()))
    session = Session("s", context, host, cwd=cwd, env={}, limits=Limits())
    with pytest.raises(InvalidArgument) as refused:
        await session._configure(cast("Any", RefusingWorker()))
    assert refused.value.details["field"] == field
