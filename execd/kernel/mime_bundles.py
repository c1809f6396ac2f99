"""What a cell shows, made fit for a frame: JSON, and of a bounded size.

Runs in the user's interpreter: Python 3.9.
"""

from __future__ import annotations

import math
from base64 import b64encode
from typing import Any, NamedTuple

TEXT_CHARACTERS = 256 * 1024
"""Of one repr, one message, one frame of a traceback."""
NAME_CHARACTERS = 1024
TRACEBACK_PARTS = 400
CELL_BYTES = 24 * 1024 * 1024
"""Of all a cell displays, as JSON. Below frames.FRAME_BYTES."""
CELL_EVENTS = 9_000
"""Displays of a cell, and clearings of them: a loop that shows each step may take more, and must
not end its session."""
LATE_BYTES = 1024 * 1024
"""Of the notes that stand for what came after; then nothing more."""
_NOTE_CHARACTERS = 100
_DEPTH = 50


class CellError(NamedTuple):
    """How a cell ended that raised: as it is reported."""

    name: str
    value: str
    traceback: list[str]


def truncate(text: str, characters: int = TEXT_CHARACTERS) -> str:
    """``text``, or as much of its beginning and a note of what is missing."""
    if len(text) <= characters:
        return text
    return f"{text[:characters]}... [{len(text) - characters} characters omitted]"


def describe_error(
    kind: type[BaseException], value: BaseException | None, lines: list[str]
) -> CellError:
    try:
        message = str(value)
    except Exception as failure:  # user code's __str__
        message = f"<str() of it raised {type(failure).__name__}>"
    if len(lines) > TRACEBACK_PARTS:
        half = TRACEBACK_PARTS // 2
        lines = [*lines[:half], f"[... {len(lines) - 2 * half} lines omitted]", *lines[-half:]]
    share = max(TEXT_CHARACTERS // max(len(lines), 1), 1024)
    return CellError(
        truncate(str(kind.__name__), NAME_CHARACTERS),
        truncate(message),
        [truncate(str(line), share) for line in lines],
    )


def limit_string_reprs(formatter: Any) -> None:
    """A string of a gigabyte as a result: without making its whole repr first."""
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
    """A mime bundle with its text cut; values JSON can hold; pictures in base64."""
    return {
        str(mime): truncate(value)
        if mime == "text/plain" and type(value) is str
        else to_json(value)
        for mime, value in data.items()
    }


def to_json(value: Any, depth: int = 0) -> Any:
    """The nearest thing that JSON can say."""
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
