"""The states of a session as a table, and the state that a session may lose. Pure.

    STARTING  a worker is being made
    IDLE      the worker waits
    BUSY      the worker runs a cell, a completion or a fork
    DEAD      no worker; the next turn makes one, in the next generation

A generation is the life of one worker; the session's Python state lives and dies with the worker.
Only the daemon's own requests and the kernel's word on the worker's end change the state. No frame
of a worker does.
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
    """The session begins to make a worker."""
    READY = "READY"
    """The worker is made and configured."""
    BEGIN = "BEGIN"
    """The worker gets a cell or a request."""
    END = "END"
    """The worker has finished the cell or the request."""
    LOST = "LOST"
    """The worker has ended, or could not be made."""


class IllegalSessionEvent(Exception):
    """An event that the table forbids in this state: a mistake of the daemon."""


_STARTING, _IDLE, _BUSY, _DEAD = SessionState
# Total: each state has each event. None: the event is illegal.
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
        SessionEvent.READY: _DEAD,  # the worker ended between START and READY
        SessionEvent.BEGIN: None,
        SessionEvent.END: _DEAD,  # the worker ended during the cell
        SessionEvent.LOST: _DEAD,
    },
}


class SessionLife:
    """The state of one session, over all generations."""

    def __init__(self, *, inherits: bool = False, generation: int = 0) -> None:
        """``inherits``: the first generation begins with the state of another session (a branch).

        ``generation``: the last generation of this session id under a former daemon, whose end lost
        the state; 0: none.
        """
        assert generation >= 0
        self.state = SessionState.DEAD
        self.generation = generation
        self._has_state = inherits or generation > 0
        self._lost_state = False
        self._inherits = inherits

    def apply(self, event: SessionEvent) -> None:
        """Go to the next state. Raises IllegalSessionEvent."""
        following = TABLE[self.state][event]
        if following is None:
            raise IllegalSessionEvent(f"{event} while {self.state}")
        if event is SessionEvent.START:
            self.generation += 1
            if self._inherits:
                self._inherits = False
            elif self._has_state:
                self._has_state, self._lost_state = False, True
        elif event is SessionEvent.BEGIN:
            self._has_state = True
        self.state = following

    def report_loss(self) -> bool:
        """Return True once after the loss of an earlier generation's state, then reset."""
        lost, self._lost_state = self._lost_state, False
        return lost
