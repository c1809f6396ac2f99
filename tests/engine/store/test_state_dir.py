from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from execd.engine.store import state_dir as module
from execd.engine.store.journal import Begin, Forget, JournaledExecution, JournalState, decode
from execd.engine.store.state_dir import StateDir, StateDirError
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINKS = {"python": "/usr/bin/python3", "python3": "/usr/bin/python3"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


def begin(name: str) -> Begin:
    return Begin(id=name, key=None, payload="", display="", created_at=0.0, cwd="/")


def close(state_dir: StateDir) -> None:
    state_dir.threads.shutdown(wait=True)
    state_dir.close()


@pytest.fixture
def state_dir(path: Path) -> Iterator[StateDir]:
    state_dir = StateDir(str(path), 1000, LINKS)
    yield state_dir
    close(state_dir)


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


def test_a_second_daemon_on_it_is_refused_and_leaves_the_first_ones_logs_alone(
    state_dir: StateDir, path: Path
) -> None:
    (path / "logs/mine").write_text("log")
    with pytest.raises(StateDirError, match=f"--state-dir: {path} is in use by another execd"):
        StateDir(str(path), 1000, LINKS)
    assert (path / "logs/mine").exists()


def test_the_lock_goes_with_its_process(path: Path) -> None:
    program = "import sys; from execd.engine.store.state_dir import StateDir; StateDir(sys.argv[1], 1, {}); print('locked', flush=True); input()"
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


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_refused_by_name(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StateDirError, match="Permission denied"):
        StateDir(str(tmp_path / "state"), 1000, LINKS)
    tmp_path.chmod(0o700)


# Spools.


async def test_a_spool_holds_the_first_bytes_up_to_its_bound(state_dir: StateDir) -> None:
    spool = state_dir.spool("log", 10)
    await spool.write(b"12345")
    assert spool.accepts
    await spool.write(b"6789012345")
    assert (spool.size_bytes, spool.accepts, spool.failure) == (10, False, None)
    assert await spool.read(2, 10) == b"34567890"
    assert await spool.read(2, 11) is None
    spool.finish()
    assert await spool.read(0, 10) == b"1234567890", "a finished one is opened again"
    spool.remove()
    assert await spool.read(0, 1) is None
    assert await spool.read(0, 0) in (None, b"")


async def test_the_budget_is_shared_and_given_back(state_dir: StateDir) -> None:
    first, second = state_dir.spool("a", 5000), state_dir.spool("b", 5000)
    await first.write(b"x" * 700)
    await second.write(b"y" * 700)
    assert (first.size_bytes, second.size_bytes, state_dir.used_bytes) == (700, 300, 1000)
    assert second.failure == "the logs' share of the disk is used up"
    assert not second.accepts
    first.remove()
    assert state_dir.used_bytes == 300
    second.remove()
    assert state_dir.used_bytes == 0
    third = state_dir.spool("c", 5000)
    await third.write(b"z" * 900)
    assert third.failure is None
    third.remove()


async def test_a_removed_state_dir_is_made_again(state_dir: StateDir, path: Path) -> None:
    shutil.rmtree(path)
    spool = state_dir.spool("log", 100)
    await spool.write(b"abc")
    assert (spool.failure, (path / "logs/log").read_bytes()) == (None, b"abc")
    assert os.readlink(path / "bin/python") == LINKS["python"]
    spool.remove()


async def test_a_state_dir_removed_under_an_open_spool_costs_nothing_until_it_is_finished(
    state_dir: StateDir, path: Path
) -> None:
    spool = state_dir.spool("log", 100)
    await spool.write(b"abc")
    shutil.rmtree(path)
    await spool.write(b"def")
    assert await spool.read(0, 6) == b"abcdef"
    spool.finish()
    assert await spool.read(0, 6) is None
    spool.remove()
    assert state_dir.used_bytes == 0


async def test_a_state_dir_that_cannot_be_made_again_is_a_failure_noted_and_not_raised(
    state_dir: StateDir, path: Path
) -> None:
    shutil.rmtree(path)
    path.write_text("a file in its place")
    spool = state_dir.spool("log", 100)
    await spool.write(b"abc")
    assert spool.failure is not None
    assert (spool.size_bytes, spool.accepts) == (0, False)
    spool.remove()
    path.unlink()


async def test_a_link_in_the_place_of_a_log_is_not_followed(
    state_dir: StateDir, path: Path, tmp_path: Path
) -> None:
    (tmp_path / "victim").write_text("untouched")
    (path / "logs/log").symlink_to(tmp_path / "victim")
    spool = state_dir.spool("log", 100)
    await spool.write(b"abc")
    assert spool.failure is not None
    assert (tmp_path / "victim").read_text() == "untouched"
    spool.remove()


async def test_a_log_that_is_being_written_is_not_taken_for_one_that_was_cut_short(
    state_dir: StateDir,
) -> None:
    spool = state_dir.spool("log", 1 << 20)
    for _ in range(200):
        await asyncio.gather(spool.look(), spool.write(bytes(4)), spool.look())
    assert (spool.size_bytes, spool.failure) == (200 * 4, None)
    spool.finish()
    await spool.look()
    assert (spool.size_bytes, spool.failure) == (200 * 4, None)
    spool.remove()


# The journal.


def on_small_disk(tmp_path: Path, program: str) -> subprocess.CompletedProcess[str]:
    """A real one: a tmpfs of 256 KiB in a mount namespace of its own."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(module.__file__))))
    mount = f'mount -t tmpfs -o size=256k none {tmp_path} && exec "$@"'
    return subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh", sys.executable, "-c", program, f"{tmp_path}/state"],
        capture_output=True, text=True, timeout=30, env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip


def journaled(folder: Path) -> list[str]:
    return [record.id for record in decode((folder / "journal").read_bytes())[0]]


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
        assert state_dir.view().state_dir == str(moved)
        for folder in (path, moved):
            with pytest.raises(StateDirError, match="in use"):
                StateDir(str(folder), 1000, LINKS)
        early.remove()
        late.remove()
    finally:
        close(state_dir)
    assert os.listdir(moved / "logs") == []


async def test_a_removed_state_dir_that_commands_could_read_is_not_made_again_until_it_can_be_covered(
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
        assert state_dir.view().state_dir == str(path)
        await state_dir.repair()
        assert journaled(path) == ["a", "b"]
        assert sorted(os.listdir(path)) == ["bin", "journal", "lock", "logs"]
    finally:
        close(state_dir)


async def test_a_journal_that_hangs_is_waited_for_once_and_keeps_its_order(
    state_dir: StateDir, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DISK_SECONDS", 0.1)
    stuck, release = os.pipe()
    state_dir._journal_thread.submit(os.read, stuck, 1)  # a disk that does not answer
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
    print(sorted(second.past))
    print(await second.write_journal(begin("d")))
    os.unlink(path + "/../filling")
    await second.repair()
    close(second)
    third = StateDir(path, 1 << 30, {})
    print(sorted(third.past))
    close(third)

asyncio.run(main())
"""


def test_a_full_disk_keeps_no_daemon_from_starting_and_what_it_refused_is_written_later(
    tmp_path: Path,
) -> None:
    done = on_small_disk(tmp_path, FULL_JOURNAL)
    assert done.stdout == "No space left on device\n['a']\nNo space left on device\n['a', 'd']\n"
    assert done.returncode == 0, done.stderr


FULL_DISK = """
import asyncio, os, sys
from execd.engine.store.state_dir import StateDir

async def main():
    state_dir = StateDir(sys.argv[1], 1 << 30, {})
    spool = state_dir.spool("log", 1 << 30)
    data = os.urandom(1 << 16)
    written = 0
    while spool.accepts:
        await spool.write(data)
        written += len(data)
    assert 0 < spool.size_bytes < written, (spool.size_bytes, written)
    assert await spool.read(0, 1 << 16) == data
    print(spool.failure)
    spool.remove()
    assert state_dir.used_bytes == 0
    while os.listdir(state_dir.logs_dir):  # the file goes in a thread; the test's deadline bounds this
        await asyncio.sleep(0.001)
    again = state_dir.spool("again", 1 << 30)
    await again.write(data)
    assert (again.failure, again.size_bytes) == (None, len(data))
    again.remove()
    state_dir.threads.shutdown(wait=True)
    state_dir.close()

asyncio.run(main())
"""


def test_a_full_disk_ends_the_spool_with_what_it_holds_and_the_next_one_writes_again(
    tmp_path: Path,
) -> None:
    done = on_small_disk(tmp_path, FULL_DISK)
    assert (done.stdout, done.stderr) == (
        "No space left on device\n",
        "a log goes on in memory only\n",
    )


async def test_many_spools_write_at_once_each_into_its_own_file(path: Path) -> None:
    state_dir = StateDir(str(path), 1 << 30, {})
    spools = [state_dir.spool(str(number), 1 << 20) for number in range(50)]

    async def write(number: int) -> None:
        for _ in range(20):
            await spools[number].write(b"%03d" % number)

    await asyncio.gather(*(write(number) for number in range(50)))
    for number, spool in enumerate(spools):
        assert await spool.read(0, 60) == b"%03d" % number * 20
        spool.remove()
    close(state_dir)
