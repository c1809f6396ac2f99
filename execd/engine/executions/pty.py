"""Pseudo-terminals: open a terminal, set the size. The daemon keeps the master, the program gets
the slave as descriptors 0, 1 and 2.

Reading a terminal ends with EIO once the last slave is closed (pty(7)); the pump takes EIO as end
of file. Where the kernel sends no SIGWINCH and no SIGHUP (``signals_terminals``), the runner of the
command sends both.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from typing import NamedTuple

from execd.model import COLUMNS, ROWS

TYPE = "xterm-256color"
"""TERM of a program whose request names no other type. Without TERM no program can clear the screen
or find a key."""
END_OF_FILE = b"\x04"
"""The VEOF character: a line discipline in canonical mode takes it for end of file. A terminal
cannot be half closed."""


def typed(text: bytes, *, ends: bool) -> bytes:
    """Return the keys for a text, with end of file after the text if the input ``ends``.

    In the middle of a line the first END_OF_FILE only gives the program the line so far.
    """
    if not ends:
        return text
    is_line = not text or text.endswith(b"\n")
    return text + END_OF_FILE * (1 if is_line else 2)


class Terminal(NamedTuple):
    """Both ends, close-on-exec. The caller closes them."""

    master: int
    slave: int


def open_terminal(cols: int, rows: int) -> Terminal:
    """Raises OSError, for example when the system has no more terminals."""
    master, slave = os.openpty()
    try:
        set_size(master, cols, rows)
    except OSError:
        os.close(master)
        os.close(slave)
        raise
    return Terminal(master, slave)


def set_size(master: int, cols: int, rows: int) -> None:
    """TIOCSWINSZ, ioctl_tty(2). Programs that divide by a size of 0 fail, so 0 is not set."""
    size = struct.pack("HHHH", rows or ROWS, cols or COLUMNS, 0, 0)
    fcntl.ioctl(master, termios.TIOCSWINSZ, size)
