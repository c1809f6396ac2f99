"""Signals in a process shared with user code.

Two rules:
  * SIGINT interrupts the running cell. SIGINT between cells is dropped; SIGINT in the worker's own
    lines before user code takes effect when user code begins.
  * Signal handlers of user code run during cells only. Between cells the handlers are parked: an
    alarm set by a cell would raise in the worker's own lines. A signal that arrives meanwhile is
    lost. Real-time signals are the exception, because a look at their 31 handlers would cost each
    cell 30 µs: user code's handlers stay, and an exception of such a handler between cells ends the
    worker.

The race of user code's handlers with the edges of a cell. A handler may run between any two lines
while the handlers are being given back or parked, and may raise.
  * Before the cell has an outcome: ``run_cell`` returns the exception, which is the cell's error.
  * Afterwards: the signal came between cells. The exception is dropped, and the parking goes on.
Each place takes a few exceptions in a row; a handler that raises faster ends the worker. The
retries are nested and not a loop, because Python also runs handlers at a loop's jump back, outside
of the ``try``.

The race of an interrupt with the beginning of a cell. ``was_interrupted`` is cleared when the cell
begins.
  * SIGINT before ``run_interruptibly`` sets ``is_interruptible``: the handler sets
    ``was_interrupted``, and ``run_interruptibly`` raises KeyboardInterrupt.
  * SIGINT afterwards: the handler raises KeyboardInterrupt, or the event loop cancels the task.
The race with the end of a cell: the handler may raise before ``run_interruptibly`` clears
``is_interruptible``. So ``take_over`` clears the attribute again.

Runs in the user's interpreter: standard library only, Python 3.9.
"""

from __future__ import annotations

from os import getpid
from signal import (
    SIG_UNBLOCK,
    SIGINT,
    SIGKILL,
    SIGRTMIN,
    SIGSTOP,
    getsignal,
    pthread_sigmask,
    signal,
    valid_signals,
)
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.kernel.event_loop import SessionLoop

PARKED_SIGNALS = tuple(
    number
    for number in valid_signals()
    if number < SIGRTMIN and number not in (SIGINT, SIGKILL, SIGSTOP)
)

Outcome = TypeVar("Outcome")


class CellSignals:
    """Owns the process's signal handlers between cells, and the handler of SIGINT always."""

    def __init__(self, loop: SessionLoop) -> None:
        self._loop = loop
        self._pid = getpid()
        self._parked: dict[int, Any] = {}  # user code's handlers by signal number
        self.is_interruptible = self.was_interrupted = False

    def start_in_process(self) -> None:
        """Take over SIGINT in a new worker or branch. Parked handlers stay parked."""
        self._pid = getpid()
        self.is_interruptible = self.was_interrupted = False
        signal(SIGINT, self._on_interrupt)

    def run_interruptibly(self, function: Callable[[], Any]) -> Any:
        """Run user code. Raises KeyboardInterrupt.

        The caller calls ``take_over`` afterwards.
        """
        assert not self.is_interruptible
        try:
            self.is_interruptible = True
            if self.was_interrupted:
                raise KeyboardInterrupt
            return function()
        finally:
            self.is_interruptible = False

    def _on_interrupt(self, number: int, stack: object) -> None:
        if getpid() != self._pid:
            raise KeyboardInterrupt  # as Python's default handler does, in a fork of user code
        if not self.is_interruptible:
            self.was_interrupted = True
        elif not self._loop.interrupt():
            raise KeyboardInterrupt

    def run_cell(
        self, function: Callable[[], Outcome]
    ) -> tuple[Outcome | None, BaseException | None]:
        """Run user code with its handlers. Return the function's outcome, or the exception of an
        interrupt or of a handler that came first. Raises other exceptions of the function."""
        outcome: Outcome | None = None
        try:
            self._give_back_handlers()
            outcome = self.run_interruptibly(function)
            self.take_over()
        except BaseException as raised:
            try:
                self.take_over()
            except BaseException:  # of a handler that is not parked yet
                self.take_over()
            if outcome is None:
                if not _is_meant_for_cell(raised):
                    raise
                return None, raised
        return outcome, None

    def _give_back_handlers(self) -> None:
        while self._parked:
            number = next(iter(self._parked))
            signal(number, self._parked[number])
            del self._parked[number]

    def take_over(self) -> None:
        """Take over SIGINT and park user code's handlers, after each run of user code."""
        self.is_interruptible = False
        try:
            self._park_handlers()
        except BaseException:  # of a handler that is not parked yet
            try:
                self._park_handlers()
            except BaseException:
                self._park_handlers()

    def _park_handlers(self) -> None:
        signal(SIGINT, self._on_interrupt)
        # A SIGINT that user code has blocked arrives now, and not in the next cell.
        pthread_sigmask(SIG_UNBLOCK, (SIGINT,))
        for number in PARKED_SIGNALS:
            handler = getsignal(number)
            if callable(handler) and handler is not _do_nothing:
                self._parked[number] = handler
                signal(number, _do_nothing)


def _is_meant_for_cell(raised: BaseException) -> bool:
    """Whether an interrupt or a handler of user code raised the exception. Any other exception is a
    fault of the worker, or of what user code has made of the worker.

    A handler's frame has the interrupted frame among its arguments (signal.signal). A handler
    without a frame, such as sys.exit, is not recognized.
    """
    if isinstance(raised, KeyboardInterrupt):
        return True
    interrupted = None
    for frame, _ in walk_tb(raised.__traceback__):
        for value in frame.f_locals.values():
            arguments = value if type(value) is tuple else (value,)
            if interrupted is not None and any(one is interrupted for one in arguments):
                return True
        interrupted = frame
    return False


def _do_nothing(number: int, stack: object) -> None:
    """Stand in for a parked handler: with SIG_DFL the signal might end the process."""
