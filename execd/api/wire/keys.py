"""Typed keys of the application and the request, for handlers, and the facts of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from aiohttp.http import HttpVersion

    from execd.api.wire.auth import TokenGate
    from execd.api.wire.route import Route
    from execd.engine.engine import Engine
    from execd.engine.episodes import Episodes
    from execd.engine.executions.execution import Execution
    from execd.engine.in_flight import Lease
    from execd.engine.restores import Restores

ENGINE: web.AppKey[Engine] = web.AppKey("engine")
GATE: web.AppKey[TokenGate] = web.AppKey("gate")
"""The token's hash, which all listeners share."""
TABLE: web.AppKey[tuple[Route, ...]] = web.AppKey("table", tuple)
"""The rows of all routes of the application."""
BODY_SECONDS: web.AppKey[float] = web.AppKey("body_seconds", float)
"""Seconds that a body may stay without a byte while a handler reads."""


class RequestFacts:
    """What execd knows of a request beside aiohttp. ``HttpServer`` makes one for each request."""

    __slots__ = (
        "episodes",
        "execution",
        "expectations",
        "foreign_version",
        "id",
        "lease",
        "restores",
        "started",
    )

    def __init__(self, restores: Restores, episodes: Episodes) -> None:
        self.episodes = episodes
        """Asked for the episode when the reply begins: the request itself may reset the sandbox."""
        self.restores = restores
        """Asked for the instance when the reply begins: the request itself may report a restore."""
        self.id = ""
        """Set by the middleware, so after the router."""
        self.started: web.StreamResponse | None = None
        """The response whose headers went out. From then on a failure can only cut the
        connection."""
        self.expectations: frozenset[str] = frozenset()
        """The members of the Expect header, in lower case."""
        self.foreign_version: HttpVersion | None = None
        """The version of the request, if execd does not speak the version."""
        self.execution: Execution | None = None
        """The execution that the request has started. The request's log line has the end, if the
        execution ends in time."""
        self.lease: Lease | None = None
        """The request's share of the budget for bytes in flight, if the body is not small. Released
        at the end of the request."""


FACTS: web.RequestKey[RequestFacts] = web.RequestKey("facts", RequestFacts)
