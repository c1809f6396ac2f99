"""Descriptors 0 to 2 of a worker and the Python objects on them. Each cell begins with its own,
whatever the last one did to them.

Runs in the user's interpreter: standard library only, Python 3.9.
"""

from __future__ import annotations

import ctypes
import io
import os
import sys

from execd.kernel.descriptors import PrivateDescriptor

_LINE_BUFFERED = ctypes.c_int(1)  # _IOLBF
# C would gather 4 KiB for a pipe: late, out of order, and lost if the cell is killed.
ctypes.CDLL(None).setvbuf(
    ctypes.c_void_p.in_dll(ctypes.CDLL(None), "stdout"), None, _LINE_BUFFERED, ctypes.c_size_t(0)
)
# At import, in the zygote: user code's dup2 of tomorrow is not ours.
_flush_c = ctypes.CDLL(None).fflush
_dup2 = os.dup2
_set_blocking = os.set_blocking


class Streams:
    """Owns copies of the two pipes' ends."""

    def __init__(self) -> None:
        self._pipe_copies = {number: PrivateDescriptor(os.dup(number)) for number in (1, 2)}
        sys.stdin = io.TextIOWrapper(
            io.BufferedReader(io.FileIO(0, "r", closefd=False)), encoding="utf-8"
        )
        self._make_stream(1)
        self._make_stream(2)

    def _make_stream(self, number: int) -> None:
        # Closing the object leaves the descriptor open. Lines go out as they are written: they are
        # seen while the cell runs, and in their place among those of programs and of C code.
        # Whatever a string holds can be printed.
        raw = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
        text = io.TextIOWrapper(
            raw, encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
        if number == 1:
            self._stdout = sys.stdout = sys.__stdout__ = text  # type: ignore[misc]  # final to the type checker only
        else:
            self._stderr = sys.stderr = sys.__stderr__ = text  # type: ignore[misc]

    def restore(self) -> None:
        """Before a cell. Raises descriptors.Lost if the copies are gone too."""
        for number, copy in self._pipe_copies.items():
            if not copy.is_same_file(number):
                _dup2(copy.number, number)
            # Of the pipe's end, so also a program's doing that had it as its own output: some make
            # it non-blocking and leave it so.
            _set_blocking(number, True)
        if not _is_usable(self._stdout):
            self._make_stream(1)
        if not _is_usable(self._stderr):
            self._make_stream(2)
        sys.stdout, sys.stderr = self._stdout, self._stderr

    def flush(self) -> None:
        """After a cell: all that was printed is in the pipes then, C's as well."""
        for name in ("stdout", "stderr"):
            try:
                getattr(sys, name).flush()
            except BaseException:
                # What user code has put there, if anything, may raise whatever it likes.
                pass
        for stream in (self._stdout, self._stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass  # user code has closed it, or the descriptor under it
        _flush_c(None)

    def close(self) -> None:
        """In a branch, which has other pipes; what it printed was flushed before."""
        for copy in self._pipe_copies.values():
            copy.close()


def _is_usable(stream: io.TextIOWrapper) -> bool:
    try:
        return not stream.closed
    except ValueError:  # detached
        return False
