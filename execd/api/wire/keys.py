"""Typed keys of the application and the request, for handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from execd.api.wire.auth import TokenGate
    from execd.api.wire.route import Route
    from execd.engine.engine import Engine
    from execd.engine.executions.execution import Execution
    from execd.engine.in_flight import Lease

ENGINE: web.AppKey[Engine] = web.AppKey("engine")
GATE: web.AppKey[TokenGate] = web.AppKey("gate")
"""The token's hash, which all listeners share."""
TABLE: web.AppKey[tuple[Route, ...]] = web.AppKey("table", tuple)
"""The rows of all routes of the application."""
BODY_SECONDS: web.AppKey[float] = web.AppKey("body_seconds", float)
"""Seconds that a body may stay without a byte while a handler reads."""
REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id")
STARTED: web.RequestKey[web.StreamResponse] = web.RequestKey("started")
"""The response whose headers went out. From then on a failure can only cut the connection."""
EXPECTATIONS: web.RequestKey[frozenset[str]] = web.RequestKey("expectations")
"""The members of the Expect header, in lower case. Present only with such a header."""
EXECUTION: web.RequestKey[Execution] = web.RequestKey("execution")
"""The execution that the request has started. The request's log line has the end, if the execution
ends in time."""
LEASE: web.RequestKey[Lease] = web.RequestKey("lease")
"""The request's share of the budget for bytes in flight. Present only if the body is not small.
Released at the end of the request."""
