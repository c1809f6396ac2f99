"""The open connections of a server, their phases, and the choice of a connection to close. Pure.

    open --> RECEIVING --a whole request--> BUSY --the reply--> KEPT_ALIVE --a byte--> RECEIVING
    open, all places taken and no connection idle --> PROBING

RECEIVING and KEPT_ALIVE connections are idle: no handler runs for them. If all places are taken, a
new connection closes the connection that has been idle longest. A PROBING connection gets one
answer: the probe's, or 503.

A connection in the middle of its headers counts as idle. Otherwise a peer that sends one byte on
each of its connections would hold all places. The connection becomes the newest of the idle
connections at its first byte, so honest headers, which come in one piece, are safe.

Times are seconds of any one clock.
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    C = TypeVar("C", bound=Hashable)
else:
    C = TypeVar("C")

MAX_OPEN = 4096
MAX_RESERVED_DESCRIPTORS = 512
MAX_PROBING = 32
UNLIMITED = -1
"""The value of resource.RLIM_INFINITY; a pure module does not import ``resource``."""
HIGHEST_DESCRIPTOR = 2**31 - 1
"""A descriptor is an int of C."""


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The number of connections, and the time that each phase may take."""

    max_open: int
    """Connections that may send any request."""
    max_probing: int
    """Connections above ``max_open`` that get answers to probes only."""
    open_files: int
    """RLIMIT_NOFILE of the daemon."""
    reserved_descriptors: int
    """Part of ``open_files`` that connections leave free for probes, spawns and the state dir."""
    request_seconds: float = 10.0
    """Time for the first request's headers, from the connect on. The connection closes.

    For later requests: from their first byte on."""
    body_seconds: float = 30.0
    """Silence in a body. The reader gives up with 408."""
    stall_grace_seconds: float = 10.0
    """Time after ``stream_stall_seconds`` until the peer is cut: a handler that streams uses the
    time to send the reason."""

    @classmethod
    def for_open_files(cls, open_files: int, n_ports: int = 1) -> ConnectionLimits:
        """Return the limits of each port, for a daemon with this RLIMIT_NOFILE.

        The connections of a port get a quarter of the descriptors, and those of all ports three
        quarters: idle connections on other ports leave the reserve alone. A connection needs up to
        three descriptors more: a download needs the file, the file's directory and a duplicate of
        the socket.
        """
        if open_files == UNLIMITED:
            open_files = HIGHEST_DESCRIPTOR
        assert open_files > 0
        reserved = min(MAX_RESERVED_DESCRIPTORS, open_files // 8)
        return cls(
            max_open=max(1, min(MAX_OPEN, open_files // 4, open_files * 3 // (4 * n_ports))),
            max_probing=max(1, min(MAX_PROBING, reserved // 2)),
            open_files=open_files,
            reserved_descriptors=reserved,
        )

    def are_scarce(self, descriptor: int) -> bool:
        """Return whether a new connection with this descriptor reaches into the reserve.

        open(2), accept(2): a new descriptor has the lowest free number, so all lower numbers are in
        use.
        """
        return descriptor >= self.open_files - self.reserved_descriptors


class ConnectionPhase(StrEnum):
    RECEIVING = auto()
    BUSY = auto()
    KEPT_ALIVE = auto()
    PROBING = auto()


class Connections(Generic[C]):
    """The open connections of one server. A connection that was closed, or is about to be closed,
    is unknown here."""

    def __init__(self, limits: ConnectionLimits, keep_alive_seconds: float) -> None:
        self._limits = limits
        self._phases: dict[C, ConnectionPhase] = {}
        # For each phase: the connections and the time each of them entered. In order of time, since
        # entries are added at the end only.
        self._since: dict[ConnectionPhase, dict[C, float]] = {
            phase: {} for phase in ConnectionPhase if phase is not ConnectionPhase.BUSY
        }
        self._allowed_seconds = {
            ConnectionPhase.RECEIVING: limits.request_seconds,
            ConnectionPhase.PROBING: limits.request_seconds,
            # aiohttp closes such a connection itself after keep_alive_seconds. A connection whose
            # peer does not take the rest of a reply stays, and expires here.
            ConnectionPhase.KEPT_ALIVE: keep_alive_seconds + limits.request_seconds,
        }

    def __len__(self) -> int:
        return len(self._phases)

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._phases))

    def phase(self, connection: C) -> ConnectionPhase | None:
        """Return the connection's phase, or None if the connection is not open or about to be
        closed."""
        return self._phases.get(connection)

    def open(self, connection: C, now: float, *, are_descriptors_scarce: bool = False) -> C | None:
        """Add an accepted connection. Return the connection that the caller must close in exchange,
        or None."""
        assert connection not in self._phases
        closing: C | None = None
        n_probing = len(self._since[ConnectionPhase.PROBING])
        if len(self._phases) - n_probing < self._limits.max_open and not are_descriptors_scarce:
            self._enter(connection, ConnectionPhase.RECEIVING, now)
            return None
        closing = self._oldest_idle()
        if closing is not None:
            self.close(closing)
            self._enter(connection, ConnectionPhase.RECEIVING, now)
            return closing
        if n_probing >= self._limits.max_probing:
            closing = next(iter(self._since[ConnectionPhase.PROBING]))
            self.close(closing)
        self._enter(connection, ConnectionPhase.PROBING, now)
        assert len(self._since[ConnectionPhase.PROBING]) <= self._limits.max_probing
        assert len(self._phases) <= self._limits.max_open + self._limits.max_probing
        return closing

    def note_bytes(self, connection: C, now: float) -> bool:
        """Note received bytes. Return True if the bytes begin the headers of a later request."""
        if self._phases.get(connection) is not ConnectionPhase.KEPT_ALIVE:
            return False
        del self._since[ConnectionPhase.KEPT_ALIVE][connection]
        self._enter(connection, ConnectionPhase.RECEIVING, now)
        return True

    def begin_request(self, connection: C) -> None:
        """Enter BUSY: the headers of a request are complete."""
        phase = self._phases.get(connection)
        if phase in (ConnectionPhase.RECEIVING, ConnectionPhase.KEPT_ALIVE):
            del self._since[phase][connection]
            self._phases[connection] = ConnectionPhase.BUSY

    def end_request(self, connection: C, now: float) -> None:
        """Enter KEPT_ALIVE: the reply was written. Also called at the end of the request's body,
        whose rest, read after the reply, was taken for headers."""
        phase = self._phases.get(connection)
        if phase is ConnectionPhase.RECEIVING:
            self._leave(connection)
        if phase in (ConnectionPhase.BUSY, ConnectionPhase.RECEIVING):
            self._enter(connection, ConnectionPhase.KEPT_ALIVE, now)

    def close(self, connection: C) -> None:
        """Remove the connection: it ended, or is about to be closed. An unknown connection is
        ignored."""
        self._leave(connection)
        self._phases.pop(connection, None)

    def take_expired(self, now: float) -> list[C]:
        """Remove and return the connections that were idle for too long. The caller must close
        them."""
        found = []
        for phase, since in self._since.items():
            limit = self._allowed_seconds[phase]
            for connection, entered in since.items():
                if entered + limit > now:
                    break
                found.append(connection)
        for connection in found:
            self.close(connection)
        return found

    def next_expiry(self) -> float | None:
        """Return the earliest time at which ``take_expired`` can find a connection, or None."""
        heads = [
            next(iter(since.values())) + self._allowed_seconds[phase]
            for phase, since in self._since.items()
            if since
        ]
        return min(heads, default=None)

    def _oldest_idle(self) -> C | None:
        heads = [
            next(iter(self._since[phase].items()), None)
            for phase in (ConnectionPhase.RECEIVING, ConnectionPhase.KEPT_ALIVE)
        ]
        return min(
            (head for head in heads if head is not None),
            key=lambda head: head[1],
            default=(None, 0.0),
        )[0]

    def _enter(self, connection: C, phase: ConnectionPhase, now: float) -> None:
        assert phase in self._since, "begin_request enters BUSY, which has no time limit"
        self._phases[connection] = phase
        self._since[phase][connection] = now

    def _leave(self, connection: C) -> None:
        phase = self._phases.get(connection)
        if phase is not None and phase is not ConnectionPhase.BUSY:
            del self._since[phase][connection]
