from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from execd.engine.output.follow import (
    Dropped,
    ExitedEvent,
    FollowedEvent,
    Heartbeat,
    Output,
    StartedEvent,
    follow,
)
from execd.engine.output.log import OutputLog
from execd.engine.store.state_dir import StateDir
from execd.errors import Gone
from execd.model import STREAMS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from execd.model import Stream

WRITES = st.lists(
    st.tuples(st.sampled_from(STREAMS), st.binary(min_size=1, max_size=12)), max_size=40
)
NEARLY_UTF8 = st.lists(
    st.tuples(
        st.sampled_from(STREAMS),
        st.sampled_from(
            [b"a", b"\xc3", b"\xa9", b"\xe2\x98", b"\x83", b"\xf0\x9f", b"\x98\x80", b"\xff"]
        ),
    ),
    max_size=40,
)


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateDir]:
    made = StateDir(str(tmp_path_factory.mktemp("state") / "s"), 1 << 24, {})
    yield made
    made.close()


async def written(
    state_dir: StateDir, writes: list[tuple[Stream, bytes]], memory_bytes: int, log_bytes: int
) -> OutputLog:
    name = f"log-{id(writes)}-{memory_bytes}-{asyncio.get_running_loop().time()}".replace(".", "-")
    log = OutputLog(memory_bytes, lambda stream: state_dir.spool(f"{name}.{stream}", log_bytes))
    log.note_start()
    for stream, data in writes:
        write = log.append(stream, data)
        if write is not None:
            await write
    log.note_exit()
    log.finish()
    return log


async def collect(log: OutputLog, after: int = 0, *, text: bool = False) -> list[FollowedEvent]:
    return [event async for event in follow(log, after, text=text)]


def joined(events: list[FollowedEvent], stream: Stream) -> bytes:
    return b"".join(
        event.data for event in events if isinstance(event, Output) and event.stream == stream
    )


@settings(deadline=None)
@given(writes=WRITES, memory_bytes=st.sampled_from([8, 4096]))
def test_a_reader_gets_every_byte_in_order(
    state_dir: StateDir, writes: list[tuple[Stream, bytes]], memory_bytes: int
) -> None:
    async def run() -> None:
        log = await written(state_dir, writes, memory_bytes, 1 << 20)
        events = await collect(log)
        assert isinstance(events[0], StartedEvent)
        assert isinstance(events[-1], ExitedEvent)
        for stream in STREAMS:
            assert joined(events, stream) == b"".join(
                data for name, data in writes if name == stream
            )
        log.remove()

    asyncio.run(run())


@settings(deadline=None)
@given(writes=NEARLY_UTF8)
def test_text_is_cut_between_characters_and_whole_in_the_end(
    state_dir: StateDir, writes: list[tuple[Stream, bytes]]
) -> None:
    async def run() -> None:
        log = await written(state_dir, writes, 4096, 1 << 20)
        events = await collect(log, text=True)
        for stream in STREAMS:
            whole = b"".join(data for name, data in writes if name == stream)
            pieces = [
                event.data
                for event in events
                if isinstance(event, Output) and event.stream == stream
            ]
            assert "".join(piece.decode("utf-8", "replace") for piece in pieces) == whole.decode(
                "utf-8", "replace"
            )

    asyncio.run(run())


@settings(deadline=None, max_examples=50)
@given(writes=NEARLY_UTF8, draw=st.data())
def test_a_reader_that_resumes_misses_nothing_and_gets_nothing_twice(
    state_dir: StateDir, writes: list[tuple[Stream, bytes]], draw: st.DataObject
) -> None:
    async def run() -> None:
        log = await written(state_dir, writes, 4096, 1 << 20)
        for text in (False, True):
            events = await collect(log, text=text)
            cut = draw.draw(st.integers(1, len(events)))
            seen = events[:cut]
            rest = await collect(log, seen[-1].sequence, text=text) if cut < len(events) else []
            for stream in STREAMS:
                assert joined(seen + rest, stream) == joined(events, stream)

    asyncio.run(run())


async def test_a_hole_in_the_log_is_said_to_be_one(state_dir: StateDir, tmp_path: Path) -> None:
    data = bytes(range(256)) * 8
    log = await written(
        state_dir, [("stdout", data[i : i + 16]) for i in range(0, len(data), 16)], 64, 128
    )
    events = await collect(log)
    holes = [event for event in events if isinstance(event, Dropped)]
    assert holes
    covered = {event.offset: len(event.data) for event in events if isinstance(event, Output)}
    covered |= {hole.offset: hole.size_bytes for hole in holes}
    position = 0
    for offset in sorted(covered):
        assert offset == position
        position += covered[offset]
    assert position == len(data)
    assert joined(events, "stdout") == data[:128] + data[-32:]


async def test_a_reader_that_came_first_is_woken_by_what_comes(state_dir: StateDir) -> None:
    log = OutputLog(4096, lambda stream: state_dir.spool(f"woken.{stream}", 1000))
    reading = asyncio.create_task(collect(log))
    for step in (
        log.note_start,
        lambda: log.append("stdout", b"one"),
        lambda: log.append("stderr", b"two"),
        log.note_exit,
    ):
        await asyncio.sleep(0)
        step()
    events = await asyncio.wait_for(reading, 5)
    assert [type(event).__name__ for event in events] == [
        "StartedEvent",
        "Output",
        "Output",
        "ExitedEvent",
    ]


async def test_a_number_that_is_no_more_is_gone(state_dir: StateDir) -> None:
    log = await written(state_dir, [("stdout", b"x")], 4096, 1000)
    with pytest.raises(Gone):
        await collect(log, 99)


async def test_silence_is_filled_with_heartbeats_and_nothing_is_lost(state_dir: StateDir) -> None:
    log = OutputLog(4096, lambda stream: state_dir.spool(f"silent.{stream}", 1 << 20))
    log.note_start()
    seen: list[FollowedEvent] = []
    async with (
        asyncio.timeout(20),
        aclosing(follow(log, 0, text=False, heartbeat_seconds=0.01)) as followed,
    ):
        async for event in followed:
            seen.append(event)
            if isinstance(event, Heartbeat) and seen.count(event) == 2:
                log.append("stdout", b"late")
            elif isinstance(event, Heartbeat) and seen.count(event) == 4:
                log.note_exit()
    assert [event for event in seen if not isinstance(event, Heartbeat)] == [
        StartedEvent(1),
        Output(2, "stdout", 0, b"late"),
        ExitedEvent(3),
    ]
    log.finish()
    log.remove()


async def test_without_an_interval_there_are_no_heartbeats(state_dir: StateDir) -> None:
    log = OutputLog(4096, lambda stream: state_dir.spool(f"quiet.{stream}", 1 << 20))
    log.note_start()
    asyncio.get_running_loop().call_later(0.05, log.note_exit)
    assert await collect(log) == [StartedEvent(1), ExitedEvent(2)]
    log.finish()
    log.remove()
