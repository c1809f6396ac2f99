"""The states of a session as a table, and the state that a session may lose. Pure.

    STARTING       a worker is being made
    IDLE           the worker waits
    BUSY           the worker runs a cell, a completion or a fork
    WAITING_INPUT  the cell waits for the caller's answer to ``input()``
    DEAD           no worker; the next turn makes one, in the next generation

A generation is the life of one worker; the session's Python state lives and dies with the worker.
The daemon's own requests and the kernel's word on the worker's end change the state. Of a worker's
frames only the question for input does, and only from BUSY to WAITING_INPUT: a worker can claim a
question that nobody asks, about its own session.
"""

from __future__ import annotations

from enum import StrEnum


class SessionState(StrEnum):
    """What a session does: a closed set."""

    STARTING = "STARTING"
    IDLE = "IDLE"
    BUSY = "BUSY"
    WAITING_INPUT = "WAITING_INPUT"
    DEAD = "DEAD"


class SessionEvent(StrEnum):
    START = "START"
    """The session begins to make a worker."""
    READY = "READY"
    """The worker is made and configured."""
    BEGIN = "BEGIN"
    """The worker gets a cell."""
    REQUEST = "REQUEST"
    """The worker gets a request that is no cell and makes no state: a completion, a fork."""
    END = "END"
    """The worker has finished the cell or the request."""
    ASK = "ASK"
    """The cell asks for input."""
    RESUME = "RESUME"
    """The question is answered, or the answer would come too late."""
    LOST = "LOST"
    """The worker has ended, or could not be made."""


class IllegalSessionEvent(Exception):
    """An event that the table forbids in this state: a mistake of the daemon."""


_STARTING, _IDLE, _BUSY, _WAITING, _DEAD = SessionState
# A pair that is missing is a mistake of the daemon.
TABLE: dict[SessionState, dict[SessionEvent, SessionState]] = {
    _STARTING: {SessionEvent.READY: _IDLE, SessionEvent.LOST: _DEAD},
    _IDLE: {
        SessionEvent.BEGIN: _BUSY,
        SessionEvent.REQUEST: _BUSY,
        SessionEvent.LOST: _DEAD,
    },
    _BUSY: {SessionEvent.END: _IDLE, SessionEvent.ASK: _WAITING, SessionEvent.LOST: _DEAD},
    _WAITING: {
        SessionEvent.END: _IDLE,
        SessionEvent.ASK: _WAITING,  # a thread of user code may ask too: the newest question counts
        SessionEvent.RESUME: _BUSY,
        SessionEvent.LOST: _DEAD,
    },
    _DEAD: {
        SessionEvent.START: _STARTING,
        SessionEvent.READY: _DEAD,  # the worker ended between START and READY
        SessionEvent.END: _DEAD,  # the worker ended during the cell
        SessionEvent.ASK: _DEAD,  # the last frames of an ended worker
        SessionEvent.RESUME: _DEAD,  # the worker ended during the question
        SessionEvent.LOST: _DEAD,
    },
}


class SessionLife:
    """The state of one session, over all generations."""

    def __init__(self, *, original: SessionLife | None = None, generation: int = 0) -> None:
        """``original``: the first generation begins with the state of another session, if the other
        session has state (a branch).

        ``generation``: the last generation of this session id under a former daemon, whose end lost
        the state; 0: none.
        """
        assert generation >= 0
        self.state = SessionState.DEAD
        self.generation = generation
        self.has_state: bool = generation > 0 if original is None else original.has_state
        """Whether there is something to lose: from the first cell of a generation on."""
        self._lost_state = False
        self._is_new_branch = original is not None

    def apply(self, event: SessionEvent) -> None:
        """Go to the next state. Raises IllegalSessionEvent."""
        following = TABLE[self.state].get(event)
        if following is None:
            raise IllegalSessionEvent(f"{event} while {self.state}")
        if event is SessionEvent.START:
            self.generation += 1
            if self._is_new_branch:
                self._is_new_branch = False
            elif self.has_state:
                self.has_state, self._lost_state = False, True
        elif event is SessionEvent.BEGIN:
            self.has_state = True
        self.state = following

    def report_loss(self) -> bool:
        """Return True once after the loss of an earlier generation's state, then reset."""
        lost, self._lost_state = self._lost_state, False
        return lost
