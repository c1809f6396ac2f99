from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.engine.output.event_index import EventIndex, Kind
from execd.engine.output.head_tail import incomplete_tail_bytes
from execd.engine.output.log import MAX_EVENTS, OutputLog, StreamLog
from execd.engine.store import state_dir as state_dir_module
from execd.engine.store.state_dir import SPOOL_THREADS, StateDir
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KIB = 1024


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """A busy disk is not a broken disk here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_dir_module, "DISK_SECONDS", 3600.0)
        yield


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[StateDir]:
    state_dir = StateDir(str(tmp_path / "state"), 64 * KIB * KIB, {})
    yield state_dir
    state_dir.threads.shutdown(wait=True)
    state_dir.close()


def stream_log(
    state_dir: StateDir, memory_bytes: int, spool_bytes: int, name: str = "log"
) -> StreamLog:
    return StreamLog(memory_bytes, lambda: state_dir.spool(name, spool_bytes))


async def fill(log: StreamLog, chunks: list[bytes]) -> bytes:
    for chunk in chunks:
        write = log.append(chunk)
        if write is not None:
            await write
    return b"".join(chunks)


def pattern(size: int) -> bytes:
    """Numbered lines: each line tells the line's place."""
    return b"".join(b"%07d\n" % number for number in range(size // 8 + 1))[:size]


async def test_small_output_stays_in_memory(state_dir: StateDir) -> None:
    log = stream_log(state_dir, 100, 1000)
    await fill(log, [b"x" * 50, b"y" * 50])
    assert log.spool is None
    assert os.listdir(state_dir.logs_dir) == []


async def test_an_excerpt_of_a_log_whose_file_is_gone_has_what_is_in_memory(
    state_dir: StateDir,
) -> None:
    log = stream_log(state_dir, 100, 1000)
    data = await fill(log, [pattern(90), pattern(500)])
    assert log.spool is not None
    log.spool.finish()
    os.unlink(os.path.join(state_dir.logs_dir, "log"))
    excerpt = await log.excerpt(300)
    n_head, n_tail = log.memory.head_end, len(data) - log.memory.tail_start
    assert n_head > 0
    assert n_tail > 0
    assert (excerpt.head, excerpt.tail) == (data[:n_head], data[-n_tail:])
    assert excerpt.truncation is not None
    assert excerpt.truncation.omitted_bytes == len(data) - n_head - n_tail


async def test_a_stream_whose_file_was_removed_goes_on_in_memory_alone(
    state_dir: StateDir,
) -> None:
    log = stream_log(state_dir, 100, 1000)
    data = await fill(log, [pattern(500)])
    assert log.spool is not None
    log.spool.remove()
    assert log.append(b"later") is None
    data += b"later"
    assert await log.read(0, 5) == data[:5]
    assert await log.read(len(data) - 50, len(data)) == data[-50:]
    assert log.hole(len(data)) == (50, len(data) - 50)


async def test_an_excerpt_of_a_stream_that_grows_meanwhile_has_the_newest_bytes(
    state_dir: StateDir,
) -> None:
    log = stream_log(state_dir, 100, 1000)
    data = await fill(log, [pattern(5000)])
    reading = asyncio.create_task(log.excerpt(300))
    await asyncio.sleep(0)  # the excerpt waits for the disk
    data += await fill(log, [pattern(500)])
    excerpt = await reading
    assert (excerpt.head, excerpt.tail) == (data[:150], data[-50:])
    assert excerpt.truncation is not None
    assert excerpt.truncation.total_bytes == len(data)
    assert excerpt.truncation.omitted_bytes == len(data) - 200
    log.finish()


async def test_larger_output_is_on_disk_from_its_first_byte(state_dir: StateDir) -> None:
    log = stream_log(state_dir, 100, 1000)
    data = await fill(log, [pattern(90), pattern(500), pattern(3)])
    assert log.spool is not None
    log.spool.finish()
    with open(os.path.join(state_dir.logs_dir, "log"), "rb") as file:
        assert file.read() == data
    log.spool.remove()


CHUNKS = st.lists(st.binary(min_size=1, max_size=60), max_size=25)


@given(
    CHUNKS,
    st.integers(2, 80),
    st.integers(0, 300),
    st.integers(0, 400),
    st.integers(2, 300),
    st.booleans(),
)
def test_every_view_of_a_log_is_the_bytes_that_were_written_or_an_admitted_hole(
    tmp_path_factory: pytest.TempPathFactory,
    chunks: list[bytes],
    memory_bytes: int,
    spool_bytes: int,
    budget_bytes: int,
    limit_bytes: int,
    vanish: bool,
) -> None:
    """Compare with the plain bytes: memory, spool and the disk's budget have any size, and a file
    may be removed."""

    async def check() -> None:
        state_dir = StateDir(str(tmp_path_factory.mktemp("state")), budget_bytes, {})
        try:
            log = stream_log(state_dir, memory_bytes, spool_bytes)
            data = await fill(log, chunks)
            assert log.total_bytes == len(data)
            assert state_dir.used_bytes <= budget_bytes
            if log.spool is not None:
                log.spool.finish()
                if vanish:
                    log.spool.remove()
                    assert state_dir.used_bytes == 0
            kept = log.hole(len(data))[0]
            for start in range(0, len(data) + 1, 7):
                for end in range(start, len(data) + 1, 11):
                    found = await log.read(start, end)
                    assert found is None or found == data[start:end]
                    if end <= kept or start >= log.memory.tail_start:
                        assert found is not None
            excerpt = await log.excerpt(limit_bytes)
            assert len(excerpt.head) + len(excerpt.tail) <= max(limit_bytes, 0)
            if excerpt.truncation is None:
                assert excerpt.head == data
                assert excerpt.tail == b""
            else:
                assert excerpt.truncation.total_bytes == len(data)
                assert excerpt.truncation.head_bytes == len(excerpt.head)
                assert len(excerpt.head) + excerpt.truncation.omitted_bytes + len(
                    excerpt.tail
                ) == len(data)
                assert data.startswith(excerpt.head)
                assert data.endswith(excerpt.tail)
            if len(data) <= limit_bytes and kept == len(data):
                assert excerpt.truncation is None
            if log.spool is not None:
                log.spool.remove()
            assert state_dir.used_bytes == 0
        finally:
            state_dir.threads.shutdown(wait=True)
            state_dir.close()

    asyncio.run(check())


@pytest.fixture
def slow_disk(state_dir: StateDir) -> Iterator[threading.Event]:
    """A disk that answers only after the event is set."""
    answers = threading.Event()
    for _ in range(SPOOL_THREADS):
        state_dir.threads.submit(answers.wait)
    yield answers
    answers.set()


async def test_bytes_of_a_write_under_way_beyond_the_bound_are_a_hole_at_once(
    state_dir: StateDir, slow_disk: threading.Event
) -> None:
    log = stream_log(state_dir, 20, 50)
    data = pattern(100)
    write = log.append(data)
    assert write is not None
    writing = asyncio.ensure_future(write)
    await asyncio.sleep(0)  # the write waits for the disk from here on
    for is_written in (False, True):
        assert log.hole(100)[0] == 50
        assert await log.read(0, 50) == data[:50]
        assert await log.read(0, 51) is None
        assert await log.read(90, 100) == data[90:]
        assert writing.done() is is_written
        slow_disk.set()
        await writing
    assert log.spool is not None
    log.spool.remove()


async def test_the_end_of_a_kept_execution_waits_for_the_last_bytes_on_a_slow_disk(
    state_dir: StateDir, slow_disk: threading.Event
) -> None:
    log = stream_log(state_dir, 20, 200)
    data = pattern(100)
    write = log.append(data)
    assert write is not None
    writing = asyncio.ensure_future(write)
    saving = asyncio.ensure_future(log.save())
    await asyncio.sleep(0)  # both wait for the disk from here on
    await asyncio.sleep(0)
    assert not saving.done()
    slow_disk.set()
    await saving
    assert log.spool is not None
    assert log.spool.size_bytes == len(data)
    await writing
    log.spool.finish()
    assert await log.read(0, 100) == data
    log.spool.remove()


async def test_a_log_whose_last_write_waits_for_the_disk_at_the_end_has_no_hole(
    state_dir: StateDir, slow_disk: threading.Event
) -> None:
    """The answer of a timed-out cell does not wait for a slow disk."""
    log = stream_log(state_dir, 20, 200)
    data = pattern(100)
    write = log.append(data)
    assert write is not None
    writing = asyncio.ensure_future(write)
    await asyncio.sleep(0)  # the write waits for the disk from here on
    assert log.spool is not None
    log.spool.finish()
    assert await log.read(0, 100) == data
    slow_disk.set()
    await writing
    assert await log.read(0, 100) == data
    assert (log.hole(100)[0], log.disk_failure) == (100, None)
    log.spool.remove()


async def test_a_read_that_waits_for_the_disk_is_whole_though_memory_moves_on(
    state_dir: StateDir, slow_disk: threading.Event
) -> None:
    slow_disk.set()
    log = stream_log(state_dir, 20, 50)
    data = await fill(log, [pattern(55)])
    slow_disk.clear()
    for _ in range(SPOOL_THREADS):
        state_dir.threads.submit(slow_disk.wait)
    # The spool holds [0, 50) and memory [45, 55).
    reading = asyncio.ensure_future(log.read(20, 55))
    await asyncio.sleep(0)  # the read waits for the disk from here on
    assert log.append(b"x" * 20) is None
    assert log.memory.tail_start > 55
    assert not reading.done()
    slow_disk.set()
    assert await reading == data[20:55]
    assert log.spool is not None
    log.spool.remove()


async def test_an_excerpt_is_head_and_tail_of_half_the_limit_each(state_dir: StateDir) -> None:
    log = stream_log(state_dir, 100, 10_000)
    data = await fill(log, [pattern(1000)] * 5)
    excerpt = await log.excerpt(400)
    assert (excerpt.head, excerpt.tail) == (data[:200], data[-200:])
    assert excerpt.truncation is not None
    assert excerpt.truncation.omitted_bytes == 4600
    assert (await log.excerpt(5000)).head == data
    assert log.spool is not None
    log.spool.remove()


async def test_the_two_streams_have_files_of_their_own_and_one_order(state_dir: StateDir) -> None:
    log = OutputLog(10, lambda stream: state_dir.spool(f"id.{stream}", 1000))
    for stream, data in ("stdout", b"x" * 20), ("stderr", b"y" * 20), ("stdout", b"z"):
        write = log.append(stream, data)  # type: ignore[arg-type]  # a stream
        assert write is not None
        await write
    log.finish()
    assert sorted(os.listdir(state_dir.logs_dir)) == ["id.stderr", "id.stdout"]
    assert [
        (event.kind.name, event.offset, event.size_bytes) for event in log.events.after(0, 10)
    ] == [
        ("STDOUT", 0, 20),
        ("STDERR", 0, 20),
        ("STDOUT", 20, 1),
    ]
    log.remove()
    await wait_until_async(lambda: os.listdir(state_dir.logs_dir) == [])
    assert state_dir.used_bytes == 0


# The pump.


@given(
    steps=st.lists(
        st.sampled_from(["start", "out", "cut", "look", "exit", "pack", "wait"]), max_size=12
    )
)
@pytest.mark.asyncio
async def test_the_events_are_those_of_an_index_that_noted_each(steps: list[str]) -> None:
    """A log without output makes no index; readers, and every order of steps, see the same."""
    log, index = OutputLog(100, lambda _stream: pytest.fail("no spool")), EventIndex(MAX_EVENTS)
    waited: list[asyncio.Future[None]] = []
    for step in steps:
        n_before = index.last_sequence
        match step:
            case "start":
                log.note_start()
                index.append(Kind.STARTED)
            case "out" | "cut":
                data = b"x" if step == "out" else "é".encode()[:1]
                index.append(Kind.STDOUT, log.streams["stdout"].total_bytes, 1)
                log.append("stdout", data)
            case "look":
                assert log.events.last_sequence == index.last_sequence
            case "exit":
                stdout = log.streams["stdout"]
                if stdout.last_bytes and incomplete_tail_bytes(stdout.last_bytes):
                    index.append(Kind.STDOUT, stdout.total_bytes)
                index.append(Kind.EXITED)
                log.note_exit()
            case "pack":
                log.pack()
            case _:
                waited.append(log.next_change())
        if index.last_sequence > n_before:
            assert all(future.done() for future in waited)
            waited.clear()
    assert log.events.after(0, 100) == index.after(0, 100)
