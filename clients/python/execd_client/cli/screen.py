"""This terminal as the screen and keyboard of a terminal in the sandbox."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from execd_client import ApiError, Conflict, ConnectionLost, ExecdError, NotFound, Unreachable
from execd_client.cli.output import tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from execd_client import Handle, Terminal

NO_TERMINAL = (80, 24)
ATTEMPTS, PAUSE_SECONDS = 20, 0.5
RESIZE = bytes([signal.SIGWINCH])


def terminal_size() -> tuple[int, int]:
    """Columns and rows of this terminal; 80 by 24 without a terminal."""
    try:
        return tuple(os.get_terminal_size(0))  # type: ignore[return-value]
    except OSError:
        return NO_TERMINAL


def need_terminal(name: str) -> None:
    """Raise UsageError if the input is no terminal: a terminal in the sandbox knows no end of
    input."""
    if not os.isatty(0):
        said = f"{name}: the input is no terminal; pass input to `execctl run` without --tty"
        raise click.UsageError(said)


def attach(handle: Handle, *, ends: bool = False) -> int:
    """Connect this terminal, until the program ends; its exit code. A connection that breaks is
    opened again, and misses nothing. SIGTERM and SIGHUP go to the program, or with ``ends`` end the
    program; the second such signal ends execctl alone. This terminal is as before at the end."""
    reading, wake = os.pipe()
    os.set_blocking(wake, False)
    n_ends = 0

    def caught(number: int, _frame: object) -> None:
        nonlocal n_ends
        n_ends += number != signal.SIGWINCH
        if n_ends > 1 and number != signal.SIGWINCH:
            restore()
            os._exit(128 + number)
        os.write(wake, bytes([number]))

    keyboard = _Keyboard(handle, reading, ends)
    numbers = (signal.SIGWINCH, signal.SIGHUP, signal.SIGTERM)
    with _raw(0) as restore:
        for number in numbers:
            signal.signal(number, caught)
        try:
            return _shown(handle, keyboard)
        except OSError:
            # This terminal is gone; SIGHUP may come later, or to another process only.
            keyboard.end(signal.SIGHUP)
            raise
        finally:
            for number in numbers:
                signal.signal(number, signal.SIG_DFL)


def _shown(handle: Handle, keyboard: _Keyboard) -> int:
    offset, attempts = 0, 0
    while True:
        try:
            with handle.terminal(offset) as terminal:
                attempts = 0
                keyboard.use(terminal)
                try:
                    while data := read_output(terminal):
                        offset = terminal.offset
                        os.write(1, data)
                finally:
                    offset = terminal.offset
                if terminal.dropped_bytes:
                    tell(f"{terminal.dropped_bytes} bytes of output are lost\r")
                assert terminal.result is not None, "output ends with the program"
                return terminal.result.exit_code or 0
        except (ConnectionLost, Unreachable):
            attempts += 1
            if attempts >= ATTEMPTS:
                raise
            time.sleep(PAUSE_SECONDS)


def read_output(terminal: Terminal) -> bytes:
    while True:
        try:
            return terminal.read()
        except ApiError as error:
            tell(f"{error.message}\r")  # ends nothing


class _Keyboard:
    """A thread that sends keys and sizes to the terminal that is open at the moment, and signals to
    the program."""

    def __init__(self, handle: Handle, wake: int, ends: bool) -> None:
        self._handle = handle
        self._wake = wake
        self._ends = ends
        self._terminal: Terminal | None = None
        # The thread ends with the process: it may wait for a key for ever.
        threading.Thread(target=self._forward, daemon=True).start()

    def use(self, terminal: Terminal) -> None:
        terminal.resize(*terminal_size())
        self._terminal = terminal

    def end(self, number: int) -> None:
        """Pass SIGTERM or SIGHUP on."""
        name = signal.Signals(number).name
        try:
            if self._ends:
                self._handle.kill(0.2)
            else:
                self._handle.signal(name)
        except (Conflict, NotFound):
            return  # The program has ended.
        except ExecdError as error:
            tell(f"{name} was not delivered: {error.message}\r")

    def _forward(self) -> None:
        sources = [0, self._wake]
        while True:
            ready, _, _ = select.select(sources, [], [])
            terminal, said = self._terminal, b""
            if self._wake in ready:
                said = os.read(self._wake, 64)
            for number in said.replace(RESIZE, b""):
                self.end(number)
            if terminal is None:
                time.sleep(0.05)  # No terminal yet: the keys wait in this terminal.
                continue
            try:
                if RESIZE in said:
                    terminal.resize(*terminal_size())
                if 0 in ready and not self._type(terminal):
                    sources.remove(0)
            except (ConnectionLost, ApiError):
                # The program has ended, or the connection breaks: then `_shown` opens another.
                time.sleep(0.05)

    def _type(self, terminal: Terminal) -> bool:
        """Send the keys that wait. False: there will be no more."""
        try:
            keys = os.read(0, 4096)
        except OSError:
            return False
        terminal.write(keys)
        return bool(keys)


@contextmanager
def _raw(descriptor: int) -> Iterator[Callable[[], None]]:
    """The terminal in the sandbox echoes, and makes signals of keys; this terminal does not. Yields
    what restores this terminal early."""
    if not os.isatty(descriptor):
        yield lambda: None
        return
    before = termios.tcgetattr(descriptor)

    def restore(when: int = termios.TCSANOW) -> None:
        with suppress(termios.error):  # The terminal is gone.
            termios.tcsetattr(descriptor, when, before)

    tty.setraw(descriptor)
    try:
        yield restore
    finally:
        restore(termios.TCSADRAIN)
        sys.stdout.flush()
