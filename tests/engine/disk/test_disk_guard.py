from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from execd.engine.disk.disk_guard import DiskGuard
from execd.engine.disk.disk_policy import BlamedTree, Candidate, NextLook
from execd.proc.messages import Written
from tests.patience import patience
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from execd.model import DiskExcess


class FakeVolume:
    setting, path = "base_dir_bytes", "/app"
    found_bytes, limit_bytes, used_bytes = 60, 64, 1000

    def __init__(self) -> None:
        self.policy = self
        self.n_looks = self.n_walks = 0
        self.is_over = self.is_unsolved = self.is_due = False
        self.trouble: Exception | None = None
        self.candidates: list[Candidate] = []
        self.happens_before_look: Callable[[], None] = lambda: None
        """Once. What a test changes at any other moment may fall between two steps of a look."""
        self.guilty: int | None = -1
        """The index of the guilty candidate."""
        self.walks_at = {1}
        """Looks that need a walk."""
        self.happens_in_walk: Callable[[], None] = lambda: None
        self.walk_ends: threading.Event | None = None
        self.judged: list[int] = []

    def look(self) -> NextLook:
        self.n_looks += 1
        self.used_bytes += 1
        happens, self.happens_before_look = self.happens_before_look, lambda: None
        happens()
        if self.trouble is not None:
            trouble, self.trouble = self.trouble, None
            raise trouble
        return NextLook(self.n_looks in self.walks_at, True, self.is_due, 0.001)

    def walk(self) -> None:
        self.n_walks += 1
        self.happens_in_walk()
        if self.walk_ends is not None:
            self.walk_ends.wait()

    def judge_estimate(self, written_bytes: int) -> None:
        self.judged.append(written_bytes)

    def blame(self, candidates: list[Candidate], used_before: int) -> BlamedTree | None:
        self.candidates = candidates
        if not candidates or self.guilty is None:
            return None
        return BlamedTree(candidates[self.guilty].tag, True)

    def settle(self, *, is_solved: bool) -> None:
        self.is_over, self.is_unsolved = False, not is_solved

    def close(self) -> None: ...


class FakeWarden:
    def __init__(self) -> None:
        self.written: Written | None = Written(1, [], [], [], [])
        self.ended: list[int] = []
        self.trouble: Exception | None = None

    def read_written(self, *, is_urgent: bool = False) -> asyncio.Future[Written | None]:
        if self.trouble is not None:
            trouble, self.trouble = self.trouble, None
            raise trouble
        return _done(self.written)

    def confirm_sent(self) -> asyncio.Future[None]:
        return _done(None)

    def end_tree(self, tag: int) -> None:
        self.ended.append(tag)


def _done(result: Any) -> asyncio.Future[Any]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(result)
    return future


class FakeExecution:
    def __init__(self, tag: int, cause: str | None = None) -> None:
        self.id, self.tree_tag, self.cause, self.started_at = f"x{tag}", tag, cause, None
        self.excess: DiskExcess | None = None
        self.exceeded = asyncio.Event()
        self.is_stuck = False

    def exceed_disk(self, excess: DiskExcess) -> None:
        self.excess = excess
        self.exceeded.set()

    async def ended(self) -> None:
        if self.is_stuck:
            await asyncio.Event().wait()


@pytest.fixture
async def made() -> AsyncIterator[Any]:
    parts = SimpleNamespace(volume=FakeVolume(), warden=FakeWarden(), live=[])
    parts.guard = DiskGuard(
        cast("Any", [parts.volume]), cast("Any", parts.warden), lambda: cast("Any", parts.live)
    )
    parts.guard.start()
    yield parts
    await parts.guard.close()


async def looks_again(made: Any) -> None:
    before = made.volume.n_looks
    await wait_until_async(lambda: made.volume.n_looks > before + 1, 5)


async def rests(made: Any) -> None:
    await wait_until_async(lambda: not made.guard._running.is_set(), 5)
    before = made.volume.n_looks
    for _ in range(100):
        await asyncio.sleep(0)
    assert made.volume.n_looks == before


async def test_while_nothing_runs_the_guard_looks_at_no_directory(made: Any) -> None:
    await asyncio.sleep(0)
    assert made.volume.n_looks == 0
    made.live = [FakeExecution(1)]
    made.guard.mark_running()
    await looks_again(made)
    made.live, made.warden.written = [], Written(1, [1], [0], [0], [0])
    await looks_again(made)  # what the execution left running
    made.warden.written = Written(1, [], [], [], [])
    await rests(made)
    made.guard.mark_running()
    await rests(made)


async def test_the_guilty_execution_ends_and_is_told_the_figures(made: Any) -> None:
    ending, innocent, guilty = FakeExecution(1, "timeout"), FakeExecution(2), FakeExecution(3)
    made.live = [ending, innocent, guilty]
    made.warden.written = Written(1, [1, 2, 3], [9, 1, 5], [9, 1, 5], [10, 10, 10])
    made.guard.mark_running()
    await looks_again(made)

    def cross() -> None:
        made.warden.written = Written(1, [1, 2, 3], [9, 2, 8], [9, 3, 7], [10, 10, 20])
        made.volume.is_over = True

    made.volume.happens_before_look = cross
    await wait_until_async(lambda: guilty.excess is not None, 5)
    assert guilty.excess == ("base_dir_bytes", "/app", 60, 64, True)
    assert (ending.excess, innocent.excess) == (None, None)
    assert made.volume.candidates == [(1, 0, 0, 0), (2, 1, 2, 0), (3, 3, 2, 10)]
    await wait_until_async(lambda: not made.volume.is_over, 5)


async def test_an_execution_in_its_grace_is_blamed_too(made: Any) -> None:
    innocent, ending = FakeExecution(1), FakeExecution(2, "canceled")
    made.live = [innocent, ending]
    made.warden.written = Written(1, [1, 2], [0, 9], [0, 9], [0, 0])
    made.volume.is_over = True
    made.guard.mark_running()
    await wait_until_async(lambda: ending.excess is not None, 5)
    assert innocent.excess is None


@pytest.mark.parametrize("n_turns", range(8))
async def test_the_guard_can_be_closed_at_every_step_of_an_end(made: Any, n_turns: int) -> None:
    execution = FakeExecution(1)
    made.live, made.warden.written = [execution], Written(1, [1], [9], [9], [0])
    made.volume.is_over = True
    made.guard.mark_running()
    await execution.exceeded.wait()
    for _ in range(n_turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(patience.seconds(5)):
        await made.guard.close()


async def test_the_log_tells_whether_a_tree_was_ended(
    made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made.live = [FakeExecution(1)]
    for written in (None, Written(1, [1], [1], [1], [0])):
        made.warden.written, made.volume.is_over = written, True
        made.guard.mark_running()
        await wait_until_async(lambda: not made.volume.is_over, 5)
    told = [
        (each.__dict__["has_ended_tree"], each.__dict__["execution_id"]) for each in caplog.records
    ]
    assert told == [(False, None), (True, "x1")]


async def test_bytes_that_the_walk_finds_and_the_look_before_did_not_are_known_to_the_judge(
    made: Any,
) -> None:
    def write() -> None:
        if made.volume.n_walks == 2:
            made.warden.written, made.volume.is_over = Written(1, [1], [5], [5], [0]), True

    made.live, made.warden.written = [FakeExecution(1)], Written(1, [1], [0], [0], [0])
    # A slow walk may last beyond the next look.
    made.volume.walks_at, made.volume.happens_in_walk = range(1, 1 << 20), write
    made.guard.mark_running()
    await wait_until_async(lambda: made.volume.candidates != [], 5)
    assert made.volume.candidates == [Candidate(1, 5, 5, 0)]


async def test_a_crossing_during_a_walk_counts_from_the_look_before_the_crossing(
    made: Any,
) -> None:
    made.live, made.warden.written = [FakeExecution(1)], Written(1, [1], [1], [1], [0])
    made.guard.mark_running()
    await looks_again(made)

    def cross() -> None:
        made.volume.is_due, made.warden.written = True, Written(1, [1], [5], [5], [0])

    made.volume.happens_before_look = cross
    await looks_again(made)
    await looks_again(made)
    made.volume.is_over = True
    await wait_until_async(lambda: made.volume.candidates != [], 5)
    assert made.volume.candidates == [Candidate(1, 4, 4, 0)]


async def test_after_an_end_the_figures_count_anew_although_the_look_before_was_due(
    made: Any,
) -> None:
    made.live, made.warden.written = [FakeExecution(1)], Written(1, [1], [1], [1], [0])
    made.guard.mark_running()
    await looks_again(made)
    made.volume.is_due = True
    for written, since in ((5, 4), (7, 2)):
        made.warden.written = Written(1, [1], [written], [written], [0])
        made.volume.candidates, made.volume.is_over = [], True
        await wait_until_async(lambda: made.volume.candidates != [], 5)
        assert made.volume.candidates == [Candidate(1, since, since, 0)]
        await looks_again(made)


async def test_a_tree_without_an_execution_ends_by_its_tag(made: Any) -> None:
    made.live, made.warden.written = (
        [FakeExecution(1)],
        Written(1, [1, 7], [1, 1], [1, 1], [0, 0]),
    )
    made.volume.is_over = True
    made.guard.mark_running()
    await wait_until_async(lambda: made.warden.ended == [7], 5)


@pytest.mark.parametrize("trouble", [OSError("gone"), RuntimeError("a fault")])
async def test_trouble_with_a_look_does_not_end_the_guard(
    made: Any, trouble: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("execd.engine.disk.disk_guard.TROUBLE_SECONDS", 0.001)
    made.live, made.volume.trouble = [FakeExecution(1)], trouble
    made.guard.mark_running()
    await looks_again(made)


async def test_trouble_with_the_warden_does_not_end_the_guard(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("execd.engine.disk.disk_guard.TROUBLE_SECONDS", 0.001)
    made.live = [FakeExecution(1)]
    made.guard.mark_running()
    await looks_again(made)
    # No execution is live: the guard asks the warden whether the guard may rest.
    made.live, made.warden.trouble = [], RuntimeError("a fault")
    await wait_until_async(lambda: made.warden.trouble is None, 5)
    await rests(made)
    made.live, made.warden.trouble = [FakeExecution(1)], OSError("no warden")
    made.guard.mark_running()
    await looks_again(made)


async def test_a_tree_that_does_not_end_leaves_no_task_behind(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("execd.engine.disk.disk_guard.END_SECONDS", 0.001)
    stuck = FakeExecution(1)
    stuck.is_stuck = True
    made.live, made.warden.written = [stuck], Written(1, [1], [1], [1], [0])
    tasks = len(asyncio.all_tasks())
    made.volume.is_over = True
    made.guard.mark_running()
    await wait_until_async(lambda: stuck.excess is not None and not made.volume.is_over, 5)
    assert len(asyncio.all_tasks()) == tasks


async def test_without_a_warden_nobody_is_blamed(made: Any) -> None:
    made.live, made.warden.written = [FakeExecution(1)], None
    made.volume.is_over = True
    made.guard.mark_running()
    await wait_until_async(lambda: not made.volume.is_over, 5)
    assert made.volume.candidates == []


async def test_the_looks_go_on_beside_a_long_walk(made: Any) -> None:
    made.volume.walk_ends = threading.Event()
    made.live, made.warden.written = [FakeExecution(1)], Written(1, [1], [5], [7], [0])
    made.guard.mark_running()
    try:
        await looks_again(made)
        assert made.volume.n_walks == 1
        made.warden.written = Written(1, [1, 2], [6, 1], [8, 2], [0, 0])
        await looks_again(made)
        # The estimate is judged by what all trees have written since the walk before.
        assert made.volume.judged[-1] == 7 + 1 + 2
    finally:
        made.volume.walk_ends.set()
    await wait_until_async(lambda: made.volume.judged[-1] == 3, 5)


async def test_while_nobody_is_found_guilty_the_figures_count_from_the_crossing_on(
    made: Any,
) -> None:
    execution = FakeExecution(1)
    made.live, made.warden.written = [execution], Written(1, [1], [5], [5], [0])
    made.guard.mark_running()
    await looks_again(made)
    made.volume.guilty, made.volume.is_over = None, True
    await wait_until_async(lambda: not made.volume.is_over, 5)
    assert execution.excess is None
    made.warden.written = Written(1, [1], [6], [7], [0])
    await looks_again(made)
    made.volume.guilty, made.volume.is_over = -1, True
    await wait_until_async(lambda: execution.excess is not None, 5)
    assert made.volume.candidates == [(1, 1, 2, 0)]
