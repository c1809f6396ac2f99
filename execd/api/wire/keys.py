"""Typed keys of the application and the request, for handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from execd.engine.engine import Engine
    from execd.engine.in_flight import Lease

ENGINE: web.AppKey[Engine] = web.AppKey("engine")
BODY_SECONDS: web.AppKey[float] = web.AppKey("body_seconds", float)
"""Seconds that a body may stay without a byte while a handler reads."""
REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id")
STARTED: web.RequestKey[web.StreamResponse] = web.RequestKey("started")
"""The response whose headers went out. From then on a failure can only cut the connection."""
LEASE: web.RequestKey[Lease] = web.RequestKey("lease")
"""The request's share of the budget for bytes in flight. Present only if the body is not small.
Released at the end of the request."""
