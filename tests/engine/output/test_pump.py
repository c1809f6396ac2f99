from __future__ import annotations

import asyncio
import errno
import os
import threading
from typing import TYPE_CHECKING

import pytest

from execd.engine.output.pump import Pump
from tests.patience import patience
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import Awaitable


def pattern(size: int) -> bytes:
    """Numbered lines: each line tells the line's place."""
    return b"".join(b"%07d\n" % number for number in range(size // 8 + 1))[:size]


class Taken:
    """Collects the bytes of a pump. Optionally each write waits until ``go`` is set."""

    def __init__(self, wait: bool = False) -> None:
        self.data = b""
        self.go = asyncio.Event()
        self._wait = wait

    def __call__(self, data: bytes) -> Awaitable[None] | None:
        self.data += data
        return self._write() if self._wait else None

    async def _write(self) -> None:
        await self.go.wait()


async def test_a_pump_reads_to_the_end_and_closes_its_descriptor() -> None:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    taken = Taken()
    pump = Pump(read_end, taken)
    pump.start()
    os.write(write_end, b"abc")
    await wait_until_async(lambda: taken.data == b"abc")
    os.write(write_end, b"def")
    os.close(write_end)
    await asyncio.wait_for(pump.ended, patience.seconds(5))
    assert taken.data == b"abcdef"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read_end)
    pump.close()


async def test_a_pump_reads_no_further_while_a_write_is_under_way() -> None:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    taken = Taken(wait=True)
    pump = Pump(read_end, taken)
    pump.start()
    os.write(write_end, b"first")
    await wait_until_async(lambda: taken.data == b"first")
    os.write(write_end, b"second")
    for _ in range(20):
        await asyncio.sleep(0)
    pump.drain_now()
    assert taken.data == b"first"
    taken.go.set()
    await wait_until_async(lambda: taken.data == b"firstsecond")
    os.close(write_end)
    await asyncio.wait_for(pump.ended, patience.seconds(5))
    await pump.drain_after_writes()


async def test_the_rest_is_what_came_while_a_write_was_under_way() -> None:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    taken = Taken(wait=True)
    pump = Pump(read_end, taken)
    pump.start()
    os.write(write_end, b"first")
    await wait_until_async(lambda: taken.data == b"first")
    os.write(write_end, b"second")
    rest = asyncio.create_task(pump.drain_after_writes())
    await asyncio.sleep(0)
    assert not rest.done()
    taken.go.set()
    await asyncio.wait_for(rest, patience.seconds(5))
    assert taken.data == b"firstsecond"
    pump.close()
    os.close(write_end)


async def test_a_write_goes_on_after_the_close_and_can_be_waited_for() -> None:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    taken = Taken(wait=True)
    pump = Pump(read_end, taken)
    await asyncio.wait_for(pump.wait_for_write(), patience.seconds(5))
    pump.start()
    os.write(write_end, b"first")
    await wait_until_async(lambda: taken.data == b"first")
    pump.close()
    written = asyncio.create_task(pump.wait_for_write())
    await asyncio.sleep(0)
    assert not written.done()
    taken.go.set()
    await asyncio.wait_for(written, patience.seconds(5))
    os.close(write_end)


async def test_draining_takes_what_is_there_at_once_and_is_bounded() -> None:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    taken = Taken()
    pump = Pump(read_end, taken)
    pump.start()
    os.write(write_end, pattern(60_000))
    pump.drain_now()
    assert taken.data == pattern(60_000)
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            try:
                os.write(write_end, b"y" * 65_536)
            except OSError:
                return

    thread = threading.Thread(target=flood)
    thread.start()
    pump.drain_now()
    assert not pump.ended.done()
    pump.close()
    stop.set()
    thread.join()
    os.close(write_end)


async def test_closing_a_pump_twice_is_closing_it_once() -> None:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    pump = Pump(read_end, Taken())
    pump.start()
    pump.close()
    pump.close()
    pump.drain_now()
    os.close(write_end)


async def test_a_pump_of_a_terminal_ends_when_the_other_side_is_closed() -> None:
    ours, theirs = os.openpty()
    taken = Taken()
    pump = Pump(ours, taken)
    pump.start()
    os.write(theirs, b"abc")
    os.close(theirs)
    await asyncio.wait_for(pump.ended, patience.seconds(5))
    assert taken.data == b"abc"


async def test_output_written_while_the_read_looked_at_the_other_side_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first read has looked for output, then the program writes and ends, then the first read
    finds the other side closed."""
    master, slave = os.openpty()
    taken = Taken()
    pump = Pump(master, taken)
    read = os.read

    def read_late(fd: int, n_bytes: int) -> bytes:
        if not fails:
            return read(fd, n_bytes)
        os.write(slave, b"last words")
        os.close(slave)
        raise fails.pop()

    fails = [OSError(errno.EIO, "Input/output error")]
    monkeypatch.setattr(os, "read", read_late)
    pump.drain_now()
    await asyncio.wait_for(pump.ended, patience.seconds(5))
    assert taken.data == b"last words"


async def test_a_pump_that_was_never_started_gives_what_the_pipe_holds_and_its_end() -> None:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    taken = Taken()
    pump = Pump(read_end, taken)
    os.write(write_end, b"all of it")
    os.close(write_end)
    for _ in range(20):
        await asyncio.sleep(0)
    assert taken.data == b""
    pump.drain_now()
    assert taken.data == b"all of it"
    assert pump.ended.done()
    pump.close()
