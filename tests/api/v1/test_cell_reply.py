"""The output of a cell, as replies and notebooks assemble the output."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from execd.api.v1 import cell_reply
from execd.api.v1.cell_reply import Bundle
from execd.model import BackgroundOutput, CellFacts, DisplayMessage


def display(data: Any, display_id: str | None = None, *, update: bool = False) -> DisplayMessage:
    return DisplayMessage(
        "display", {"data": data, "metadata": {}, "display_id": display_id, "update": update}
    )


def result(data: Any) -> DisplayMessage:
    fields = {"execution_count": 1, "data": data, "metadata": {}, "display_id": None}
    return DisplayMessage("result", fields)


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
        ([result(1), display(2), result(3)], [1, 2, 3]),
        ([result(1), clear(wait=False), result(2)], [2]),
    ],
)
def test_displays_are_those_that_a_notebook_would_show_in_the_end(
    rich: list[DisplayMessage], seen: list[int]
) -> None:
    shown = cell_reply.visible_displays(rich)
    assert [bundle.data for bundle in shown] == seen


def test_an_update_brings_its_own_metadata() -> None:
    rich = [
        display(1, "a"),
        DisplayMessage(
            "display", {"data": 2, "metadata": {"w": 1}, "display_id": "a", "update": True}
        ),
    ]
    assert cell_reply.visible_displays(rich) == [
        Bundle(data=2, metadata={"w": 1}, display_id="a")  # type: ignore[arg-type]
    ]


def test_the_last_result_and_error_are_shown_and_earlier_results_are_displays() -> None:
    error = {"name": "E", "value": "v", "traceback": []}
    shown = cell_reply.display_fields(
        [
            result(1),
            DisplayMessage("error", error),
            display(3),
            result(2),
        ]
    )
    last = {"data": 2, "metadata": {}, "display_id": None}
    first, second = ({"data": data, "metadata": {}, "display_id": None} for data in (1, 3))
    assert msgspec.to_builtins(shown) == {
        "result": last,
        "displays": [first, second],
        "error": error,
    }
    assert cell_reply.display_fields([]) == {"result": None, "displays": [], "error": None}


def test_a_cell_that_ended_before_it_ran_is_no_success() -> None:
    cell = CellFacts(session_id="s")
    assert cell_reply.outcome_fields(cell, has_ended=True)["status"] == "error"
    assert cell_reply.outcome_fields(cell, has_ended=False) == {
        "status": None,
        "execution_count": None,
    }


def test_background_in_base64_tells_that_its_beginning_is_lost() -> None:
    background = BackgroundOutput(
        stdout=b"ab", stderr=b"c", stdout_omitted_bytes=5, stderr_omitted_bytes=0
    )
    assert msgspec.to_builtins(cell_reply.background_reply(background, "base64")) == {
        "stdout_base64": "YWI=",
        "stderr_base64": "Yw==",
        "truncated": {"stdout": {"total_bytes": 7, "head_bytes": 0, "omitted_bytes": 5}},
    }
