"""Input to a pipe that the program reads slowly."""

from __future__ import annotations

import asyncio
import os
import select
from typing import TYPE_CHECKING

import pytest

from execd.engine.executions.stdio import Stdin
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import Iterator

CAPACITY_BYTES = 64 * 1024


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The program's end, and the daemon's end, which the test closes."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    yield read_end, write_end
    os.close(read_end)


async def read(fd: int, n_bytes: int) -> None:
    for _ in range(n_bytes):
        assert os.read(fd, 1) == b"x"
        await asyncio.sleep(0)


async def test_end_of_the_input_that_the_kernel_refuses_as_a_whole_goes_in_pieces(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So gVisor does: the pipe is ready for writing, and takes none of the last bytes unless all of
    them fit. A writer that went on to offer all of them would be busy until the program reads."""
    read_end, write_end = pipe
    offered: list[int] = []
    write = os.write

    def write_like_gvisor(fd: int, data: memoryview) -> int:
        if fd == write_end:
            offered.append(len(data))
            if 1 < len(data) <= select.PIPE_BUF:
                raise BlockingIOError
        return write(fd, data)

    monkeypatch.setattr(os, "write", write_like_gvisor)
    stdin = Stdin(write_end)
    rest = 10
    writing = asyncio.create_task(stdin.write(b"x" * (CAPACITY_BYTES + rest)))
    await wait_until_async(lambda: offered)
    # natively a pipe is ready for writing once a whole page is free
    async with asyncio.timeout(20):
        await read(read_end, CAPACITY_BYTES // 2)
        await writing
    assert offered.count(1) == rest
    assert len(offered) <= 6 * rest
    stdin.close()


async def test_long_input_reaches_a_program_that_reads_a_byte_at_a_time(
    pipe: tuple[int, int],
) -> None:
    read_end, write_end = pipe
    stdin = Stdin(write_end)
    n_bytes = CAPACITY_BYTES + select.PIPE_BUF
    async with asyncio.timeout(60):
        await asyncio.gather(stdin.write(b"x" * n_bytes), read(read_end, n_bytes))
    stdin.close()
