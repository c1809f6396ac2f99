"""The body of POST /execute, and refusals in the words of FastAPI and pydantic: the python-runtime
sends these words, and clients show them to people. Pure.

Accepted as in the python-runtime: a number as a string, ``true`` for 1, unknown fields, UTF-16.
Accepted beyond: a missing Content-Type. In a body over LARGE_BYTES only the two fields are decoded,
in UTF-8, and a refusal shows nothing of the body: 16 MiB of empty lists would hold the event loop
for seconds.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from execd.api.wire.replies import replace_surrogates

LARGE_BYTES = 1 << 20
MAX_NUMBER_BYTES = 1000
PARSE_ERROR = "There was an error parsing the body"


class Refused(Exception):
    """A refused request. ``detail`` is the field of the reply's body."""

    def __init__(self, http_status: int, detail: Any) -> None:
        super().__init__(http_status, detail)
        self.http_status = http_status
        self.detail = detail


class ExecuteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A command for a shell."""

    command: str
    """The text for a shell."""
    timeout_seconds: Annotated[float, Meta(gt=0)] | None = None
    """Time from the start of the command to its forced end, at most the daemon's `--timeout`. Null:
    `--timeout`."""


class _Fields(msgspec.Struct):
    """The raw fields of a body. Everything else is skipped, and no objects are made of it."""

    command: msgspec.Raw = msgspec.Raw()
    timeout_seconds: msgspec.Raw = msgspec.Raw()


def parse(body: bytes, content_type: str | None) -> ExecuteRequest:
    """Parse a body. Raises Refused."""
    if not body:
        raise Refused(422, [fault("missing", [], "Field required", None)])
    if not _is_json(content_type):
        fields: Any = body.decode("utf-8", "replace")
    elif len(body) > LARGE_BYTES:
        fields = _load_large(body)
    else:
        fields = _load(body)
    if not isinstance(fields, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise Refused(422, [fault("model_attributes_type", [], message, fields)])
    faults: list[dict[str, Any]] = []
    command = _command(fields, faults)
    timeout_seconds = _timeout_seconds(fields.get("timeout_seconds"), faults)
    if faults:
        raise Refused(422, faults)
    assert timeout_seconds is None or 0 < timeout_seconds < math.inf
    return ExecuteRequest(command=command, timeout_seconds=timeout_seconds)


def fault(
    kind: str, where: list[str | int], message: str, value: Any, **context: Any
) -> dict[str, Any]:
    """Return one entry of a 422's ``detail``."""
    entry = {"type": kind, "loc": ["body", *where], "msg": message, "input": _as_json_value(value)}
    return entry | {"ctx": context} if context else entry


def _is_json(content_type: str | None) -> bool:
    if content_type is None or content_type == "application/json":
        return True
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


def _load(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    # Fall back to the standard library, which also takes UTF-16, a byte order mark, NaN and lone
    # surrogates, and knows the error position that the peer expects.
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        raise Refused(
            422, [fault("json_invalid", [error.pos], "JSON decode error", {}, error=error.msg)]
        ) from None
    except (ValueError, RecursionError):
        # Not UTF-8, an integer of over 4300 digits, or nested too deeply.
        raise Refused(400, PARSE_ERROR) from None


def _load_large(body: bytes) -> dict[str, Any]:
    """Return the two fields. An empty object stands for a value that is valid for neither field."""
    try:
        found = msgspec.json.decode(body, type=_Fields)
        fields: dict[str, Any] = {}
        if command := bytes(found.command):
            fields["command"] = msgspec.json.decode(command) if command[:1] == b'"' else {}
        if timeout := bytes(found.timeout_seconds):
            is_short = len(timeout) <= MAX_NUMBER_BYTES
            fields["timeout_seconds"] = msgspec.json.decode(timeout) if is_short else {}
        return fields
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Refused(400, PARSE_ERROR) from None


def _command(fields: dict[str, Any], faults: list[dict[str, Any]]) -> str:
    where: list[str | int] = ["command"]
    if "command" not in fields:
        faults.append(fault("missing", where, "Field required", fields))
        return ""
    command = fields["command"]
    if not isinstance(command, str):
        faults.append(fault("string_type", where, "Input should be a valid string", command))
        return ""
    if replace_surrogates(command) != command:
        message = "Input should be a valid string, unable to parse raw data as a unicode string"
        faults.append(fault("string_unicode", where, message, command))
    return command


def _timeout_seconds(value: Any, faults: list[dict[str, Any]]) -> float | None:
    if value is None:
        return None
    where: list[str | int] = ["timeout_seconds"]
    try:
        seconds = float(value)
    except ValueError:
        message = "Input should be a valid number, unable to parse string as a number"
        faults.append(fault("float_parsing", where, message, value))
        return None
    except (TypeError, OverflowError):
        faults.append(fault("float_type", where, "Input should be a valid number", value))
        return None
    if not math.isfinite(seconds):
        faults.append(fault("finite_number", where, "Input should be a finite number", value))
    elif seconds <= 0:
        faults.append(fault("greater_than", where, "Input should be greater than 0", value, gt=0.0))
    return seconds


def _as_json_value(value: Any) -> Any:
    """Return ``value``, or its ASCII representation if JSON cannot hold ``value`` (a lone surrogate
    inside)."""
    try:
        msgspec.json.encode(value)
    except (UnicodeEncodeError, RecursionError):
        return ascii(value)
    return value
