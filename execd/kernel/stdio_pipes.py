"""Descriptors 0 to 2 of a worker and the Python streams on them.

Each cell begins with descriptors 1 and 2 in order. ``sys.stdout``, ``sys.stderr`` and their twins
with underscores are user code's: a stream that user code has put there stays, as in IPython, while
the stream can be written to. Otherwise the session's own stream comes back, and a note on stderr
says so.

Two ways put a file of user code at number 1 or 2, where the next ``print`` would write into the
file. A stream from ``os.fdopen(1)`` closes the number when the stream dies, and the next file gets
the number: so ``os.fdopen`` leaves 1 and 2 open here, and ``restore`` drops streams before the look
at the descriptors. Or user code closes the number: so ``restore`` gives such a file another number.

Runs in the user's interpreter: standard library only, Python 3.9.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import io
import os
import sys
from typing import Any

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
_fdopen = os.fdopen

_NAMES = {1: ("stdout", "__stdout__"), 2: ("stderr", "__stderr__")}


class Streams:
    """The standard streams of a worker, from ``start_in_process`` on. Owns a private copy of each
    pipe's end."""

    def __init__(self) -> None:
        self._own_stdin = sys.stdin = io.TextIOWrapper(
            io.BufferedReader(io.FileIO(0, "r", closefd=False)), encoding="utf-8"
        )
        self._own: dict[int, io.TextIOWrapper] = {}
        self._originals: list[io.TextIOWrapper] = []

    def start_in_process(self) -> None:
        """Take over the pipes of a new process, a worker or a branch.

        The streams are new: a thread of the original may hold the locks of the old ones. Streams of
        user code stay.
        """
        self._pipe_copies = {number: PrivateDescriptor(os.dup(number)) for number in _NAMES}
        # A stream closes its buffer when it dies, and user code may have wrapped the buffer.
        self._originals += self._own.values()
        for number in _NAMES:
            self._renew(number)

    def _renew(self, number: int) -> None:
        """Make the session's own stream anew, and put the stream where the old one was."""
        # closefd=False: closing the Python object leaves the descriptor open. Line buffering: lines
        # arrive while the cell runs, and in order with lines of programs and of C code.
        # backslashreplace: every string can be printed, lone surrogates too.
        raw = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
        text = io.TextIOWrapper(
            raw, encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
        old = self._own.get(number)
        self._own[number] = text
        for name in _NAMES[number]:
            if old is None or getattr(sys, name, None) is old:
                setattr(sys, name, text)

    def restore(self) -> None:
        """Repair the streams and descriptors 1 and 2 before a cell, and tell what could not stay.

        Raises DescriptorLost if user code has taken the private copies too.
        """
        notes = []
        if not hasattr(sys, "stdin"):  # IPython 8 reads its encoding
            notes.append("sys.stdin was deleted, and is the session's own stream again")
            sys.stdin = self._own_stdin
        for number, (name, twin) in _NAMES.items():
            own = self._own[number]
            if not _is_usable(getattr(sys, name, None), own):
                notes.append(
                    f"sys.{name} could not be written to any more, and is the session's own stream "
                    "again"
                )
                setattr(sys, name, own)
            if not _is_usable(getattr(sys, twin, None), own):
                setattr(sys, twin, own)
            if not _is_usable(own, own):
                self._renew(number)
        for number, copy in self._pipe_copies.items():
            if not copy.is_same_file(number):
                lost = _move_files(number)
                _dup2(copy.number, number)
                if lost:
                    notes.append(
                        f"descriptor {number} leads to the reply again, and no longer to {lost}"
                    )
            # O_NONBLOCK belongs to the pipe's end, shared with the cell's programs. Some programs
            # set the flag and do not reset the flag.
            _set_blocking(number, True)
        if notes:
            self._own[2].write("".join(f"[before this cell: {note}]\n" for note in notes))

    def flush(self) -> None:
        """Flush Python's and C's streams into the pipes after a cell."""
        for number, names in _NAMES.items():
            streams = [getattr(sys, name, None) for name in names]
            for stream in (*streams, self._own[number]):
                try:
                    stream.flush()  # type: ignore[union-attr]
                except BaseException:
                    pass  # a stream of user code may be missing, and may raise anything
        _flush_c(None)

    def close(self) -> None:
        """Close the original's copies in a branch. The original has flushed its output before."""
        for copy in self._pipe_copies.values():
            copy.close()


def _is_usable(stream: Any, own: io.TextIOWrapper) -> bool:
    """Whether ``print`` can write to a stream, which may be any object."""
    try:
        if not hasattr(stream, "write") or getattr(stream, "closed", False) is True:
            return False
    except BaseException:  # detached, or of user code
        return False
    if stream is own:
        return True
    try:
        number = stream.fileno()
    except BaseException:  # a stream without a descriptor
        return True
    if type(number) is not int or number in _NAMES:
        return True  # 1 and 2 are about to be repaired
    try:
        os.fstat(number)
    except (OSError, OverflowError):
        return False
    return True


def _move_files(number: int) -> str:
    """Give the files of user code at 1 or 2 another number: the worker takes the number back.

    Return the path of what loses the number: what user code has put there by ``os.dup2``, or an
    object that is no file of Python. Empty: nothing.
    """
    try:
        lost = os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return ""  # closed
    for file in gc.get_objects():
        # By type: isinstance would ask the ``__class__`` of user code's objects.
        if (
            issubclass(type(file), io.FileIO)
            and not file.closed
            and file.closefd
            and file.fileno() == number
        ):
            name, moved = file.name, fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
            # Opened again, the object closes its old number. The position belongs to the open file,
            # and the text in the buffers above stays.
            io.FileIO.__init__(file, moved, file.mode)
            file.name = name
            _dup2(moved, number)  # for another object at this number
            if not isinstance(name, int):
                lost = ""
    return lost


def write_error(text: str) -> None:
    """Write a line for the user to stderr, even if user code has spoiled ``sys.stderr``."""
    for name in _NAMES[2]:
        try:
            getattr(sys, name).write(text + "\n")
            return
        except Exception:  # of a stream of user code
            pass


def fdopen(fd: int, *args: Any, **kwargs: Any) -> Any:
    """Stand in for os.fdopen. A stream on 1 or 2 leaves the number open when the stream dies."""
    if fd in _NAMES and len(args) <= 5:
        kwargs["closefd"] = False
    return _fdopen(fd, *args, **kwargs)
