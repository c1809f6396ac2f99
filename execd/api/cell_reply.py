"""What a cell has that a command has not, as /v1 shows it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from execd.model import State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from execd.engine.cells import Cell
    from execd.model import Result, Rich


def identity(cell: Cell) -> dict[str, Any]:
    """Known from its start on."""
    return {
        "execution_id": cell.id,
        "session_id": cell.session_id,
        "generation": cell.generation,
        "state_lost": cell.state_lost,
    }


def outcome(cell: Cell) -> dict[str, Any]:
    """How it went. What is not known yet is null."""
    has_ended = cell.state is State.EXITED
    return {
        "status": cell.status if has_ended else None,
        "execution_count": cell.execution_count if has_ended else None,
        **({"usage": usage(cell.result)} if has_ended and cell.result is not None else {}),
    }


def shown(cell: Cell) -> dict[str, Any]:
    """What it showed, up to now: bundles of one thing in several formats, by MIME type."""
    rich = cell.output.rich
    return {
        "result": next((item.fields["data"] for item in reversed(rich) if item.kind == "result"), None),
        "displays": displays(rich),
        "error": next((item.fields for item in reversed(rich) if item.kind == "error"), None),
    }


def displays(rich: Iterable[Rich]) -> list[Any]:
    """Those that a notebook would show in the end: updates in the place of what they update, and nothing that was cleared."""
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
            if item.fields["update"]:
                found = [(known, data if known == name else old) for known, old in found]
            else:
                found.append((name, data))
    return [data for _, data in found]


def usage(result: Result) -> dict[str, Any]:
    """The kernel tells what a process used when it ends, and that of a cell that left its session alive has not."""
    if result.term_signal is None and result.usage.max_rss_bytes == 0:
        return {"output_bytes": result.usage.output_bytes}
    return msgspec.structs.asdict(result.usage)
