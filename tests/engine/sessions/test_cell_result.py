"""The result of a cell, from what is known at its end."""

from __future__ import annotations

from typing import Any

import pytest

from execd.engine.sessions.cell_result import CellEnd, decide, usage_of_cell
from execd.engine.sessions.worker_messages import Done, WorkerExit
from execd.model import NO_EXIT_CODE, UNKNOWN_USAGE, ExitReason
from execd.proc.child import Lost
from execd.proc.messages import CellKilled, Exited, Measured

KNOWN = CellEnd(None, None, False, None, None, (), [], 0.5)
SUCCESS, ERROR = (Done(1, status, 1, None) for status in ("success", "error"))
MEASURED = Measured(1, 5, 1.0, 0.5, 7, 9, 2)
EXITED = Exited(
    1, 2, 0.0, 1.0, wait_status=9, user_seconds=3.0, system_seconds=0.0, max_rss_bytes=8
)


@pytest.mark.parametrize(
    ("known", "exit_code", "term_signal", "reason"),
    [
        ({"done": SUCCESS}, 0, None, "exited"),
        ({"done": ERROR}, 1, None, "exited"),
        ({"done": Done(1, "error", 1, WorkerExit(7))}, 7, None, "exited"),
        ({"done": Done(1, "success", 1, WorkerExit(0))}, 0, None, "exited"),
        ({"done": SUCCESS, "cause": ExitReason.TIMEOUT}, 1, None, "timeout"),
        ({"is_gone": True, "ended": EXITED}, None, 9, "worker_died"),
        (
            {"is_gone": True, "ended": EXITED._replace(wait_status=0)},
            NO_EXIT_CODE,
            None,
            "worker_died",
        ),
        ({"is_gone": True, "ended": EXITED, "cause": ExitReason.CANCELED}, None, 9, "canceled"),
        ({"is_gone": True, "ended": Lost((4,))}, None, 9, "init_killed"),
        ({"is_gone": True}, None, 9, "init_killed"),
        ({"cause": ExitReason.INTERRUPTED}, None, 2, "interrupted"),
        ({}, None, 2, "timeout"),
    ],
)
def test_what_is_known_at_the_end_of_a_cell_decides_its_result(
    known: dict[str, Any], exit_code: int | None, term_signal: int | None, reason: str
) -> None:
    result = decide(KNOWN._replace(**known), UNKNOWN_USAGE)
    assert (result.exit_code, result.term_signal, str(result.exit_reason)) == (
        exit_code,
        term_signal,
        reason,
    )
    assert result.duration_seconds == 0.5


def test_the_kills_of_a_cell_add_up_and_the_last_names_the_survivors() -> None:
    kills = [CellKilled(1, 1, 2, [5]), CellKilled(1, 1, 3, [6])]
    result = decide(KNOWN._replace(done=SUCCESS, kills=kills), UNKNOWN_USAGE)
    assert (result.killed, result.survivors) == (5, (6,))


@pytest.mark.parametrize(
    ("begun", "counted", "ended", "user_seconds"),
    [
        (None, None, EXITED, None),
        (MEASURED, None, None, None),
        (MEASURED, MEASURED._replace(user_seconds=2.0), EXITED, 2.0),
        (MEASURED, MEASURED._replace(max_rss_bytes=0), EXITED, 3.0),
        (MEASURED._replace(max_rss_bytes=0), None, EXITED, None),
    ],
)
def test_a_cell_used_what_its_own_count_says_or_else_what_the_end_of_the_worker_says(
    begun: Measured | None,
    counted: Measured | None,
    ended: Exited | None,
    user_seconds: float | None,
) -> None:
    usage = usage_of_cell(11, begun, counted, ended)
    assert (usage.user_seconds, usage.output_bytes) == (user_seconds, 11)
