"""The output of a cell, as replies and notebooks assemble the output."""

from __future__ import annotations

from typing import Any

import pytest

from execd.api.v1 import cell_reply
from execd.model import CellFacts, DisplayMessage, ExitReason, Result


def display(data: Any, display_id: str | None = None, *, update: bool = False) -> DisplayMessage:
    return DisplayMessage(
        "display", {"data": data, "metadata": {}, "display_id": display_id, "update": update}
    )


def clear(*, wait: bool) -> DisplayMessage:
    return DisplayMessage("clear_output", {"wait": wait})


@pytest.mark.parametrize(
    ("rich", "seen"),
    [
        ([], []),
        ([display(1), display(2)], [1, 2]),
        ([display(1, "a"), display(2), display(3, "a", update=True)], [3, 2]),
        ([display(1, "a"), display(2, "a"), display(3, "a", update=True)], [3, 3]),
        (
            [
                display(1),
                display(2, "of an earlier cell", update=True),
                display(3, "of an earlier cell", update=True),
            ],
            [1, 3],
        ),
        ([display(1), clear(wait=False), display(2)], [2]),
        ([display(1), clear(wait=True)], [1]),
        ([display(1), clear(wait=True), display(2), display(3)], [2, 3]),
        ([display(1), clear(wait=True), clear(wait=False)], []),
    ],
)
def test_displays_are_those_that_a_notebook_would_show_in_the_end(
    rich: list[DisplayMessage], seen: list[int]
) -> None:
    assert cell_reply.visible_displays(rich) == seen


def test_the_last_result_and_the_last_error_are_shown() -> None:
    error = {"name": "E", "value": "v", "traceback": []}
    shown = cell_reply.display_fields(
        [
            DisplayMessage("result", {"data": 1}),
            DisplayMessage("error", error),
            DisplayMessage("result", {"data": 2}),
        ]
    )
    assert shown == {"result": 2, "displays": [], "error": error}
    assert cell_reply.display_fields([]) == {"result": None, "displays": [], "error": None}


def test_a_cell_that_ended_before_it_ran_is_no_success() -> None:
    result = Result(exit_code=None, term_signal=9, exit_reason=ExitReason.CANCELED)
    assert cell_reply.outcome_fields(CellFacts(session_id="s"), result)["status"] == "error"
    assert cell_reply.outcome_fields(CellFacts(session_id="s"), None) == {
        "status": None,
        "execution_count": None,
    }
