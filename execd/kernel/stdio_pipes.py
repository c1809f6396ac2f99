"""Descriptors 0 to 2 of a worker and the Python streams on them. Each cell begins with fresh ones,
even if an earlier cell closed or replaced them.

Runs in the user's interpreter: standard library only, Python 3.9.
"""

from __future__ import annotations

import ctypes
import io
import os
import sys

from execd.kernel.descriptors import PrivateDescriptor

_LINE_BUFFERED = ctypes.c_int(1)  # _IOLBF
# C's stdout would gather 4 KiB for a pipe: output would come late and out of order, and would be
# lost if the cell is killed.
ctypes.CDLL(None).setvbuf(
    ctypes.c_void_p.in_dll(ctypes.CDLL(None), "stdout"), None, _LINE_BUFFERED, ctypes.c_size_t(0)
)
# Bound at import, in the zygote: user code may later replace os.dup2 in its process.
_flush_c = ctypes.CDLL(None).fflush
_dup2 = os.dup2
_set_blocking = os.set_blocking


class Streams:
    """The standard streams of a worker. Owns a private copy of each pipe's end."""

    def __init__(self) -> None:
        self._pipe_copies = {number: PrivateDescriptor(os.dup(number)) for number in (1, 2)}
        sys.stdin = io.TextIOWrapper(
            io.BufferedReader(io.FileIO(0, "r", closefd=False)), encoding="utf-8"
        )
        self._make_stream(1)
        self._make_stream(2)

    def _make_stream(self, number: int) -> None:
        # closefd=False: closing the Python object leaves the descriptor open. Line buffering: lines
        # arrive while the cell runs, and in order with lines of programs and of C code.
        # backslashreplace: every string can be printed, lone surrogates too.
        assert number in (1, 2)
        raw = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
        text = io.TextIOWrapper(
            raw, encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
        if number == 1:
            self._stdout = sys.stdout = sys.__stdout__ = text  # type: ignore[misc]
        else:
            self._stderr = sys.stderr = sys.__stderr__ = text  # type: ignore[misc]

    def restore(self) -> None:
        """Repair descriptors 1 and 2 and sys.stdout and sys.stderr before a cell.

        Raises DescriptorLost if user code has taken the private copies too.
        """
        for number, copy in self._pipe_copies.items():
            if not copy.is_same_file(number):
                _dup2(copy.number, number)
            # O_NONBLOCK belongs to the pipe's end, shared with the cell's programs. Some programs
            # set the flag and do not reset the flag.
            _set_blocking(number, True)
        if not _is_usable(self._stdout):
            self._make_stream(1)
        if not _is_usable(self._stderr):
            self._make_stream(2)
        sys.stdout, sys.stderr = self._stdout, self._stderr

    def flush(self) -> None:
        """Flush Python's and C's streams into the pipes after a cell."""
        for name in ("stdout", "stderr"):
            try:
                getattr(sys, name).flush()
            except BaseException:
                pass  # a stream of user code may be missing, and may raise anything
        for stream in (self._stdout, self._stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass  # user code has closed the stream or the descriptor
        _flush_c(None)

    def close(self) -> None:
        """Close the original's copies in a branch. The original has flushed its output before."""
        for copy in self._pipe_copies.values():
            copy.close()


def _is_usable(stream: io.TextIOWrapper) -> bool:
    try:
        return not stream.closed
    except ValueError:  # detached
        return False
