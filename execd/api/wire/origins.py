"""Who asks: the id and the trace of a request, and the log line that tells the end of the execution
that the request has started. A trace is that of W3C Trace Context."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

from execd.api.wire.keys import FACTS
from execd.model import Origin

if TYPE_CHECKING:
    from aiohttp import web

    from execd.engine.executions.execution import Execution
    from execd.model import DialectName

MAX_REQUEST_ID_LENGTH = 128
TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?")


def trace_environment(traceparent: str | None) -> dict[str, str]:
    """Return the variable for a valid ``traceparent`` header, or nothing."""
    if traceparent is not None and TRACEPARENT.fullmatch(traceparent.strip()):
        return {"TRACEPARENT": traceparent.strip()}
    return {}


def trace_id(traceparent: str | None) -> str | None:
    """Return the trace id of a valid ``traceparent`` header, or None."""
    if traceparent is None:
        return None
    trace = trace_environment(traceparent)
    return trace["TRACEPARENT"].split("-")[1] if trace else None


def request_id(given: str | None) -> str:
    """Return the printable ASCII of the peer's id, or a new id if nothing printable is left."""
    kept = re.sub(r"[^!-~]", "", given)[:MAX_REQUEST_ID_LENGTH] if given else ""
    return kept or f"{random.getrandbits(64):016x}"


def origin_of(request: web.Request, dialect: DialectName) -> Origin:
    """Return who asks: the dialect, and the ids of the request, for the command of the request."""
    return Origin(dialect, request[FACTS].id, trace_id(request.headers.get("traceparent")))


def note_started(request: web.Request, execution: Execution, origin: Origin) -> None:
    """Have the log line of the request tell the end of ``execution``, if the request started the
    execution. A repeated request may have found an earlier execution. Call before the first
    await: the execution has not ended by then."""
    if execution.command.origin is origin:
        facts = request[FACTS]
        assert facts.execution is None, "a request starts one execution"
        facts.execution = execution
        execution.has_open_request = True
