"""Which connections are open, which of them are idle, and which one goes when there are too many.
Pure.

    open --> WAITING --a whole request--> BUSY --its reply--> RESTING --a byte--> WAITING
    open, all places taken and nobody idle --> PROBING

WAITING and RESTING connections are idle: no request of theirs has been taken. A new connection that
finds all places taken closes the connection that has been idle longest. A PROBING connection gets
one answer: to a probe, or 503.

Why a connection in the middle of its headers counts as idle: otherwise a peer that sends a byte on
each of its connections would hold all places. It is the newest of the idle ones when its first byte
comes, so honest headers, which come in one piece, are safe.

Times are seconds of any one clock.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Hashable

    C = TypeVar("C", bound=Hashable)
else:
    C = TypeVar("C")

MAX_OPEN = 4096
MAX_RESERVED_DESCRIPTORS = 512
MAX_PROBING = 32


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many connections, and how long each of their steps may take."""

    max_open: int
    """Connections that may send any request."""
    max_probing: int
    """Connections above ``max_open`` that get answers to probes only."""
    open_files: int
    """RLIMIT_NOFILE of the daemon."""
    reserved_descriptors: int
    """Of ``open_files``, those that connections leave for probes, spawns and the state dir."""
    request_seconds: float = 10.0
    """From connecting to the end of the first request's headers; of later ones, from their first
    byte."""
    body_seconds: float = 30.0
    """How long a reader of a body waits for its next byte."""
    stall_grace_seconds: float = 10.0
    """After ``stream_stall_seconds``: a handler that streams tells its peer why, and then the peer
    is cut."""

    @classmethod
    def for_open_files(cls, open_files: int) -> ConnectionLimits:
        """For a daemon with this RLIMIT_NOFILE.

        A quarter: a connection needs up to three descriptors more, for a download the file, its
        directory and the duplicate of the socket.
        """
        reserved = min(MAX_RESERVED_DESCRIPTORS, open_files // 8)
        return cls(
            max_open=max(1, min(MAX_OPEN, open_files // 4)),
            max_probing=max(1, min(MAX_PROBING, reserved // 2)),
            open_files=open_files,
            reserved_descriptors=reserved,
        )

    def are_scarce(self, descriptor: int) -> bool:
        """Whether a new connection of this descriptor reaches into the reserve.

        open(2), accept(2): a new descriptor has the lowest free number, so all below it are in use.
        """
        return descriptor >= self.open_files - self.reserved_descriptors


class ConnectionPhase(Enum):
    RECEIVING = auto()
    BUSY = auto()
    KEPT_ALIVE = auto()
    PROBING = auto()


class Connections(Generic[C]):
    """The open connections of a server. A connection that was closed, or is to be closed, is
    unknown here."""

    def __init__(self, limits: ConnectionLimits, keep_alive_seconds: float) -> None:
        self._limits = limits
        self._phases: dict[C, ConnectionPhase] = {}
        # Since when; each in the order of time, as entries are only added at the end.
        self._since: dict[ConnectionPhase, dict[C, float]] = {
            phase: {} for phase in ConnectionPhase if phase is not ConnectionPhase.BUSY
        }
        self._allowed_seconds = {
            ConnectionPhase.RECEIVING: limits.request_seconds,
            ConnectionPhase.PROBING: limits.request_seconds,
            # The server closes them itself after keep_alive_seconds. One whose peer does not take
            # the rest of a reply stays, and ends here.
            ConnectionPhase.KEPT_ALIVE: keep_alive_seconds + limits.request_seconds,
        }

    def __len__(self) -> int:
        return len(self._phases)

    def phase(self, connection: C) -> ConnectionPhase | None:
        """``None``: it is not open, or is to be closed."""
        return self._phases.get(connection)

    def open(self, connection: C, now: float, *, are_descriptors_scarce: bool = False) -> C | None:
        """A connection was accepted. Returns the connection that the caller must close for it, if
        any."""
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
        return closing

    def note_bytes(self, connection: C, now: float) -> bool:
        """Bytes came. Returns whether they begin a request's headers: after a rest they do."""
        if self._phases.get(connection) is not ConnectionPhase.KEPT_ALIVE:
            return False
        self._enter(connection, ConnectionPhase.RECEIVING, now)
        return True

    def begin_request(self, connection: C) -> None:
        """The headers of a request are complete."""
        if self._phases.get(connection) in (ConnectionPhase.RECEIVING, ConnectionPhase.KEPT_ALIVE):
            self._leave(connection)
            self._phases[connection] = ConnectionPhase.BUSY

    def end_request(self, connection: C, now: float) -> None:
        """The reply was written; or the rest of a body, which was taken for headers after the
        reply, is over."""
        if self._phases.get(connection) in (ConnectionPhase.BUSY, ConnectionPhase.RECEIVING):
            self._enter(connection, ConnectionPhase.KEPT_ALIVE, now)

    def close(self, connection: C) -> None:
        """The connection ended or is to be closed. Harmless for one that is unknown."""
        self._leave(connection)
        self._phases.pop(connection, None)

    def take_expired(self, now: float) -> list[C]:
        """The connections that stayed idle for too long; the caller must close them."""
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
        """When ``expired`` will have something to say, unless more happens."""
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
        self._leave(connection)
        self._phases[connection] = phase
        self._since[phase][connection] = now

    def _leave(self, connection: C) -> None:
        phase = self._phases.get(connection)
        if phase is not None and phase is not ConnectionPhase.BUSY:
            del self._since[phase][connection]
