"""Where a session stands, and what it may lose. Pure: told what happened, it says what that means.

    STARTING  a worker is being made for it
    IDLE      its worker waits
    BUSY      its worker is at something: a cell, a completion, a fork
    DEAD      it has no worker; the next cell gets a fresh one, a generation later

A generation is the life of one worker, and the state of a session lives and dies with it. Nothing a
worker says moves this table: only what the daemon asked of it and what the kernel says of its end.
"""

from __future__ import annotations

from enum import StrEnum


class SessionState(StrEnum):
    STARTING = "STARTING"
    IDLE = "IDLE"
    BUSY = "BUSY"
    DEAD = "DEAD"


class SessionEvent(StrEnum):
    START = "START"
    """A worker is asked for."""
    READY = "READY"
    """It is there, and configured."""
    BEGIN = "BEGIN"
    """It is given something to do."""
    END = "END"
    """It has done it."""
    LOST = "LOST"
    """It has ended, or none came of it."""


class IllegalHappening(Exception):
    """The daemon's own mistake."""


_STARTING, _IDLE, _BUSY, _DEAD = SessionState
# Total: None is what must not happen.
TABLE: dict[SessionState, dict[SessionEvent, SessionState | None]] = {
    _STARTING: {
        SessionEvent.START: None,
        SessionEvent.READY: _IDLE,
        SessionEvent.BEGIN: None,
        SessionEvent.END: None,
        SessionEvent.LOST: _DEAD,
    },
    _IDLE: {
        SessionEvent.START: None,
        SessionEvent.READY: None,
        SessionEvent.BEGIN: _BUSY,
        SessionEvent.END: None,
        SessionEvent.LOST: _DEAD,
    },
    _BUSY: {
        SessionEvent.START: None,
        SessionEvent.READY: None,
        SessionEvent.BEGIN: None,
        SessionEvent.END: _IDLE,
        SessionEvent.LOST: _DEAD,
    },
    _DEAD: {
        SessionEvent.START: _STARTING,
        SessionEvent.READY: _DEAD,  # it died on the way
        SessionEvent.BEGIN: None,
        SessionEvent.END: _DEAD,  # it died of what it did
        SessionEvent.LOST: _DEAD,
    },
}


class SessionLife:
    """The state of one session over all its generations."""

    def __init__(self, *, inherits: bool = False, generation: int = 0) -> None:
        """``inherits``: it begins with the state of another one, of which it is a branch.

        ``generation``: how far a session of this name had come under a former daemon, with which
        its state was lost.
        """
        self.state = SessionState.DEAD
        self.generation = generation
        self._has_state = inherits or generation > 0
        self._lost_state = False
        self._inherits = inherits

    def happens(self, what: SessionEvent) -> None:
        """Raises IllegalHappening."""
        following = TABLE[self.state][what]
        if following is None:
            raise IllegalHappening(f"{what} while {self.state}")
        if what is SessionEvent.START:
            self.generation += 1
            if self._inherits:
                self._inherits = False
            elif self._has_state:
                self._has_state, self._lost_state = False, True
        elif what is SessionEvent.BEGIN:
            self._has_state = True
        self.state = following

    def tell_loss(self) -> bool:
        """Whether the state of an earlier generation is gone and nobody has been told yet. Being
        told is what this is."""
        lost, self._lost_state = self._lost_state, False
        return lost
