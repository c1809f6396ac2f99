"""The clocks of one execution, without a program."""

from __future__ import annotations

import asyncio
import heapq
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from execd.engine.executions import deadlines, execution
from execd.engine.executions.context import EngineContext
from execd.engine.executions.deadlines import Deadlines
from execd.engine.executions.execution import Execution
from execd.engine.executions.execution_record import Registration
from execd.model import ExitReason
from tests.engine.conftest import make_config, shell_command
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ANSWER_SECONDS = 0.5
"""docs/behaviour.md: the answer to a timeout comes within the limit plus this time."""


class Clock:
    """A monotonic clock, and the timers and futures of a loop with this clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.create_future = asyncio.get_running_loop().create_future
        self._timers: list[tuple[float, int, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now

    monotonic = time

    def call_at(self, at: float, call: Callable[..., object], *args: Any) -> Any:
        timer = (at, id(call), lambda: call(*args))
        heapq.heappush(self._timers, timer)
        return SimpleNamespace(cancel=lambda: timer in self._timers and self._timers.remove(timer))

    def call_later(self, seconds: float, call: Callable[..., object], *args: Any) -> Any:
        return self.call_at(self.now + seconds, call, *args)

    def run_until(self, seconds: float) -> None:
        """Call all timers that are due by then, each at its time."""
        while self._timers and self._timers[0][0] <= 1000.0 + seconds:
            at, _, call = heapq.heappop(self._timers)
            self.now = max(self.now, at)
            call()
        self.now = 1000.0 + seconds


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in deadlines, execution:
        fake = SimpleNamespace(monotonic=made.monotonic, time=made.time)
        monkeypatch.setattr(module, "time", fake)
    return made


def make_deadlines(overruns: list[ExitReason]) -> Deadlines:
    return Deadlines(
        lambda reason, _: overruns.append(reason),
        lambda: None,
        lambda: None,
        asyncio.get_running_loop(),
    )


async def test_an_answer_may_become_due_again_and_after_it_was_given() -> None:
    """A drain makes the answer due of an execution that may have answered in the same turn."""
    deadlines = make_deadlines([])
    for _ in range(2):
        deadlines.answer_now()
        assert deadlines.overdue.done()
    deadlines.close()
    deadlines.answer_now()


async def test_a_program_that_passes_its_limit_is_over_it_and_one_that_has_ended_is_not() -> None:
    running: list[ExitReason] = []
    ended: list[ExitReason] = []
    for overruns in (ended, running):
        make_deadlines(overruns).start(0.01, None, has_ended=overruns is ended)
    await wait_until_async(lambda: running)
    assert (running, ended) == ([ExitReason.TIMEOUT], [])


async def test_the_limit_of_silence_counts_from_the_last_output() -> None:
    overruns: list[ExitReason] = []
    busy, silent = make_deadlines(overruns), make_deadlines(overruns)
    busy.start(3600.0, 0.01, has_ended=False)
    busy.last_output += 3600.0
    silent.start(3600.0, 0.02, has_ended=False)  # judged later than the other
    await wait_until_async(lambda: overruns)
    assert overruns == [ExitReason.NO_OUTPUT_TIMEOUT]
    busy.stop()
    silent.stop()


class StubbornRunner:
    """A program that nothing ends."""

    def __init__(self, clock: Clock) -> None:
        self.is_running, self.clock = True, clock
        self.asked: list[tuple[float, float]] = []

    def terminate(self, grace_seconds: float, unless_ended_before: float) -> None:
        assert unless_ended_before == self.clock.now
        self.asked.append((self.clock.now, grace_seconds))

    def sample(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"timeout_seconds": 3.0}, ExitReason.TIMEOUT),
        ({"no_output_timeout_seconds": 3.0}, ExitReason.NO_OUTPUT_TIMEOUT),
        ({"timeout_seconds": 60.0, "total_seconds": 3.0}, ExitReason.TIMEOUT),
    ],
)
async def test_answer_to_a_timeout_is_due_in_time_whatever_the_program_does(
    tmp_path: Path, clock: Clock, limits: dict[str, float], reason: ExitReason
) -> None:
    runner, context = cast("Any", StubbornRunner(clock)), EngineContext()
    context.config, context.loop = make_config(tmp_path), cast("Any", clock)
    context.on_run, context.look_for_restore = lambda: None, lambda: False
    running = Execution(
        Registration("x"), shell_command("true", **limits), context, cast("Any", None), runner
    )
    running.requested()
    running.started()
    clock.run_until(2.999)
    assert (running.cause, runner.asked) == (None, [])
    clock.run_until(3.0)
    assert (running.cause, running.cause_at) == (reason, 1003.0)
    ((at, grace_seconds),) = runner.asked
    assert at + grace_seconds < 1003.0 + ANSWER_SECONDS, "the KILL comes before the answer"
    assert not running.deadlines.overdue.done()
    clock.run_until(2.999 + ANSWER_SECONDS)
    assert running.deadlines.overdue.done()
    running.deadlines.close()
