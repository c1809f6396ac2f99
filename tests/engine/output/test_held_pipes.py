"""Pipes that background processes hold beyond the end of their command."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.engine.output.follow import FollowedEvent, follow
from execd.engine.output.held_pipes import HeldPipes
from execd.engine.output.log import OutputLog
from execd.engine.output.pump import Pump
from execd.engine.store.state_dir import StateDir
from execd.errors import NotFound
from execd.model import STREAMS
from tests.engine.conftest import finish, running, sh
from tests.engine.test_engine import named
from tests.patience import patience
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from pathlib import Path

    from execd.engine.engine import Engine
    from execd.model import Stream

LARGEST_BYTES = 9000


class Program:
    """An ended program of the property test: two pipes, whose writing ends are still open."""

    def __init__(self, number: int, state_dir: StateDir, sizes: tuple[int, int, int]) -> None:
        memory_bytes, spool_bytes, before_bytes = sizes
        self.number = number
        self._make_spool = lambda stream: state_dir.spool(f"{number}.{stream}", spool_bytes)
        self.output = OutputLog(memory_bytes, self._make_spool)
        self.written: dict[Stream, bytes] = dict.fromkeys(STREAMS, b"")
        self.at_end: dict[Stream, bytes] = {}
        self.ends: dict[Stream, int] = {}
        self.pumps: dict[Stream, Pump] = {}
        self.is_forgotten = False
        self._before_bytes = before_bytes

    def pattern(self, stream: Stream, size_bytes: int) -> bytes:
        """The next bytes of a stream: each line tells its place."""
        at = len(self.written[stream])
        lines = b"".join(
            b"%d%s%07d\n" % (self.number, stream[-1].encode(), line)
            for line in range(at // 10, (at + size_bytes) // 10 + 1)
        )
        return lines[at % 10 :][:size_bytes]

    async def end(self, held: HeldPipes) -> None:
        """Write, end, and leave both pipes to others."""
        for stream in STREAMS:
            for nth in range(4):  # lost events have lost neighbours
                data = self.pattern(stream, (self._before_bytes + nth) // 4)
                if data and (write := self.output.append(stream, data)) is not None:
                    await write
                self.written[stream] += data
            self.at_end[stream] = self.written[stream]
            read_end, self.ends[stream] = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            self.pumps[stream] = Pump(read_end, lambda _: None)
        self.output.finish()
        self.output.note_exit()
        self.replies = await self.read_replies()
        self.events = await self.read_events()
        held.take(str(self.number), self.output, self.pumps, self._make_spool)

    async def write(self, stream: Stream, size_bytes: int) -> None:
        """Raises BrokenPipeError if nobody reads."""
        data = self.pattern(stream, size_bytes)
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.ends[stream], view) :]
            except BlockingIOError:
                await asyncio.sleep(0)
        self.written[stream] += data

    def is_quiet(self) -> bool:
        """Whether the log has all bytes, and the disk all that it takes."""
        return all(
            self.output.streams[stream].total_bytes == len(self.written[stream])
            and not self.pumps[stream].is_writing
            for stream in STREAMS
        )

    async def read_replies(self) -> list[Any]:
        return [
            [log.disk_failure, *[await log.excerpt(limit) for limit in (64, 1000, 100_000)]]
            for log in self.output.streams.values()
        ]

    async def read_events(self) -> list[FollowedEvent]:
        return [event async for event in follow(self.output, 0, text=False)]

    async def check(self) -> None:
        """Every byte is in the log, or in a hole that the log admits; the reply is the old one."""
        for stream, log in self.output.streams.items():
            data, at_end = self.written[stream], self.at_end[stream]
            assert (log.total_bytes, log.end_bytes) == (len(data), len(at_end))
            hole = self.output.hole(stream) or (len(data), len(data))
            for start, end in ((0, hole[0]), (hole[1], len(data)), (0, len(data))):
                found = await log.read(start, end)
                assert found == data[start:end] if end <= hole[0] or start >= hole[1] else True
                assert found is None or found == data[start:end]
        assert await self.read_replies() == self.replies
        assert await self.read_events() == self.events


ACTIONS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from([*STREAMS, *STREAMS, "pause", "forget", "close"]),
        st.integers(1, LARGEST_BYTES),
    ),
    max_size=25,
)
SIZES = st.tuples(
    st.integers(2, 3000), st.sampled_from((0, 50, 5000, 1 << 20)), st.integers(0, 6000)
)


@given(st.lists(SIZES, min_size=1, max_size=3), st.integers(0, 60_000), ACTIONS)
def test_every_byte_of_a_background_writer_is_kept_or_counted_and_no_writer_loses_its_reader(
    tmp_path_factory: pytest.TempPathFactory,
    programs: list[tuple[int, int, int]],
    budget_bytes: int,
    actions: list[tuple[int, str, int]],
) -> None:
    """Programs that leave writers behind: memory, disk and writes have any size, and an execution
    may be forgotten at any moment."""

    async def check() -> None:
        state_dir = StateDir(str(tmp_path_factory.mktemp("state")), budget_bytes, {})
        held = HeldPipes(1024, lambda: None)
        left = [Program(number, state_dir, sizes) for number, sizes in enumerate(programs)]
        try:
            for program in left:
                await program.end(held)
            for number, action, size_bytes in actions:
                program = left[number % len(left)]
                if action == "pause":
                    for _ in range(size_bytes % 20):
                        await asyncio.sleep(0)
                elif action == "forget":
                    held.remove(str(program.number), program.output)
                    program.output.remove()
                    program.is_forgotten = True
                elif action == "close":
                    if program.ends:
                        os.close(program.ends.popitem()[1])
                elif action in program.ends:
                    await program.write("stdout" if action == "stdout" else "stderr", size_bytes)
            for program in left:
                if not program.is_forgotten:
                    await wait_until_async(program.is_quiet, 20)
                    await program.check()
                while program.ends:
                    os.close(program.ends.popitem()[1])
            await wait_until_async(lambda: held.count == 0, 20)
            for program in left:
                program.output.remove()
            assert state_dir.used_bytes == 0
        finally:
            await held.close(patience.seconds(20))
            for program in left:
                for end in program.ends.values():
                    os.close(end)
            state_dir.threads.shutdown(wait=True)
            state_dir.close()
        assert os.listdir(state_dir.logs_dir) == []

    asyncio.run(check())


def gated(folder: Path, script: str) -> str:
    """A command line that leaves ``script`` behind. The script runs when ``let_go`` is called, and
    then makes the file ``done``."""
    os.mkfifo(folder / "gate")
    return f"{{ read line < {folder}/gate; {script}; echo $? > {folder}/done; }} & echo now"


async def let_go(folder: Path) -> str:
    """Return the exit code of the script."""
    gate = os.open(folder / "gate", os.O_RDWR)
    try:
        os.write(gate, b"go\n")
        await wait_until_async(lambda: (folder / "done").exists(), 20)
        await wait_until_async(lambda: (folder / "done").read_text().endswith("\n"))
    finally:
        os.close(gate)
    return (folder / "done").read_text().strip()


async def test_output_after_the_end_goes_into_the_log_and_not_into_the_reply(
    engine: Engine, tmp_path: Path
) -> None:
    script = gated(tmp_path, "echo later; echo oops >&2")
    execution = named(engine, script, "x")
    ended = await finish(execution)
    assert (ended.stdout, ended.stderr) == (b"now\n", b"")
    assert engine.stats().executions.held_pipes == 2
    assert await let_go(tmp_path) == "0"
    await wait_until_async(lambda: engine.stats().executions.held_pipes == 0, 20)
    for stream, text in ("stdout", b"now\nlater\n"), ("stderr", b"oops\n"):
        total_bytes = execution.view.total_bytes(stream)  # type: ignore[arg-type]  # a stream
        assert await execution.view.read(stream, 0, total_bytes) == text  # type: ignore[arg-type]
    again = await finish(named(engine, script, "x"))
    assert again.execution is execution
    assert (again.result, again.stdout, again.stderr) == (ended.result, b"now\n", b"")
    events = [event async for event in execution.view.follow(0, text=True)]
    assert b"".join(getattr(event, "data", b"") for event in events) == b"now\n"


async def test_a_flood_after_the_end_is_counted_past_the_bounds_of_the_log(
    tmp_path: Path,
) -> None:
    n_bytes = 2_000_000
    async with running(tmp_path, stream_memory_bytes=8192, log_bytes=100_000) as engine:
        script = gated(tmp_path, f"yes | head -c {n_bytes}")
        execution = (await sh(engine, script)).execution
        assert await let_go(tmp_path) == "0"
        await wait_until_async(lambda: engine.stats().executions.held_pipes == 0, 20)
        assert execution.view.total_bytes("stdout") == 4 + n_bytes
        assert execution.output.hole("stdout") == (100_000, 4 + n_bytes - 4096)
        assert await execution.view.read("stdout", 0, 100_000) == b"now\n" + b"y\n" * 49_998
        assert (await execution.view.excerpt("stdout", 1000)).head == b"now\n"


async def test_a_background_writer_of_a_forgotten_execution_writes_on(tmp_path: Path) -> None:
    async with running(tmp_path, retention_count=0) as engine:
        script = gated(tmp_path, "yes | head -c 1000000")
        execution = (await sh(engine, script)).execution
        with pytest.raises(NotFound):
            engine.get(execution.id)
        assert await let_go(tmp_path) == "0"
        await wait_until_async(lambda: engine.stats().executions.held_pipes == 0, 20)
        assert execution.view.total_bytes("stdout") == 4


async def test_output_after_the_end_is_in_the_log_of_the_next_daemon(tmp_path: Path) -> None:
    script = gated(tmp_path, "yes | head -c 1000000")
    async with running(tmp_path) as engine:
        ended = await finish(named(engine, script, "x"))
        assert await let_go(tmp_path) == "0"
        await wait_until_async(lambda: engine.stats().executions.held_pipes == 0, 20)
    async with running(tmp_path) as engine:
        again = await finish(named(engine, script, "x"))
        assert (again.stdout, again.result) == (b"now\n", ended.result)
        assert again.execution.view.total_bytes("stdout") == 4 + 1_000_000
        assert await again.execution.view.read("stdout", 0, 8) == b"now\ny\ny\n"


async def test_memory_of_output_after_the_end_counts_for_the_retention(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, retention_bytes=100_000) as engine:
        script = gated(tmp_path, "yes | head -c 200000")
        execution = (await sh(engine, script)).execution
        assert engine.get(execution.id) is execution
        assert await let_go(tmp_path) == "0"
        # The housekeeper forgets the execution, which has become too large.
        await wait_until_async(lambda: execution not in list(engine._registry), 20)


async def test_the_rest_of_an_ended_command_is_ended_with_its_pipes(engine: Engine) -> None:
    execution = (await sh(engine, "yes & echo now")).execution
    assert engine.stats().executions.held_pipes == 2
    await execution.end_rest(0.1)
    await wait_until_async(lambda: engine.stats().executions.held_pipes == 0, 20)


async def test_a_lost_warden_takes_all_writers_along(engine: Engine) -> None:
    await sh(engine, "yes & echo now")
    assert engine.warden.pid is not None
    os.kill(engine.warden.pid, signal.SIGKILL)
    await wait_until_async(lambda: engine.stats().executions.held_pipes == 0, 20)


async def test_pipe_that_is_silent_for_the_longest_gives_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state_dir = StateDir(str(tmp_path / "state"), 1 << 20, {})
    held = HeldPipes(32, lambda: None)  # four pipes
    first, second, third = (Program(number, state_dir, (100, 0, 5)) for number in range(3))
    try:
        await first.end(held)
        await second.end(held)
        await first.write("stdout", 10)
        await wait_until_async(lambda: first.output.streams["stdout"].total_bytes == 15)
        await third.end(held)
        assert held.count == 4
        assert [record.__dict__["stream"] for record in caplog.records] == ["stderr", "stdout"]
        with pytest.raises(BrokenPipeError):
            await first.write("stderr", 10)
        with pytest.raises(BrokenPipeError):
            await second.write("stdout", 10)
        await first.write("stdout", 10)
        await second.write("stderr", 10)
        await wait_until_async(lambda: first.output.streams["stdout"].total_bytes == 25)
    finally:
        await held.close(0.0)
        late = Program(3, state_dir, (100, 0, 5))
        await late.end(held)
        assert held.count == 0
        assert not any(pump.is_open for pump in late.pumps.values())
        for program in (first, second, third, late):
            for end in program.ends.values():
                os.close(end)
        state_dir.close()
