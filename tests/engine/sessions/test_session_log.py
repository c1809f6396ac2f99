"""The log of a session: bounded, numbered, and honest about what is lost."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.engine.sessions import session_log
from execd.engine.sessions.session_log import (
    CellStarted,
    Deleted,
    DroppedOutput,
    LogBudget,
    SessionLog,
    WrittenOutput,
)
from execd.errors import Gone, InvalidArgument
from execd.model import STREAMS

if TYPE_CHECKING:
    from execd.engine.sessions.session_log import FollowedEvent
    from execd.model import Stream

WRITES = st.lists(
    st.tuples(
        st.sampled_from(STREAMS),
        st.sampled_from(
            [b"a", b"bcd\n", b"\xc3", b"\xa9", b"\xe2\x98", b"\x83", b"\xff", b"x" * 90]
        ),
    ),
    max_size=40,
)


async def read(log: SessionLog, after: int = 0) -> list[tuple[int, FollowedEvent]]:
    """All events of a log that is closed."""
    found = []
    async with aclosing(log.follow(after, 5.0)) as followed:
        async for item in followed:
            assert item is not None, "no heartbeat within the test"
            found.append(item)
    return found


def joined(events: list[tuple[int, FollowedEvent]], stream: Stream) -> bytes:
    """The stream, with a question mark for each byte that was dropped."""
    reached, found = 0, b""
    for _, event in events:
        if isinstance(event, (WrittenOutput, DroppedOutput)) and event.stream == stream:
            assert event.offset == reached
            data = event.data if isinstance(event, WrittenOutput) else b"?" * event.size_bytes
            found += data
            reached += len(data)
    return found


@given(WRITES, st.integers(1, 40), st.sampled_from([400, 1200, 1 << 17]))
def test_background_and_stream_have_all_that_is_kept_and_count_the_rest(
    writes: list[tuple[Stream, bytes]], every: int, session_bytes: int
) -> None:
    async def run() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session_log, "SESSION_BYTES", session_bytes)
            log = SessionLog(LogBudget())
            told = dict.fromkeys(STREAMS, b"")
            for number, (stream, data) in enumerate(writes):
                log.take_output(stream, data)
                assert log.kept_bytes <= session_bytes
                if number % every == 0:
                    take(log, told)
            log.finish_output()
            take(log, told)
            assert log.take_background() is None
            log.close(is_deleted=True)
        events = await read(log)
        numbers = [number for number, event in events if not isinstance(event, DroppedOutput)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert isinstance(events[-1][1], Deleted)
        for stream in STREAMS:
            whole = b"".join(data for name, data in writes if name == stream)
            for found in (told[stream], joined(events, stream)):
                assert len(found) <= len(whole)
                pairs = zip(found, whole, strict=False)
                assert all(byte in (own, ord("?")) for byte, own in pairs)
            assert len(told[stream]) == len(whole)
            if session_bytes == 1 << 17:
                assert told[stream] == joined(events, stream) == whole

    asyncio.run(run())


def take(log: SessionLog, told: dict[Stream, bytes]) -> None:
    """Add the background to ``told``, with question marks for omitted bytes."""
    background = log.take_background()
    if background is not None:
        told["stdout"] += b"?" * background.stdout_omitted_bytes + background.stdout
        told["stderr"] += b"?" * background.stderr_omitted_bytes + background.stderr


@given(WRITES)
def test_characters_are_cut_by_the_writer_only(writes: list[tuple[Stream, bytes]]) -> None:
    async def run() -> None:
        log = SessionLog(LogBudget())
        for stream, data in writes:
            log.take_output(stream, data)
        log.finish_output()
        log.close(is_deleted=False)
        events = await read(log)
        for stream in STREAMS:
            pieces = [
                event.data
                for _, event in events
                if isinstance(event, WrittenOutput) and event.stream == stream
            ]
            whole = b"".join(data for name, data in writes if name == stream)
            assert "".join(p.decode("utf-8", "replace") for p in pieces) == whole.decode(
                "utf-8", "replace"
            )

    asyncio.run(run())


async def test_reader_that_returns_gets_the_events_after_its_number() -> None:
    log = SessionLog(LogBudget())
    for number in range(5):
        log.note(CellStarted(f"cell-{number}", 1, False))
        log.take_output("stdout", b"x")
    log.close(is_deleted=True)
    events = await read(log)
    for position, (number, _) in enumerate(events):
        assert await read(log, number) == events[position + 1 :]


async def test_number_that_was_trimmed_is_gone_and_one_to_come_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_log, "SESSION_BYTES", 300)
    log = SessionLog(LogBudget())
    first = log.newest + 1
    for _ in range(5):
        log.take_output("stdout", b"x")
    with pytest.raises(Gone):
        log.follow(first, 5.0)
    with pytest.raises(InvalidArgument) as refused:
        log.follow(log.newest + 1, 5.0)
    assert refused.value.details == {"field": "after", "newest_event": log.newest}
    log.close(is_deleted=False)
    assert await read(log) == [
        (log.newest - 2, DroppedOutput("stdout", 0, 3)),
        (log.newest - 1, WrittenOutput("stdout", 3, b"x")),
        (log.newest, WrittenOutput("stdout", 4, b"x")),
    ]


async def test_reader_that_is_overtaken_is_told_what_it_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_log, "SESSION_BYTES", 300)
    log = SessionLog(LogBudget())
    log.take_output("stderr", b"0")
    async with aclosing(log.follow(log.newest, 5.0)) as followed:
        waiting = asyncio.ensure_future(anext(followed))
        await asyncio.sleep(0)  # the reader waits
        for number in range(1, 8):
            log.take_output("stderr", b"%d" % number)
        assert await waiting == (log.newest - 2, DroppedOutput("stderr", 1, 5))
        assert await anext(followed) == (log.newest - 1, WrittenOutput("stderr", 6, b"6"))


async def test_silence_of_a_log_is_filled_with_heartbeats() -> None:
    log = SessionLog(LogBudget())
    async with aclosing(log.follow(0, 0.01)) as followed:
        assert await anext(followed) is None
        log.note(CellStarted("a", 1, False))
        while (item := await anext(followed)) is None:
            pass
        assert item == (log.newest, CellStarted("a", 1, False))


async def test_largest_log_pays_for_the_budget_of_all() -> None:
    budget = LogBudget(max_bytes=50_000)
    small, large = SessionLog(budget), SessionLog(budget)
    small.take_output("stdout", b"s" * 1000)
    for _ in range(20):
        large.take_output("stdout", b"l" * 3000)
        assert budget.used_bytes == small.kept_bytes + large.kept_bytes <= 50_000
    background = small.take_background()
    assert background is not None
    assert (background.stdout, background.stdout_omitted_bytes) == (b"s" * 1000, 0)
    background = large.take_background()
    assert background is not None
    assert len(background.stdout) + background.stdout_omitted_bytes == 60_000
    assert background.stdout_omitted_bytes > 0
    large.close(is_deleted=True)
    assert budget.used_bytes == small.kept_bytes
    small.close(is_deleted=True)
    assert budget.used_bytes == 0


async def test_numbers_of_a_log_made_later_are_higher() -> None:
    former = SessionLog(LogBudget())
    for _ in range(10):
        former.take_output("stdout", b"x")
    await asyncio.sleep(0.03)  # the clock that the numbers begin with
    assert SessionLog(LogBudget()).newest > former.newest


async def test_a_closed_log_takes_no_more_events() -> None:
    log = SessionLog(LogBudget())
    log.close(is_deleted=True)
    newest = log.newest
    log.note(CellStarted("late", 1, False))
    assert log.newest == newest
