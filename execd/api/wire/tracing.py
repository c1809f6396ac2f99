"""Trace context on its way from a request to a command: W3C Trace Context. Pure."""

from __future__ import annotations

import re

TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?")


def trace_environment(traceparent: str | None) -> dict[str, str]:
    """The variable that a command gets for the header; nothing for what is no trace context."""
    if traceparent is not None and TRACEPARENT.fullmatch(traceparent.strip()):
        return {"TRACEPARENT": traceparent.strip()}
    return {}
