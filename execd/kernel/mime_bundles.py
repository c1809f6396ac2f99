"""Displays, results and errors of a cell in the form of a frame: JSON, with bounded sizes.

Runs in the user's interpreter: Python 3.9.
"""

from __future__ import annotations

import math
from base64 import b64encode
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

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
_CONTAINER_BYTES = 16
"""A container counts as at least two numbers of a few digits: CELL_BYTES are reached soon."""
_LARGE_BYTES = 1024
"""A larger container is converted once, however many containers hold the container."""
_DECIMAL_BITS = 2_000
"""Longer integers become hexadecimal. Python writes these in decimal whatever limit of digits user
code sets: 640 is the least (sys.int_info)."""


class ErrorDescription(NamedTuple):
    """The exception that ended a cell, as reported."""

    name: str
    value: str
    traceback: list[str]


def truncate(text: str, characters: int = TEXT_CHARACTERS) -> str:
    """Return ``text``, or the first ``characters`` and a note of the number of omitted ones. A long
    ``text`` may be a part (``limit_reprs``)."""
    if len(text) <= characters:
        return text
    return f"{text[:characters]}... [at least {len(text) - characters} characters omitted]"


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


def limit_reprs(formatter: Any) -> None:
    """Make the text/plain formatter stop near TEXT_CHARACTERS.

    The repr of a string of 1 GiB would take several GiB of memory. A list that holds another list
    twice, which holds a third list twice, and so on, has more text than any memory.
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
    for kind, own in list(plain.type_printers.items()):
        if kind not in (int, float):  # a number has no parts
            plain.for_type(kind, _stop_after_text(own))


def _stop_after_text(own: Callable[[Any, Any, bool], None]) -> Callable[[Any, Any, bool], None]:
    """Return a printer that stands for all that ``own`` would print behind TEXT_CHARACTERS."""

    def printed(value: Any, printer: Any, cycle: bool) -> None:
        if printer.output.tell() > TEXT_CHARACTERS:
            printer.text("...")
        else:
            own(value, printer, cycle)

    return printed


def fit_bundle(data: dict[str, Any]) -> dict[str, Any]:
    """Return a mime bundle as JSON: text/plain truncated, bytes (pictures) in base64."""
    return {
        str(mime): truncate(value)
        if mime == "text/plain" and type(value) is str
        else to_json(value)
        for mime, value in data.items()
    }


class BundleTooLargeError(ValueError):
    """The JSON of a value is longer than CELL_BYTES."""


def to_json(value: Any) -> Any:
    """Return the nearest value that every reader of JSON takes.

    Bytes become base64, NaN and infinities null, an integer beyond the range of a double its digits
    (RFC 8259, section 6). Unknown objects become their repr. Raises ValueError for a value that
    contains itself, BundleTooLargeError.
    """
    return _Conversion().convert(value)


class _Conversion:
    """One call of ``to_json``. The bounds hold also for a list that holds another list twice, which
    holds a third list twice, and so on: a few lists have more JSON than any memory."""

    def __init__(self) -> None:
        self._bytes_left = CELL_BYTES
        self._open: set[int] = set()
        """The ids of the containers around the value."""
        self._large: dict[tuple[int, int], tuple[Any, Any, int]] = {}
        """By id and depth: the container (the id is in use as long), its form and its bytes."""

    def convert(self, value: Any) -> Any:
        kind = type(value)
        if kind is str:
            self._count(len(value))
            return value
        self._count(2)  # with the comma behind
        if kind is bool or value is None:
            return value
        if isinstance(value, float):
            value = float(value)
            return value if math.isfinite(value) else None
        if isinstance(value, int):
            return _integer(int(value))
        if isinstance(value, bytes):
            self._count(len(value))
            return b64encode(value).decode()
        if isinstance(value, str):
            return self.convert(str.__str__(value))  # str() may be the subclass' own
        if isinstance(value, (dict, list, tuple, set, frozenset)):
            return self._container(value)
        return self.convert(truncate(str.__str__(repr(value))))

    def _container(self, value: Any) -> Any:
        if id(value) in self._open:
            raise ValueError("a value that contains itself has no JSON form")
        if len(self._open) == _DEPTH:
            return f"[... more than {_DEPTH} levels]"
        key = id(value), len(self._open)
        if key in self._large:
            _, found, size_bytes = self._large[key]
            self._count(size_bytes)
            return found
        self._open.add(id(value))
        before = self._bytes_left
        self._count(_CONTAINER_BYTES)
        if isinstance(value, dict):
            found = {self.convert(str(key)): self.convert(item) for key, item in value.items()}
        else:
            found = [self.convert(item) for item in value]
        self._open.discard(id(value))
        if (size_bytes := before - self._bytes_left) > _LARGE_BYTES:
            self._large[key] = value, found, size_bytes
        return found

    def _count(self, size_bytes: int) -> None:
        self._bytes_left -= size_bytes
        if self._bytes_left < 0:
            raise BundleTooLargeError(f"more than {CELL_BYTES} bytes")


def _integer(value: int) -> int | str:
    """Some readers have no number beyond a double, and Python reads 4,300 digits at the most."""
    try:
        float(value)
    except OverflowError:
        pass
    else:
        return value
    if value.bit_length() <= _DECIMAL_BITS:
        return str(value)
    return truncate(hex(value))
