"""W3C Trace Context: from a request's header to a command's environment and to the log. Pure."""

from __future__ import annotations

import re

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
