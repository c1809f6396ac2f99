from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.engine.output.event_index import Kind
from execd.engine.output.follow import (
    STREAM_OF,
    Dropped,
    ExitedEvent,
    FollowedEvent,
    Heartbeat,
    Output,
    ProgramStarted,
    follow,
    follow_stream,
)
from execd.engine.output.head_tail import MAX_CHARACTER_BYTES
from execd.engine.output.log import OutputLog, StreamLog
from execd.engine.store import state_dir as state_dir_module
from execd.engine.store.state_dir import StateDir
from execd.errors import Gone, InvalidArgument
from execd.model import STREAMS
from tests.patience import patience
from tests.profiles import examples

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


@pytest.fixture(autouse=True)
def busy_disk() -> Iterator[None]:
    """A busy disk is not a broken disk here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_dir_module, "DISK_SECONDS", 3600.0)
        yield


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


@given(writes=WRITES, memory_bytes=st.sampled_from([8, 4096]))
def test_a_reader_gets_every_byte_in_order(
    state_dir: StateDir, writes: list[tuple[Stream, bytes]], memory_bytes: int
) -> None:
    async def run() -> None:
        log = await written(state_dir, writes, memory_bytes, 1 << 20)
        events = await collect(log)
        assert isinstance(events[0], ProgramStarted)
        assert isinstance(events[-1], ExitedEvent)
        for stream in STREAMS:
            assert joined(events, stream) == b"".join(
                data for name, data in writes if name == stream
            )
        log.remove()

    asyncio.run(run())


@given(
    writes=WRITES,
    memory_bytes=st.sampled_from([8, 4096]),
    log_bytes=st.sampled_from([0, 20, 1 << 20]),
    offset=st.integers(0, 100),
)
def test_a_reader_of_one_stream_gets_the_bytes_from_its_offset_on_and_no_others_are_read(
    state_dir: StateDir,
    writes: list[tuple[Stream, bytes]],
    memory_bytes: int,
    log_bytes: int,
    offset: int,
) -> None:
    async def run() -> None:
        log = await written(state_dir, writes, memory_bytes, log_bytes)
        read = StreamLog.read

        async def no_earlier(read_log: StreamLog, start: int, end: int) -> bytes | None:
            assert read_log is log.streams["stdout"]
            assert start >= offset
            return await read(read_log, start, end)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StreamLog, "read", no_earlier)
            events = [event async for event in follow_stream(log, "stdout", offset)]
        assert isinstance(events[0], ProgramStarted)
        assert isinstance(events[-1], ExitedEvent)
        whole = b"".join(data for name, data in writes if name == "stdout")
        reached = offset
        for event in events[1:-1]:
            assert isinstance(event, (Output, Dropped))
            assert (event.stream, event.offset) == ("stdout", reached)
            if isinstance(event, Output):
                assert event.data == whole[reached : reached + len(event.data)]
            reached += len(event.data) if isinstance(event, Output) else event.size_bytes
        assert reached == max(offset, len(whole))
        log.remove()

    asyncio.run(run())


async def test_a_reader_of_one_stream_is_told_of_a_trimmed_start(
    state_dir: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("execd.engine.output.log.MAX_EVENTS", 2)
    log = await written(state_dir, [("stderr", b"b"), ("stdout", b"a")] * 10, 4096, 1000)
    assert log.events.after(0, 1)[0].kind is not Kind.STARTED
    events = [event async for event in follow_stream(log, "stdout", 8)]
    assert isinstance(events[0], ProgramStarted)
    assert joined(events, "stdout") == b"aa"


async def test_a_reader_of_one_stream_waits_for_an_offset_to_come(state_dir: StateDir) -> None:
    log = OutputLog(4096, lambda stream: state_dir.spool(f"to-come.{stream}", 1 << 20))
    log.note_start()
    log.append("stdout", b"abc")
    events = follow_stream(log, "stdout", 5)
    assert isinstance(await anext(events), ProgramStarted)
    coming = asyncio.ensure_future(anext(events))
    log.append("stderr", b"x" * 10)
    log.append("stdout", b"def")
    assert await coming == Output(4, "stdout", 5, b"f")
    log.note_exit()
    assert isinstance(await anext(events), ExitedEvent)


async def test_an_index_of_another_version_costs_the_numbers_and_no_bytes(
    state_dir: StateDir,
) -> None:
    def make() -> OutputLog:
        return OutputLog(2, lambda stream: state_dir.spool(f"another.{stream}", 1 << 20))

    log = make()
    for stream, data in (("stdout", b"out"), ("stderr", b"err")):
        write = log.append(stream, data)
        assert write is not None, "on disk"
        await write
    log.finish()
    again = make()
    again.restore({"stdout": 3, "stderr": 3}, b"another form")
    with pytest.raises(Gone):
        follow(again, 2, text=False)
    events = await collect(again)
    assert (joined(events, "stdout"), joined(events, "stderr")) == (b"out", b"err")
    assert isinstance(events[-1], ExitedEvent)
    again.remove()


async def test_a_reader_resumes_behind_lost_bytes_that_end_inside_a_character(
    state_dir: StateDir,
) -> None:
    log = await written(state_dir, [("stdout", b"a" * 30 + b"\xc3")], 8, 4)
    numbers = [event.sequence for event in log.events.after(0, 10)]
    again = OutputLog(8, lambda _: state_dir.spool("again", 4))
    again.restore({"stdout": 31}, log.events.pack())
    assert again.hole("stdout") == (0, 31)
    for text in (False, True):
        events = [event async for event in follow(again, numbers[-3], text=text)]
        assert events == [ExitedEvent(numbers[-1])]
    log.remove()
    again.remove()


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


@pytest.mark.parametrize("n_bytes", [1, 2, 3])
async def test_of_a_character_that_is_not_whole_yet_no_byte_is_text(
    state_dir: StateDir, n_bytes: int
) -> None:
    """The longest characters have four bytes. The events of one stream are not merged here, because
    the other stream has an event in between."""
    smile = "\U0001f600".encode()
    log = await written(
        state_dir,
        [("stdout", b"a" + smile[:n_bytes]), ("stderr", b"-"), ("stdout", smile[n_bytes:])],
        4096,
        1 << 20,
    )
    events = await collect(log, text=True)
    assert [e.data for e in events if isinstance(e, Output)] == [b"a", b"-", smile]


@examples(0.5)
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


@examples(0.5)
@given(
    writes=st.lists(st.tuples(st.sampled_from(STREAMS), st.text(max_size=9)), max_size=20),
    n_lost=st.integers(0, 3),
    piece_bytes=st.sampled_from([1, 2, 5, 8]),
    max_events=st.sampled_from([2, 6, 4096]),
)
def test_a_reader_whose_connections_end_behind_each_piece_gets_each_byte_once(
    state_dir: StateDir,
    writes: list[tuple[Stream, str]],
    n_lost: int,
    piece_bytes: int,
    max_events: int,
) -> None:
    """``n_lost``: first bytes of each write that are missing, so that characters begin nowhere."""
    pairs: list[tuple[Stream, bytes]] = [
        (stream, data) for stream, text in writes if (data := text.encode()[n_lost:])
    ]

    async def run(text: bool) -> None:
        log = await written(state_dir, pairs, 4096, 1 << 20)
        received, after, has_ended = dict.fromkeys(STREAMS, b""), 0, False
        while not has_ended:
            async with aclosing(follow(log, after, text=text)) as connection:
                async for event in connection:
                    has_ended = isinstance(event, ExitedEvent)
                    if isinstance(event, Output):
                        assert event.offset == len(received[event.stream])
                        assert len(event.data) < piece_bytes + MAX_CHARACTER_BYTES or not after
                        received[event.stream] += event.data
                        if text and not n_lost:
                            event.data.decode()
                    if event.sequence > after:
                        after = event.sequence
                        break
        for stream in STREAMS:
            assert received[stream] == b"".join(data for name, data in pairs if name == stream)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("execd.engine.output.event_index.PIECE_BYTES", piece_bytes)
        patch.setattr("execd.engine.output.log.MAX_EVENTS", max_events)
        for text in (False, True):
            asyncio.run(run(text))


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


def extents(log: OutputLog) -> dict[int, tuple[Stream, int]]:
    """By the number of an event: the stream, and the offset behind the event's last byte."""
    return {
        event.sequence: (STREAM_OF[event.kind], event.offset + event.size_bytes)
        for event in log.events.after(0, 10_000)
        if event.kind in STREAM_OF
    }


LONG_EVENTS: list[tuple[Stream, bytes]] = [
    ("stdout", b"0123456789"),
    ("stderr", b"abc"),
    ("stdout", "é☃".encode() * 20),
    ("stderr", b"defghijklmnop"),
]


@pytest.mark.parametrize(
    ("memory_bytes", "log_bytes"),
    [
        pytest.param(4096, 1 << 20, id="nothing dropped"),
        pytest.param(16, 32, id="dropped inside one event"),
        pytest.param(4, 4, id="dropped over several events"),
    ],
)
async def test_only_the_last_piece_of_an_event_has_the_number_of_the_event(
    state_dir: StateDir, monkeypatch: pytest.MonkeyPatch, memory_bytes: int, log_bytes: int
) -> None:
    monkeypatch.setattr("execd.engine.output.follow.PART_BYTES", 4)
    log = await written(state_dir, LONG_EVENTS, memory_bytes, log_bytes)
    ends = extents(log)
    pieces = [event for event in await collect(log) if isinstance(event, Output | Dropped)]
    assert len(pieces) > len(ends)
    last_number = 1
    for piece in pieces:
        size_bytes = len(piece.data) if isinstance(piece, Output) else piece.size_bytes
        is_last = (piece.stream, piece.offset + size_bytes) in ends.values()
        assert piece.sequence == last_number + is_last, piece
        last_number = piece.sequence
    assert last_number == max(ends)


@pytest.mark.parametrize("text", [False, True])
async def test_a_reader_cut_off_between_pieces_resumes_without_a_gap(
    state_dir: StateDir, monkeypatch: pytest.MonkeyPatch, text: bool
) -> None:
    monkeypatch.setattr("execd.engine.output.follow.PART_BYTES", 4)
    log = await written(state_dir, [("stdout", b"x"), *LONG_EVENTS], 4096, 1 << 20)
    events = await collect(log, text=text)
    for cut in range(1, len(events)):
        rest = await collect(log, events[cut - 1].sequence, text=text)
        for stream in STREAMS:
            received = bytearray()
            for event in events[:cut] + rest:
                if isinstance(event, Output) and event.stream == stream:
                    assert event.offset <= len(received), f"a gap after a cut at {cut}"
                    received[event.offset : event.offset + len(event.data)] = event.data
            assert received == joined(events, stream)


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
    events = await asyncio.wait_for(reading, patience.seconds(5))
    assert [type(event).__name__ for event in events] == [
        "ProgramStarted",
        "Output",
        "Output",
        "ExitedEvent",
    ]


async def test_a_number_that_no_event_has_yet_is_refused_with_the_newest(
    state_dir: StateDir,
) -> None:
    log = await written(state_dir, [("stdout", b"x")], 4096, 1000)
    newest = log.events.last_sequence
    with pytest.raises(InvalidArgument, match=f"the newest event is {newest}") as refused:
        await collect(log, newest + 1)
    assert refused.value.details == {"field": "after", "newest_event": newest}
    assert await collect(log, newest - 1)


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
        ProgramStarted(1),
        Output(2, "stdout", 0, b"late"),
        ExitedEvent(3),
    ]
    log.finish()
    log.remove()


async def test_without_an_interval_there_are_no_heartbeats(state_dir: StateDir) -> None:
    log = OutputLog(4096, lambda stream: state_dir.spool(f"quiet.{stream}", 1 << 20))
    log.note_start()
    asyncio.get_running_loop().call_later(0.05, log.note_exit)
    assert await collect(log) == [ProgramStarted(1), ExitedEvent(2)]
    log.finish()
    log.remove()
