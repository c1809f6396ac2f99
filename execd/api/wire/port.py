"""A port of the daemon: what its server is given, and what its server does."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from execd.api.wire.auth import TokenGate
    from execd.api.wire.connections import ConnectionLimits


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
