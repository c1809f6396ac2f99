"""Hooks of schemathesis: requests whose text stays invented, but does no harm; each kind of stream;
and the bytes of archives and lines.

schemathesis imports this file by its path. A command echoes the invented text, and a cell prints
the text, instead of running it. A path of the whole tree becomes a path below the base dir.
"""

from __future__ import annotations

import json
import shlex
import zlib
from typing import Any

import schemathesis
from schemathesis.transport.serialization import serialize_binary

LINES = "application/x-ndjson"
WISHES = ("*/*", "*/*", "*/*", LINES)
RUNNING = ("/v1/executions", "/v1/executions/{id}/events", "/v1/sessions/{id}/execute", "/v1/code")
"""The streams that end. schemathesis leaves an endless stream of events after the first event, but
would wait for the end of endless lines."""


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    if case.operation.path.endswith(RUNNING):
        wish = WISHES[zlib.crc32(repr((case.body, case.query)).encode()) % len(WISHES)]
        case.headers = {**(case.headers or {}), "Accept": wish}
    if isinstance(case.body, dict):
        case.body = {name: _harmless(name, value) for name, value in case.body.items()}
    if case.operation.path.startswith("/v1/fs/") and isinstance(case.query, dict):
        case.query = {name: _harmless(name, value) for name, value in case.query.items()}


@schemathesis.deserializer(LINES)
def first_line(context: Any, response: Any) -> Any:
    """The first line of a stream: an empty line is a heartbeat. The document describes one line."""
    return next(json.loads(line) for line in response.content.split(b"\n") if line)


@schemathesis.serializer("application/x-tar", "application/gzip", "application/zip")
def archive(context: Any, value: Any) -> bytes:
    """The bytes of an archive: schemathesis knows other media types only."""
    return serialize_binary(value)


def _harmless(name: str, value: object) -> object:
    match name, value:
        case "command", str():
            return f"echo {shlex.quote(value.replace(chr(0), ''))}"
        case "argv", [_, *_]:
            return ["echo", *value]
        case "shell", _:
            return None
        case "language", _:
            return None
        case "code", str():
            return f"print({value!r})"
        case "path" | "src" | "dest", str():
            return f"invented/{value.replace('..', '').lstrip('/')}"
        case _:
            return value
