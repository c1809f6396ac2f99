"""A port of the daemon: what a server of a port gets from the daemon, what the daemon asks of the
server, and the server for HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from execd.api.wire.auth import presented_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiohttp import web
    from multidict import MultiMapping

    from execd.api.wire.auth import TokenGate
    from execd.api.wire.connections import ConnectionLimits
    from execd.api.wire.route import Route
    from execd.errors import ExecdError
    from execd.model import DialectName


class PortContext(NamedTuple):
    """What the servers of all ports share."""

    gate: TokenGate
    """The token's hash."""
    limits: ConnectionLimits
    shutdown_timeout_seconds: float
    """How long calls under way may take at the end."""


class PortServer(Protocol):
    """A server of one port. ``cleanup`` ends it, also before ``start``."""

    async def start(self, host: str, port: int, backlog: int) -> tuple[str, int]:
        """Listen, and return the address. Raises OSError."""

    async def cleanup(self) -> None:
        """Close the port and the connections."""


class ErrorRenderers(NamedTuple):
    """The error bodies of some routes."""

    render: Callable[[ExecdError], web.Response]
    render_http: Callable[[int, dict[str, str]], web.Response]
    """Render a refusal by HTTP itself: the HTTP status, and the headers of the reply."""


@dataclass(frozen=True, kw_only=True)
class HttpService:
    """What a port serves. Port 8888 serves python_runtime and /v1 together; every other dialect is
    a wing (``execd.dialects``) with ports of its own."""

    dialect: DialectName | None = None
    """In logs and metrics. None: each route names its dialect."""

    routes: tuple[Route, ...]
    renderers: Callable[[str], ErrorRenderers]
    """The error bodies by the raw path of the request."""
    runs: Callable[[str, str], bool]
    """Whether the route of this method and pattern runs something. On such a route a half-close
    means that the caller has left; on another route the caller gets the reply."""
    presented_tokens: Callable[[MultiMapping[str]], Iterator[str]] = presented_tokens
    """Every token that the headers of a request present."""
    opens: Callable[[str], bool] = lambda _path: False
    """Whether a setting frees the raw path from the token."""
    prepare: Callable[[web.Application], None] = lambda _app: None
    """Add what the handlers of the dialect share to the new application, with its end."""
