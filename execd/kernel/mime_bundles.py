"""Displays, results and errors of a cell in the form of a frame: JSON, with bounded sizes.

Runs in the user's interpreter: Python 3.9.
"""

from __future__ import annotations

import math
from base64 import b64encode
from typing import Any, NamedTuple

TEXT_CHARACTERS = 256 * 1024
"""Longest repr, error message or traceback, in characters."""
NAME_CHARACTERS = 1024
"""Longest name of an exception's class, and longest warning of a fork."""
TRACEBACK_PARTS = 400
"""Most items in a traceback's list of texts; an item is a frame or a line."""
CELL_BYTES = 24 * 1024 * 1024
"""All bundles of a cell together, as JSON. Below frames.FRAME_BYTES."""
CELL_EVENTS = 9_000
"""Displays and clearings of a cell. A loop that displays each step may make more; the daemon would
end a worker for a flood of frames, so the surplus is counted here and not sent."""
LATE_BYTES = 1024 * 1024
"""All notes in place of bundles that do not fit in CELL_BYTES. Afterwards the cell sends no more
notes."""
_NOTE_CHARACTERS = 100
_DEPTH = 50


class ErrorDescription(NamedTuple):
    """The exception that ended a cell, as reported."""

    name: str
    value: str
    traceback: list[str]


def truncate(text: str, characters: int = TEXT_CHARACTERS) -> str:
    """Return ``text``, or the first ``characters`` and a note of the number of omitted ones."""
    if len(text) <= characters:
        return text
    return f"{text[:characters]}... [{len(text) - characters} characters omitted]"


def describe_error(
    kind: type[BaseException], value: BaseException | None, lines: list[str]
) -> ErrorDescription:
    """Return an exception in the form of a frame. lines: the formatted traceback."""
    try:
        message = str(value)
    except Exception as failure:  # user code's __str__
        message = f"<str() of it raised {type(failure).__name__}>"
    if len(lines) > TRACEBACK_PARTS:
        half = TRACEBACK_PARTS // 2
        lines = [*lines[:half], f"[... {len(lines) - 2 * half} lines omitted]", *lines[-half:]]
    assert len(lines) <= TRACEBACK_PARTS + 1
    share = max(TEXT_CHARACTERS // max(len(lines), 1), 1024)
    return ErrorDescription(
        truncate(str(kind.__name__), NAME_CHARACTERS),
        truncate(message),
        [truncate(str(line), share) for line in lines],
    )


def limit_string_reprs(formatter: Any) -> None:
    """Make the text/plain formatter cut long str and bytes values before their repr.

    The repr of a string of 1 GiB would take several GiB of memory.
    """
    plain = formatter.formatters["text/plain"]

    def printed(value: str | bytes, printer: Any, cycle: bool) -> None:
        text = repr(value[:TEXT_CHARACTERS])
        if len(text) > TEXT_CHARACTERS - _NOTE_CHARACTERS:
            text = (
                f"{text[: TEXT_CHARACTERS - _NOTE_CHARACTERS]}... [cut; its length is {len(value)}]"
            )
        printer.text(text)

    for kind in (str, bytes):
        plain.for_type(kind, printed)


def fit_bundle(data: dict[str, Any]) -> dict[str, Any]:
    """Return a mime bundle as JSON: text/plain truncated, bytes (pictures) in base64."""
    return {
        str(mime): truncate(value)
        if mime == "text/plain" and type(value) is str
        else to_json(value)
        for mime, value in data.items()
    }


def to_json(value: Any, depth: int = 0) -> Any:
    """Return the nearest JSON value.

    Bytes become base64, NaN and infinities null. Unknown objects, and values below _DEPTH, become
    their repr.
    """
    assert 0 <= depth <= _DEPTH
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return to_json(float(value))
    if depth < _DEPTH:
        if isinstance(value, dict):
            return {str(key): to_json(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [to_json(item, depth + 1) for item in value]
    return truncate(repr(value))
