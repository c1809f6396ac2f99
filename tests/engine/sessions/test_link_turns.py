"""How links share the event loop, with made-up readers."""

from __future__ import annotations

import asyncio

from execd.engine.in_flight import InFlight
from execd.engine.sessions.link import LINK_SHARE, LOOP_SHARE, LinkTurns

SHARES = LOOP_SHARE // LINK_SHARE


class Flood:
    """Always has a full share to read."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name, self._log = name, log

    def read_share(self) -> int:
        self._log.append(self._name)
        return LINK_SHARE


class Word(Flood):
    """Has little to say."""

    def read_share(self) -> int:
        super().read_share()
        return 100


class Broken(Flood):
    def read_share(self) -> int:
        super().read_share()
        raise ValueError


async def test_a_reader_reads_at_once_while_there_is_something_left_of_the_turn() -> None:
    turns, log = LinkTurns(InFlight().lease), list[str]()
    for number in range(SHARES):
        turns.offer(Flood(str(number), log))
    turns.offer(Word("late", log))
    assert log == [str(number) for number in range(SHARES)]
    await asyncio.sleep(0)
    assert log[-1] == "late"


async def test_other_callbacks_have_their_turn_in_between() -> None:
    turns, log = LinkTurns(InFlight().lease), list[str]()
    for number in range(3 * SHARES):
        turns.offer(Flood(str(number), log))
    counts = []
    for _ in range(4):
        counts.append(len(log))
        await asyncio.sleep(0)
    assert counts == [SHARES, 2 * SHARES, 3 * SHARES, 3 * SHARES]


async def test_who_waits_comes_before_who_has_just_read() -> None:
    turns, log = LinkTurns(InFlight().lease), list[str]()
    floods = [Flood(str(number), log) for number in range(2 * SHARES)]
    for _ in range(4):
        for flood in floods:  # as the loop does, in the same order each time
            turns.offer(flood)
        await asyncio.sleep(0)
    assert {log.count(str(number)) for number in range(2 * SHARES)} <= {2, 3}


async def test_a_word_waits_for_one_share_of_each_flood_at_the_most() -> None:
    turns, log = LinkTurns(InFlight().lease), list[str]()
    floods = [Flood(f"flood {number}", log) for number in range(3 * SHARES)]
    word = Word("word", log)
    while "word" not in log:
        for reader in (*floods, word):
            turns.offer(reader)
        await asyncio.sleep(0)
    before = log[: log.index("word")]
    assert max(before.count(name) for name in before) <= 2


async def test_a_reader_that_fails_keeps_nobody_from_reading() -> None:
    turns, log = LinkTurns(InFlight().lease), list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    for _ in range(SHARES):
        turns.offer(Flood("flood", log))
    turns.offer(Broken("broken", log))
    turns.offer(Word("word", log))
    for _ in range(3):
        await asyncio.sleep(0)
    assert log[SHARES:] == ["broken", "word"]
