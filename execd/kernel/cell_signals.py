"""Signals in a process that user code shares: SIGINT means the cell that runs, and handlers of user
code run in cells only.

Runs in the user's interpreter: standard library only, Python 3.9.
"""

from __future__ import annotations

from os import getpid
from signal import SIG_UNBLOCK, SIGINT, getsignal, pthread_sigmask, signal, valid_signals
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.kernel.event_loop import SessionLoop

PARKED_SIGNALS = tuple(valid_signals() - {SIGINT})


class CellSignals:
    """Owns the process's handlers between cells, and that of SIGINT always."""

    def __init__(self, loop: SessionLoop) -> None:
        self._loop = loop
        self._pid = getpid()
        self._parked: dict[int, Any] = {}  # user code's signal handlers, between cells
        self.is_interruptible = self.was_interrupted = False

    def start_in_process(self) -> None:
        """In a new worker or branch. Handlers that are parked stay so."""
        self._pid = getpid()
        self.is_interruptible = self.was_interrupted = False
        signal(SIGINT, self._on_interrupt)

    def run_interruptibly(self, function: Callable[[], Any]) -> Any:
        """Run user code. Raises KeyboardInterrupt; the caller clears the flag again, since it may
        come before this does."""
        try:
            self.is_interruptible = True
            if self.was_interrupted:
                raise KeyboardInterrupt
            return function()
        finally:
            self.is_interruptible = False

    def _on_interrupt(self, number: int, stack: object) -> None:
        if getpid() != self._pid:
            raise KeyboardInterrupt  # a fork of user code has the usual handler
        if not self.is_interruptible:
            self.was_interrupted = True
        elif not self._loop.interrupt():
            raise KeyboardInterrupt

    def begin_cell(self) -> None:
        signal(SIGINT, self._on_interrupt)
        pthread_sigmask(SIG_UNBLOCK, (SIGINT,))
        parked, self._parked = self._parked, {}
        for number, handler in parked.items():
            signal(number, handler)

    def end_cell(self) -> None:
        signal(SIGINT, self._on_interrupt)
        for number in PARKED_SIGNALS:
            if callable(handler := getsignal(number)):
                self._parked[number] = handler
                signal(number, _do_nothing)


def _do_nothing(number: int, stack: object) -> None:
    pass
