from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.engine.output.log import OutputLog, StreamLog
from execd.engine.store.state_dir import StateDir
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KIB = 1024


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
            kept = log.head_end
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
