"""The fields of a reply that only a cell has, and the events of its displays. Pure.

The engine does not decode the data of displays and errors. A field with such data holds
``msgspec.Raw`` in the place of the value that its annotation describes, and the encoder copies the
JSON.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from execd.api.wire import output_text
from execd.api.wire.output_text import OmittedOutput
from execd.engine.output.log import Excerpt
from execd.model import Truncation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from execd.engine.executions.execution import Execution
    from execd.model import BackgroundOutput, CellFacts, DisplayMessage


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """A display or a result, in all formats that the code made."""

    data: dict[str, Any]
    """The formats by MIME type; binary formats as base64."""
    metadata: dict[str, Any]
    """Remarks on the formats."""
    display_id: str | None
    """The name by which the code updates the display. A result has none."""


class CellErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """The exception that ended a cell."""

    name: str
    """The name of the exception's class."""
    value: str
    """The exception as text."""
    traceback: list[str]
    """The lines of the traceback."""


class DisplayShownEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The cell has displayed something."""

    data: dict[str, Any]
    """The formats by MIME type; binary formats as base64."""
    metadata: dict[str, Any]
    """Remarks on the formats."""
    display_id: str | None
    """The name by which the code updates the display."""
    update: bool
    """Whether the bundle replaces the display with this `display_id`."""


class ResultEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The value of the last expression."""

    execution_count: int
    """The number of the cell."""
    data: dict[str, Any]
    """The formats by MIME type; binary formats as base64."""
    metadata: dict[str, Any]
    """Remarks on the formats."""
    display_id: None
    """A result has none."""


class InputRequestEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The cell waits for `POST …/input`."""

    prompt: str
    """The question of `input()`."""
    password: bool
    """Whether the answer is a password."""


class ClearOutputEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The cell has cleared its displays."""

    wait: bool
    """Clear at the next display; false: at once."""


EVENTS: dict[str, type[msgspec.Struct]] = {
    "display": DisplayShownEvent,
    "result": ResultEvent,
    "error": CellErrorReply,
    "clear_output": ClearOutputEvent,
    "input_request": InputRequestEvent,
}


class BackgroundTruncation(msgspec.Struct, frozen=True, kw_only=True):
    """The streams that lost bytes. A stream that lost none is absent."""

    stdout: OmittedOutput | UnsetType = UNSET
    """The bytes of stdout."""
    stderr: OmittedOutput | UnsetType = UNSET
    """The bytes of stderr."""


class BackgroundReply(msgspec.Struct, frozen=True, kw_only=True):
    """What the session wrote between the cell before and this cell."""

    stdout: str | UnsetType = UNSET
    """Text. Absent with `encoding=base64`."""
    stderr: str | UnsetType = UNSET
    """Text. Absent with `encoding=base64`."""
    stdout_base64: str | UnsetType = UNSET
    """Bytes with `encoding=base64`, else absent."""
    stderr_base64: str | UnsetType = UNSET
    """Bytes with `encoding=base64`, else absent."""
    truncated: BackgroundTruncation | None
    """The streams that lost their beginnings; null: none did."""


def identity_fields(execution: Execution, cell: CellFacts) -> dict[str, Any]:
    """Return the fields that are known when the cell starts."""
    return {
        "execution_id": execution.id,
        "session_id": cell.session_id,
        "generation": cell.generation,
        "state_lost": cell.state_lost,
    }


def outcome_fields(cell: CellFacts, *, has_ended: bool) -> dict[str, Any]:
    """Return the outcome. Unknown values are null. A cell that ended before it ran counts as an
    error."""
    if not has_ended:
        return {"status": None, "execution_count": None}
    return {"status": cell.status or "error", "execution_count": cell.execution_count}


def display_fields(rich: Sequence[DisplayMessage]) -> dict[str, Any]:
    """Return everything displayed up to now. A cell may have several results
    (``InteractiveShell.ast_node_interactivity``): the last is the result, and the others are
    displays."""
    result = next((item for item in reversed(rich) if item.kind == "result"), None)
    return {
        "result": None if result is None else bundle(result),
        "displays": visible_displays(item for item in rich if item is not result),
        "error": next(
            (CellErrorReply(**item.fields) for item in reversed(rich) if item.kind == "error"), None
        ),
    }


def bundle(item: DisplayMessage) -> Bundle:
    """Return a display or a result without the fields that only its event has."""
    fields = item.fields
    return Bundle(data=fields["data"], metadata=fields["metadata"], display_id=fields["display_id"])


def display_event(item: DisplayMessage) -> msgspec.Struct:
    """Return the fields of the event for a message."""
    return EVENTS[item.kind](**item.fields)


def background_reply(
    background: BackgroundOutput, encoding: Literal["text", "base64"]
) -> BackgroundReply:
    """Return what the session wrote before the cell, with a marker line in the place of bytes that
    are lost."""
    stdout, stdout_cut = _render(background.stdout, background.stdout_omitted_bytes, encoding)
    stderr, stderr_cut = _render(background.stderr, background.stderr_omitted_bytes, encoding)
    truncated = None
    if not (stdout_cut is UNSET and stderr_cut is UNSET):
        truncated = BackgroundTruncation(stdout=stdout_cut, stderr=stderr_cut)
    if encoding == "base64":
        return BackgroundReply(stdout_base64=stdout, stderr_base64=stderr, truncated=truncated)
    return BackgroundReply(stdout=stdout, stderr=stderr, truncated=truncated)


def _render(
    data: bytes, omitted_bytes: int, encoding: Literal["text", "base64"]
) -> tuple[str, OmittedOutput | UnsetType]:
    cut = None
    excerpt = Excerpt(data, b"", None)
    if omitted_bytes:
        total_bytes = omitted_bytes + len(data)
        cut = Truncation(total_bytes=total_bytes, head_bytes=0, omitted_bytes=omitted_bytes)
        excerpt = Excerpt(b"", data, cut)
    if encoding == "base64":
        text = base64.b64encode(data).decode()
    else:
        text, cut = output_text.render(excerpt)
    return text, UNSET if cut is None else OmittedOutput(**msgspec.structs.asdict(cut))


def visible_displays(rich: Iterable[DisplayMessage]) -> list[Bundle]:
    """Return the displays that a notebook would show at the end: an update replaces its display,
    and cleared displays are gone.

    An update of an earlier cell's display is listed here, since the earlier cell's reply has been
    sent.
    """
    found: list[Bundle] = []
    clears = False
    for item in rich:
        if item.kind == "clear_output":
            clears = bool(item.fields["wait"])  # True: at the next display, else at once
            if not clears:
                found.clear()
        elif item.kind in ("display", "result"):
            if clears:
                found.clear()
                clears = False
            shown = bundle(item)
            name = shown.display_id
            if item.fields.get("update") and any(known.display_id == name for known in found):
                found = [shown if known.display_id == name else known for known in found]
            else:
                found.append(shown)
    return found
