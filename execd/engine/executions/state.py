"""The phases of an execution as one table. Pure.

    QUEUED    the execution waits for its turn; no program has been asked for
    STARTING  the warden, or a session's worker, has been asked to start the program
    RUNNING   the program runs, and no end has been asked for
    ENDING    somebody or some limit has asked for the end; the program may still run
    CLOSING   the program has ended, or is awaited no more; the result is being written down
    EXITED    the result is final and can be read

The wire shows three states (``model.State``): an execution is QUEUED until its program has started,
and RUNNING from then on until it has EXITED.

An end can be asked for in every phase. Two orders of events matter. When END comes before START,
the phase stays ENDING after START, and the execution ends the program as soon as the program runs.
When FINISH comes before END, the end is ignored: the program has ended by itself.
"""

from __future__ import annotations

from enum import StrEnum


class ExecutionPhase(StrEnum):
    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    ENDING = "ENDING"
    CLOSING = "CLOSING"
    EXITED = "EXITED"


class ExecutionEvent(StrEnum):
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


_QUEUED, _STARTING, _RUNNING, _ENDING, _CLOSING, _EXITED = ExecutionPhase
# A pair that is missing is the daemon's own mistake.
TABLE: dict[ExecutionPhase, dict[ExecutionEvent, ExecutionPhase]] = {
    _QUEUED: {
        ExecutionEvent.REQUEST: _STARTING,
        ExecutionEvent.END: _ENDING,
        ExecutionEvent.FINISH: _CLOSING,
    },
    _STARTING: {
        ExecutionEvent.REQUEST: _STARTING,
        ExecutionEvent.START: _RUNNING,
        ExecutionEvent.END: _ENDING,
        ExecutionEvent.FINISH: _CLOSING,
    },
    _RUNNING: {
        ExecutionEvent.END: _ENDING,
        ExecutionEvent.FINISH: _CLOSING,
    },
    _ENDING: {
        ExecutionEvent.REQUEST: _ENDING,
        ExecutionEvent.START: _ENDING,
        ExecutionEvent.END: _ENDING,
        ExecutionEvent.FINISH: _CLOSING,
    },
    _CLOSING: {
        ExecutionEvent.END: _CLOSING,
        ExecutionEvent.FINISH: _CLOSING,
        ExecutionEvent.EXIT: _EXITED,
    },
    _EXITED: {
        ExecutionEvent.END: _EXITED,
        ExecutionEvent.EXIT: _EXITED,
    },
}


def advance(phase: ExecutionPhase, event: ExecutionEvent) -> ExecutionPhase:
    """Return the phase after the event."""
    row = TABLE[phase]
    assert event in row, f"{event} in phase {phase}"
    return row[event]
