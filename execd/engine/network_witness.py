"""The witness of the network: whether the kernel's counters know the connections that the daemon
has seen.

A kernel counts each connection before the daemon accepts it, and each byte before the daemon reads
it. So a counter that is smaller than the daemon's own figure belongs to another network: the
sandbox was restored from a checkpoint, and the network of gVisor began anew (measured with runsc
20240729: the counters are zero after a restore, and go on after a pause and after a checkpoint that
leaves the sandbox running).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

TCP_COUNTERS, INTERFACES = Path("/proc/net/snmp"), Path("/proc/net/dev")
INTERFACE_HEADER_LINES = 2
LEAST_BYTES = 40
"""The packet that begins a connection: the headers of IPv4 and TCP."""


class NetworkFigures(NamedTuple):
    """Counters of the kernel, since the network began."""

    connections: int
    """Connections to listening sockets."""
    received_bytes: int
    """Of all interfaces, headers included."""


def read_figures() -> NetworkFigures:
    """Raises OSError, ValueError, KeyError, IndexError: this kernel does not tell."""
    return parse_figures(TCP_COUNTERS.read_text(), INTERFACES.read_text())


def parse_figures(tcp_counters: str, interfaces: str) -> NetworkFigures:
    """Read the texts of /proc/net/snmp and /proc/net/dev (proc_pid_net(5)).

    Raises ValueError, KeyError, IndexError.
    """
    names, values = (line.split() for line in tcp_counters.splitlines() if line.startswith("Tcp:"))
    tcp = dict(zip(names, values, strict=True))
    lines = interfaces.splitlines()[INTERFACE_HEADER_LINES:]
    received = (line.rpartition(":")[2].split()[0] for line in lines)
    return NetworkFigures(int(tcp["PassiveOpens"]), sum(map(int, received)))


class NetworkWitness:
    """Compares. A counter that does not know the daemon's first connection is never believed."""

    def __init__(
        self,
        received_bytes: Callable[[], int],
        read: Callable[[], NetworkFigures] = read_figures,
    ) -> None:
        """``received_bytes``: what the daemon has read from its callers so far."""
        self._read_bytes = received_bytes
        self._read = read
        self._connections = 0
        """Connections accepted in this network."""
        self._bytes_before = 0
        """Of former networks."""
        self._believes_connections: bool | None = None
        self._believes_bytes = False

    def note_connection(self) -> None:
        """The daemon has accepted a connection."""
        self._connections += 1
        if self._believes_connections is None:
            figures = self._figures()
            self._believes_connections = figures is not None and figures.connections >= 1
            self._believes_bytes = figures is not None and figures.received_bytes >= LEAST_BYTES

    def is_network_new(self) -> bool:
        """Whether the network has begun anew since the daemon's start, or since the last True."""
        figures = self._figures()
        if figures is None:
            return False
        received_bytes = self._read_bytes()
        is_new = bool(self._believes_connections) and figures.connections < self._connections
        is_new |= (
            self._believes_bytes and figures.received_bytes < received_bytes - self._bytes_before
        )
        if is_new:
            self._connections, self._bytes_before = 0, received_bytes
        return is_new

    def _figures(self) -> NetworkFigures | None:
        try:
            return self._read()
        except (OSError, ValueError, KeyError, IndexError):
            return None
