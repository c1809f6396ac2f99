"""The output of executions on this process's stdout and stderr, and what is said of lost output."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from typing import TYPE_CHECKING

import click

from execd_client import RangeNotSatisfiable
from execd_client.cli import REFUSED

if TYPE_CHECKING:
    from execd_client import Event, Handle, Result

BROKEN_PIPE = 128 + signal.SIGPIPE
"""The exit code when the reader of the output has gone, as of a program that SIGPIPE ends."""


def tell(text: str) -> None:
    """A line of execctl's own. A stderr that takes nothing is no reason to stop."""
    with contextlib.suppress(OSError):
        click.echo(f"execctl: {text}", err=True)


def write(name: str, data: bytes) -> None:
    """Write bytes to ``stdout`` or ``stderr`` at once. Raises OSError."""
    stream = sys.stdout if name == "stdout" else sys.stderr
    left = memoryview(data)
    while left:
        # With PYTHONUNBUFFERED the buffer is the file itself, which may take a part only.
        left = left[stream.buffer.write(left) :]
    stream.flush()


class Output:
    """Shows the events of a command or a cell. Lost bytes are summed, and told at the end: execd
    tells each of many small holes while a program is faster than the connection."""

    def __init__(self, *, is_silent: bool = False) -> None:
        """``is_silent``: write no output, because the result is printed as JSON."""
        self._is_silent = is_silent
        self._lost_bytes: dict[str, int] = {}

    def show(self, event: Event) -> None:
        """Raises OSError if the output cannot be written."""
        if event.kind == "dropped":
            name, size_bytes = str(event.fields["stream"]), int(event.fields["size_bytes"])
            self._lost_bytes[name] = self._lost_bytes.get(name, 0) + size_bytes
        elif event.kind == "gone":
            tell(str(event.fields["message"]))
        elif event.data and not self._is_silent:
            write(event.kind, event.data)

    def tell_lost(self) -> None:
        for name, size_bytes in self._lost_bytes.items():
            tell(
                f"{size_bytes} bytes of {name} are lost: execd keeps the beginning and the end of "
                "a long output (log_bytes)"
            )
        self._lost_bytes.clear()

    def tell_end(self, result: Result) -> None:
        """What is lost, and why the program ended, if not by itself."""
        self.tell_lost()
        if result.message and not self._is_silent:
            tell(result.message)


def print_kept(handle: Handle, name: str) -> None:
    """Print what execd has of a stream, with a line on stderr in place of the bytes that execd did
    not keep."""
    start = 0
    while True:
        try:
            write(name, handle.output(name, start))
            return
        except RangeNotSatisfiable as refusal:
            hole = refusal.details.get("hole", {"offset": 0, "size_bytes": 0})
            first, end = hole["offset"], hole["offset"] + hole["size_bytes"]
            if end <= start:
                raise
            total_bytes = refusal.details["size_bytes"]
        # The hole of a program that runs may grow: then the next request tells the rest.
        if first > start:
            write(name, handle.output(name, start, first - start))
        lost = f"{end - max(start, first)} bytes of {name}"
        tell(f"here {lost} are lost: execd did not keep them (log_bytes)")
        start = end
        if start >= total_bytes:
            return


def failed(error: OSError | UnicodeError) -> int:
    """Report a failure on this side, and return the exit code. A reader that has gone is no
    failure, and gets no message."""
    is_broken_pipe = isinstance(error, OSError) and error.errno == errno.EPIPE
    if not is_broken_pipe:
        tell(_said(error))
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            stream.flush()
        except OSError:
            # The interpreter flushes once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    return BROKEN_PIPE if is_broken_pipe else REFUSED


def _said(error: OSError | UnicodeError) -> str:
    if not isinstance(error, OSError):
        return f"an argument or a file is not text: {error}"
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return ": ".join([*names, error.strerror or str(error)])
