from __future__ import annotations

import asyncio
import os
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest

from execd.engine.store import state_dir as state_dir_module
from execd.engine.store.state_dir import SPOOL_THREADS, StateDir
from tests.engine.store.conftest import LINKS, close, on_small_disk
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """See ``hold_up``. The end of the test lets the disk answer."""
    monkeypatch.setattr(state_dir_module, "DISK_SECONDS", 3600.0)
    answers = threading.Event()
    yield answers
    answers.set()


def hold_up(state_dir: StateDir, answers: threading.Event) -> None:
    """The disk answers only after the event is set."""
    answers.clear()
    for _ in range(SPOOL_THREADS):
        state_dir.threads.submit(answers.wait)


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
        await asyncio.gather(spool.refresh_size(), spool.write(bytes(4)), spool.refresh_size())
    assert (spool.size_bytes, spool.failure) == (200 * 4, None)
    spool.finish()
    await spool.refresh_size()
    assert (spool.size_bytes, spool.failure) == (200 * 4, None)
    spool.remove()


async def test_a_write_that_waits_for_a_thread_at_the_end_is_stored_and_leaves_no_descriptor(
    state_dir: StateDir, slow_disk: threading.Event
) -> None:
    for n_bytes_before in (0, 3):
        spool = state_dir.spool(f"log-{n_bytes_before}", 100)
        slow_disk.set()
        if n_bytes_before:
            await spool.write(b"abc")
        hold_up(state_dir, slow_disk)
        n_descriptors = len(os.listdir("/proc/self/fd"))
        writing = asyncio.ensure_future(spool.write(b"def"))
        await asyncio.sleep(0)  # the write waits for a thread from here on
        spool.finish()
        looking = asyncio.ensure_future(spool.refresh_size())
        await asyncio.sleep(0)
        assert not writing.done()
        slow_disk.set()
        await asyncio.gather(writing, looking)
        assert (spool.size_bytes, spool.failure) == (n_bytes_before + 3, None)
        assert await spool.read(n_bytes_before, n_bytes_before + 3) == b"def"
        await spool.refresh_size()
        assert (spool.size_bytes, spool.failure) == (n_bytes_before + 3, None)
        assert len(os.listdir("/proc/self/fd")) == n_descriptors - (n_bytes_before > 0)
        spool.remove()
    assert state_dir.used_bytes == 0


async def test_a_write_that_begins_after_the_end_is_stored(state_dir: StateDir) -> None:
    """The pump's task makes its first step after the answer."""
    spool = state_dir.spool("log", 100)
    spool.finish()
    await spool.write(b"abc")
    await spool.write(b"def")
    assert (spool.failure, await spool.read(0, 6)) == (None, b"abcdef")
    spool.remove()


async def test_a_write_that_waits_for_a_thread_makes_no_file_of_a_removed_log(
    state_dir: StateDir, path: Path, slow_disk: threading.Event
) -> None:
    hold_up(state_dir, slow_disk)
    spool = state_dir.spool("log", 100)
    writing = asyncio.ensure_future(spool.write(b"abc"))
    await asyncio.sleep(0)  # the write waits for a thread from here on
    spool.remove()
    slow_disk.set()
    await writing
    await spool.write(b"def")
    assert (state_dir.used_bytes, os.listdir(path / "logs")) == (0, [])


async def test_a_file_that_is_made_while_the_log_is_removed_is_unlinked(
    state_dir: StateDir, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removal comes between the thread's look and the thread's file, and the thread of the
    removal finds no file."""
    spool = state_dir.spool("log", 100)
    is_removed = threading.Event()
    is_at_the_disk = threading.Event()
    open_ = os.open

    def open_late(*arguments: Any, **options: Any) -> int:
        if arguments[0] == "logs/log":
            is_at_the_disk.set()
            assert is_removed.wait(10)
        return open_(*arguments, **options)

    monkeypatch.setattr("execd.engine.store.state_dir.os.open", open_late)
    writing = asyncio.ensure_future(spool.write(b"abc"))
    await wait_until_async(is_at_the_disk.is_set)
    spool.remove()
    # The pool has four threads: the removal's thread does not wait for the write's thread.
    await asyncio.wrap_future(state_dir.threads.submit(os.getpid))
    is_removed.set()
    await writing
    assert (state_dir.used_bytes, os.listdir(path / "logs")) == (0, [])


FULL_DISK = """
import asyncio, os, random, sys
from execd.engine.store.state_dir import StateDir

async def main():
    state_dir = StateDir(sys.argv[1], 1 << 30, {})
    spool = state_dir.spool("log", 1 << 30)
    data = random.Random(1).randbytes(1 << 16)
    written = 0
    while spool.accepts:
        await spool.write(data)
        written += len(data)
    assert 0 < spool.size_bytes < written, (spool.size_bytes, written)
    assert await spool.read(0, 1 << 16) == data
    print(spool.failure)
    spool.remove()
    assert state_dir.used_bytes == 0
    # A thread removes the file; the test's deadline bounds this loop.
    while os.listdir(state_dir.logs_dir):
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
