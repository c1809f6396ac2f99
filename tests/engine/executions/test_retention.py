"""A forgotten execution leaves nothing: no file, and no record in the journal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from execd.engine import housekeeping
from execd.errors import NotFound
from tests.engine.conftest import finish, running
from tests.engine.test_engine import journal_of, named
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def no_housekeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the housekeeper from removing a file that somebody else has to remove."""
    monkeypatch.setattr(housekeeping, "PAUSE_SECONDS", 1000.0)


async def test_a_deleted_execution_takes_its_files_and_its_record_along(tmp_path: Path) -> None:
    logs = tmp_path / "state/logs"
    async with running(tmp_path) as engine:
        execution = named(engine, "seq 100000; seq 100000 >&2", "x")
        await execution.wait()
        assert sorted(os.listdir(logs)) == ["x.stderr", "x.stdout"]
        assert "x" in journal_of(tmp_path)
        await engine.forget(execution)
        assert "x" not in journal_of(tmp_path)
        await wait_until_async(lambda: os.listdir(logs) == [], 20)


async def test_a_deleted_execution_is_unknown_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as engine:
        execution = named(engine, "true", "x")
        await execution.wait()
        await engine.forget(execution)
    async with running(tmp_path) as engine:
        with pytest.raises(NotFound):
            engine.get("x")
        assert (await finish(named(engine, "echo again", "x"))).text == "again"


async def test_a_path_that_is_no_utf_8_is_journaled_with_replacements(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"b\xff")
    folder.mkdir()
    for _ in range(2):
        async with running(tmp_path, base_dir=str(folder)) as engine:
            found = await finish(named(engine, "echo run >> count; cat count", "x"))
            assert (found.text, found.execution.not_journaled) == ("run", None)
            assert "x" in journal_of(tmp_path)


async def test_an_execution_that_takes_over_a_name_removes_the_files_of_the_former_owner(
    tmp_path: Path,
) -> None:
    logs = tmp_path / "state/logs"
    async with running(tmp_path, keyed_retention_count=0) as engine:
        await named(engine, "seq 100000", "x").wait()
        assert os.listdir(logs) == ["x.stdout"]
        await named(engine, "true", "x").wait()
        await wait_until_async(lambda: os.listdir(logs) == [], 20)


async def test_one_round_removes_as_many_logs_as_it_takes(tmp_path: Path) -> None:
    """Half of the space is free afterwards; more than half was used by logs of which one is too
    small."""
    async with running(tmp_path, state_bytes=2 << 20) as engine:
        for name in ("x", "y", "z"):
            await named(engine, "seq 100000", name).wait()
        store = engine._parts.store
        assert store.used_bytes - 600_000 > store.max_bytes // 2
        await engine.retention.tidy()
        assert store.used_bytes <= store.max_bytes // 2
        assert engine.get("x").result is not None, "the result stays"
