"""The fields of a reply that only a cell has. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from execd.engine.executions.execution import Execution
    from execd.model import CellFacts, DisplayMessage, Result


def identity_fields(execution: Execution, cell: CellFacts) -> dict[str, Any]:
    """Return the fields that are known when the cell starts."""
    return {
        "execution_id": execution.id,
        "session_id": cell.session_id,
        "generation": cell.generation,
        "state_lost": cell.state_lost,
    }


def outcome_fields(cell: CellFacts, result: Result | None) -> dict[str, Any]:
    """Return the outcome. Unknown values are null. A cell that ended before it ran counts as an
    error."""
    if result is None:
        return {"status": None, "execution_count": None}
    return {"status": cell.status or "error", "execution_count": cell.execution_count}


def display_fields(rich: Sequence[DisplayMessage]) -> dict[str, Any]:
    """Return everything displayed up to now: for each display a bundle of formats, by MIME type."""
    return {
        "result": next(
            (item.fields["data"] for item in reversed(rich) if item.kind == "result"), None
        ),
        "displays": visible_displays(rich),
        "error": next((item.fields for item in reversed(rich) if item.kind == "error"), None),
    }


def visible_displays(rich: Iterable[DisplayMessage]) -> list[Any]:
    """Return the displays that a notebook would show at the end: an update replaces its display,
    and cleared displays are gone.

    An update of an earlier cell's display is listed here, since the earlier cell's reply has been
    sent.
    """
    found: list[tuple[str | None, Any]] = []
    clears = False
    for item in rich:
        if item.kind == "clear_output":
            clears = bool(item.fields["wait"])  # True: at the next display, else at once
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
