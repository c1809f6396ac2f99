"""The lines of ``/execute``, the reply of E2B's code interpreter: one JSON object a line. Pure.

The SDKs read line by line, and fail on a blank line and on U+2028. So the JSON is ASCII, and a
keepalive is an object.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from execd.engine.engine_api import DisplayMessage, Result, Stream

FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}
"""By MIME type. Another type is in ``extra`` under its own name."""


def line(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": kind, **fields}, separators=(",", ":")).encode("ascii") + b"\n"


KEEPALIVE = line("keepalive")
END = line("end_of_execution")


def count_line(execution_count: int) -> bytes:
    return line("number_of_executions", execution_count=execution_count)


def output_line(stream: Stream, text: str, timestamp: str) -> bytes:
    return line(stream, text=text, timestamp=timestamp)


def dropped_line(stream: Stream, offset: int, size_bytes: int) -> bytes:
    """Return execd's own line for output that the log has lost. The SDKs ignore unknown lines."""
    return line("dropped", stream=stream, offset=offset, size_bytes=size_bytes)


def display_line(message: DisplayMessage) -> bytes | None:
    """Return the line of a display, the value of the cell or the cell's exception; None for a
    message that E2B has no line for."""
    match message.kind:
        case "display" | "result":
            return _result_line(message, is_main_result=message.kind == "result")
        case "error":
            traceback = msgspec.json.decode(msgspec.json.encode(message.fields["traceback"]))
            return line(
                "error",
                name=message.fields["name"],
                value=message.fields["value"],
                traceback="".join(traceback),
            )
        case _:
            return None


def _result_line(message: DisplayMessage, *, is_main_result: bool) -> bytes:
    bundle = msgspec.json.decode(msgspec.json.encode(message.fields["data"]))
    known = {FIELDS[kind]: data for kind, data in bundle.items() if kind in FIELDS}
    extra = {kind: data for kind, data in bundle.items() if kind not in FIELDS}
    if extra:
        known["extra"] = extra
    return line("result", is_main_result=is_main_result, **known)


def end_line(result: Result) -> bytes:
    """Return the error of a cell that ended otherwise than by its own exception."""
    value = result.message or f"the cell ended: {result.exit_reason}"
    return line("error", name="UnexpectedEndOfExecution", value=value, traceback="")
