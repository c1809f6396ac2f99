"""The phases of an execution as one total table. Pure.

    QUEUED    the execution waits for its turn; nobody has been asked to start a program
    STARTING  the warden, or a session's worker, has been asked to start the program
    RUNNING   the program runs, and nobody has asked for its end
    ENDING    somebody or some limit has asked for the end; the program may still run
    CLOSING   nothing more is awaited from the program; the result is being written down
    EXITED    the result is final and can be read

The wire shows three states (``model.State``): an execution is QUEUED until its program has started,
and RUNNING from then on until it has EXITED.

An end can be asked for in every phase. Two orders of events matter. When END comes before START,
the phase stays ENDING after START, and the execution ends the program as soon as the program runs.
When FINISH comes before END, the end is ignored: the program has ended by itself.
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    ENDING = "ENDING"
    CLOSING = "CLOSING"
    EXITED = "EXITED"


class Event(StrEnum):
    REQUEST = "REQUEST"
    """The runner asks for the program's start; repeated when the first request failed."""
    START = "START"
    """The program runs."""
    END = "END"
    """A caller or a limit asks for the end."""
    FINISH = "FINISH"
    """The runner awaits nothing more from the program, or no program came."""
    EXIT = "EXIT"
    """The result is written down."""


_QUEUED, _STARTING, _RUNNING, _ENDING, _CLOSING, _EXITED = Phase
# None: the daemon's own mistake.
TABLE: dict[Phase, dict[Event, Phase | None]] = {
    _QUEUED: {
        Event.REQUEST: _STARTING,
        Event.START: None,
        Event.END: _ENDING,
        Event.FINISH: _CLOSING,
        Event.EXIT: None,
    },
    _STARTING: {
        Event.REQUEST: _STARTING,
        Event.START: _RUNNING,
        Event.END: _ENDING,
        Event.FINISH: _CLOSING,
        Event.EXIT: None,
    },
    _RUNNING: {
        Event.REQUEST: None,
        Event.START: None,
        Event.END: _ENDING,
        Event.FINISH: _CLOSING,
        Event.EXIT: None,
    },
    _ENDING: {
        Event.REQUEST: _ENDING,
        Event.START: _ENDING,
        Event.END: _ENDING,
        Event.FINISH: _CLOSING,
        Event.EXIT: None,
    },
    _CLOSING: {
        Event.REQUEST: None,
        Event.START: None,
        Event.END: _CLOSING,
        Event.FINISH: _CLOSING,
        Event.EXIT: _EXITED,
    },
    _EXITED: {
        Event.REQUEST: None,
        Event.START: None,
        Event.END: _EXITED,
        Event.FINISH: None,
        Event.EXIT: _EXITED,
    },
}


def advance(phase: Phase, event: Event) -> Phase:
    """Return the phase after the event."""
    following = TABLE[phase][event]
    assert following is not None, f"{event} in phase {phase}"
    return following
