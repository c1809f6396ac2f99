"""The clocks of one execution, without a program."""

from __future__ import annotations

import asyncio

from execd.engine.executions.deadlines import Deadlines
from execd.model import ExitReason
from tests.waiting import wait_until_async


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
