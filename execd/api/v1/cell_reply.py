"""What a cell has that a command has not, as /v1 shows it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from execd.engine.executions.execution import Execution
    from execd.model import CellFacts, DisplayMessage, Result


def identity_fields(execution: Execution, cell: CellFacts) -> dict[str, Any]:
    """Known from its start on."""
    return {
        "execution_id": execution.id,
        "session_id": cell.session_id,
        "generation": cell.generation,
        "state_lost": cell.state_lost,
    }


def outcome_fields(cell: CellFacts, result: Result | None) -> dict[str, Any]:
    """How it went. What is not known yet is null; one that ended before it ran is no success."""
    if result is None:
        return {"status": None, "execution_count": None}
    return {"status": cell.status or "error", "execution_count": cell.execution_count}


def display_fields(rich: Sequence[DisplayMessage]) -> dict[str, Any]:
    """What it showed, up to now: bundles of one thing in several formats, by MIME type."""
    return {
        "result": next(
            (item.fields["data"] for item in reversed(rich) if item.kind == "result"), None
        ),
        "displays": visible_displays(rich),
        "error": next((item.fields for item in reversed(rich) if item.kind == "error"), None),
    }


def visible_displays(rich: Iterable[DisplayMessage]) -> list[Any]:
    """Those that a notebook would show in the end: updates in the place of what they update, and
    nothing that was cleared.

    An update of what an earlier cell showed has its place here: that cell's reply has been sent.
    """
    found: list[tuple[str | None, Any]] = []
    clears = False
    for item in rich:
        if item.kind == "clear_output":
            clears = bool(item.fields["wait"])  # with the next display, or at once
            if not clears:
                found.clear()
        elif item.kind == "display":
            if clears:
                found.clear()
                clears = False
            name, data = item.fields["display_id"], item.fields["data"]
            if item.fields["update"] and any(known == name for known, _ in found):
                found = [(known, data if known == name else old) for known, old in found]
            else:
                found.append((name, data))
    return [data for _, data in found]
