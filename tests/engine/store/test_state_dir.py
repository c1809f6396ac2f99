from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from execd.engine.store import state_dir as module
from execd.engine.store.journal import (
    Begin,
    End,
    EpisodeRecorded,
    Forget,
    JournaledExecution,
    JournalState,
    decode,
    encode,
)
from execd.engine.store.state_dir import StateDir, StateDirError
from tests.engine.store.conftest import LINKS, close, on_small_disk
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from pathlib import Path


def begin(name: str) -> Begin:
    return Begin(id=name, key=None, payload="", display="", created_at=0.0, cwd="/")


def test_it_makes_its_folders_closed_to_others_but_for_passing_through(
    state_dir: StateDir, path: Path
) -> None:
    modes = {
        name: stat.S_IMODE((path / name).stat().st_mode) for name in (".", "bin", "logs", "lock")
    }
    assert modes == {".": 0o711, "bin": 0o755, "logs": 0o700, "lock": 0o600}
    assert {name: os.readlink(path / "bin" / name) for name in os.listdir(path / "bin")} == LINKS


def test_links_that_lead_elsewhere_are_made_anew(path: Path) -> None:
    (path / "bin").mkdir(parents=True)
    (path / "bin/python").symlink_to("/elsewhere")
    (path / "bin/python3").write_text("a file")
    close(StateDir(str(path), 1000, LINKS))
    assert {name: os.readlink(path / "bin" / name) for name in LINKS} == LINKS


def test_what_a_former_daemon_logged_is_removed(path: Path) -> None:
    (path / "logs").mkdir(parents=True)
    (path / "logs/0123.stdout").write_text("old")
    close(StateDir(str(path), 1000, LINKS))
    assert os.listdir(path / "logs") == []


def test_a_damaged_journal_is_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.mkdir()
    (path / "journal").write_bytes(b"damaged\n" + encode(begin("kept")) + b"torn")
    state_dir = StateDir(str(path), 1000, LINKS)
    close(state_dir)
    assert list(state_dir.former_executions) == ["kept"]
    [record] = caplog.records
    assert (record.getMessage(), record.levelname) == ("the journal is damaged", "ERROR")
    assert vars(record)["damaged_bytes"] == len(b"damaged\n")


def test_a_second_daemon_on_it_is_refused_and_leaves_the_first_ones_logs_alone(
    state_dir: StateDir, path: Path
) -> None:
    (path / "logs/mine").write_text("log")
    with pytest.raises(StateDirError, match=f"--state-dir: {path} is in use by another execd"):
        StateDir(str(path), 1000, LINKS)
    assert (path / "logs/mine").exists()


def test_the_lock_goes_with_its_process(path: Path) -> None:
    program = (
        "import sys; from execd.engine.store.state_dir import StateDir; "
        "StateDir(sys.argv[1], 1, {}); print('locked', flush=True); input()"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(StateDirError, match="in use"):
            StateDir(str(path), 1000, LINKS)
        other.kill()
    close(StateDir(str(path), 1000, LINKS))


@pytest.mark.parametrize("kind", ["file", "below a file", "a folder among the logs"])
def test_a_path_that_cannot_be_used_is_refused_by_name_and_leaks_nothing(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "file").touch()
    path = {
        "file": tmp_path / "file",
        "below a file": tmp_path / "file/state",
        "a folder among the logs": tmp_path / "state",
    }[kind]
    if kind == "a folder among the logs":
        (path / "logs/folder").mkdir(parents=True)
    with pytest.raises(StateDirError, match=f"--state-dir: {path}: "):
        StateDir(str(path), 1000, LINKS)


@pytest.mark.not_root
def test_a_folder_that_may_not_be_written_is_refused_by_name(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StateDirError, match="Permission denied"):
        StateDir(str(tmp_path / "state"), 1000, LINKS)
    tmp_path.chmod(0o700)


# The journal.


def journaled(folder: Path) -> list[str]:
    """The ids of the records, but for the first of every journal, which names the episode."""
    first, *records = decode((folder / "journal").read_bytes())[0]
    assert isinstance(first, EpisodeRecorded)
    return [record.id for record in records if isinstance(record, Begin | End | Forget)]


async def test_a_removed_state_dir_has_lock_and_journal_again_with_all_that_is_known(
    state_dir: StateDir, path: Path
) -> None:
    assert await state_dir.write_journal(begin("a")) is None
    shutil.rmtree(path)
    assert await state_dir.write_journal(begin("b")) is None
    assert journaled(path) == ["a", "b"]
    with pytest.raises(StateDirError, match="in use"):
        StateDir(str(path), 1000, LINKS)


@pytest.mark.parametrize("what", [".", "journal", "lock", "logs"])
async def test_what_was_removed_is_noticed_without_a_write(
    state_dir: StateDir, path: Path, what: str
) -> None:
    await state_dir.write_journal(begin("a"))
    subprocess.run(["rm", "-rf", str(path / what) if what != "." else str(path)], check=True)
    await state_dir.repair()
    assert journaled(path) == ["a"]
    assert sorted(os.listdir(path)) == ["bin", "journal", "lock", "logs"]
    with pytest.raises(StateDirError, match="in use"):
        StateDir(str(path), 1000, LINKS)


async def test_a_state_dir_that_another_daemon_took_over_is_left_to_it(
    state_dir: StateDir, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await state_dir.write_journal(begin("a"))
    shutil.rmtree(path)
    other = StateDir(str(path), 1000, LINKS)
    try:
        await other.write_journal(begin("b"))
        why = "the state dir was taken over by another execd"
        assert await state_dir.write_journal(begin("c")) == why
        spool = state_dir.spool("log", 100)
        await spool.write(b"abc")
        assert spool.failure == why
        spool.remove()
        await state_dir.repair()
        assert (journaled(path), os.listdir(path / "logs")) == (["b"], [])
        assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
    finally:
        close(other)


async def test_a_moved_state_dir_goes_on_being_used_and_its_path_has_links_and_a_lock_alone(
    tmp_path: Path,
) -> None:
    path, moved = tmp_path / "above/state", tmp_path / "elsewhere/state"
    state_dir = StateDir(str(path), 1000, LINKS, lambda: False)
    try:
        early = state_dir.spool("early", 100)
        await early.write(b"abc")
        early.finish()
        (tmp_path / "above").rename(tmp_path / "elsewhere")
        assert await state_dir.write_journal(begin("a")) is None
        late = state_dir.spool("late", 100)
        await late.write(b"def")
        await state_dir.repair()
        assert (await early.read(0, 3), await late.read(0, 3)) == (b"abc", b"def")
        assert (journaled(moved), sorted(os.listdir(moved / "logs"))) == (["a"], ["early", "late"])
        assert (sorted(os.listdir(path)), sorted(os.listdir(path / "bin"))) == (
            ["bin", "lock"],
            sorted(LINKS),
        )
        assert state_dir.folder.view().state_dir == str(moved)
        for folder in (path, moved):
            with pytest.raises(StateDirError, match="in use"):
                StateDir(str(folder), 1000, LINKS)
        early.remove()
        late.remove()
    finally:
        close(state_dir)
    assert os.listdir(moved / "logs") == []


async def test_a_removed_state_dir_open_to_commands_is_not_made_again_until_it_can_be_covered(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state_dir = StateDir(str(path), 1000, LINKS, lambda: False)
    try:
        await state_dir.write_journal(begin("a"))
        shutil.rmtree(path)
        why = "the state dir was removed, and a new one could be read by commands"
        assert await state_dir.write_journal(begin("b")) == why
        spool = state_dir.spool("log", 100)
        await spool.write(b"abc")
        assert spool.failure == why
        spool.remove()
        await state_dir.repair()
        assert sorted(os.listdir(path)) == ["bin", "lock"]
        assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
        with pytest.raises(StateDirError, match="in use"):
            StateDir(str(path), 1000, LINKS)
        assert state_dir.folder.view().state_dir == str(path)
        await state_dir.repair()
        assert journaled(path) == ["a", "b"]
        assert sorted(os.listdir(path)) == ["bin", "journal", "lock", "logs"]
    finally:
        close(state_dir)


async def test_a_journal_that_hangs_is_waited_for_once_and_keeps_its_order(
    state_dir: StateDir,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "DISK_SECONDS", 0.1)
    stuck, release = os.pipe()
    state_dir._journal_thread.submit(os.read, stuck, 1)  # the disk does not answer
    why = "the disk did not answer for 0.1 s"
    assert await state_dir.write_journal(begin("a")) == why
    monkeypatch.setattr(module, "DISK_SECONDS", 3600.0)
    assert state_dir.is_hung
    assert await state_dir.write_journal(Forget("a")) is not None
    assert await state_dir.write_journal(begin("a")) is not None
    await state_dir.repair()
    spool = state_dir.spool("log", 100)
    await spool.write(b"abc")
    assert spool.failure is None, "logs have threads of their own"
    spool.remove()
    os.close(release)
    await wait_until_async(lambda: not state_dir.is_hung)
    assert await state_dir.write_journal(begin("b")) is None
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert journaled(path) == ["a", "a", "a", "b"]
    assert JournalState(decode((path / "journal").read_bytes())[0]).executions == {
        "a": JournaledExecution(begin("a")),
        "b": JournaledExecution(begin("b")),
    }
    os.close(stuck)


FULL_JOURNAL = """
import asyncio, os, sys
from execd.engine.store.journal import Begin, JournalState
from execd.engine.store.state_dir import StateDir

def begin(name):
    return Begin(id=name, key=None, payload="", display="x" * 3000, created_at=0.0, cwd="/")

def close(state_dir):
    state_dir.threads.shutdown(wait=True)
    state_dir.close()

async def main():
    path = sys.argv[1]
    first = StateDir(path, 1 << 30, {})
    assert await first.write_journal(begin("a")) is None
    with open(path + "/../filling", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    print(await first.write_journal(begin("c")))
    close(first)
    second = StateDir(path, 1 << 30, {})
    print(sorted(second.former_executions))
    print(await second.write_journal(begin("d")))
    os.unlink(path + "/../filling")
    await second.repair()
    close(second)
    third = StateDir(path, 1 << 30, {})
    print(sorted(third.former_executions))
    close(third)

asyncio.run(main())
"""


def test_a_full_disk_keeps_no_daemon_from_starting_and_what_it_refused_is_written_later(
    tmp_path: Path,
) -> None:
    done = on_small_disk(tmp_path, FULL_JOURNAL)
    assert done.stdout == "No space left on device\n['a']\nNo space left on device\n['a', 'd']\n"
    assert done.returncode == 0, done.stderr
