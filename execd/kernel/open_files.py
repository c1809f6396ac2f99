"""Open files of user code: what a fork shares, and what the end of a process must not lose.

Python's file objects are found among all objects only if the process has a descriptor to write a
file on disk: most sessions have none, and a session of a gigabyte has many objects.

Runs in the user's interpreter: standard library only, Python 3.9.
"""

from __future__ import annotations

import fcntl
import gc
import io
import os
import stat
from typing import Any, NamedTuple

from execd.kernel.descriptors import private_numbers

_BUFFERED = (io.BufferedWriter, io.BufferedRandom)


class Descriptors(NamedTuple):
    """The descriptors of user code that lead to something shared after a fork."""

    sockets: int
    pipes: int
    files: list[str]
    """Paths of the files on disk that are open for writing."""


def find_descriptors(own_sockets: set[int]) -> Descriptors:
    """Look at every descriptor but the worker's own and the standard ones."""
    own = own_sockets | private_numbers()
    sockets, pipes, files = 0, 0, []
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd in own:
            continue
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISSOCK(mode):
                sockets += 1
            elif stat.S_ISFIFO(mode):
                pipes += fd > 2
            elif stat.S_ISREG(mode) and _is_for_writing(fd):
                files.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass  # os.listdir's own descriptor, closed by now
    return Descriptors(sockets, pipes, files)


def _is_for_writing(fd: int) -> bool:
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY


def flush_files(objects: list[Any]) -> None:
    """Write what the files among the objects have in their buffers.

    Files on disk only: a pipe may be full, and the write would wait. A compressed file is left out,
    because each flush adds to the file.
    """
    # By type: isinstance would ask the ``__class__`` of user code's objects. The text goes into the
    # buffers below first.
    for file in objects:
        if issubclass(type(file), io.TextIOWrapper):
            _flush(file, lambda file: file.buffer)
    for file in objects:
        if issubclass(type(file), _BUFFERED):
            _flush(file, lambda file: file)


def _flush(file: Any, buffer_of: Any) -> None:
    try:
        if issubclass(type(buffer_of(file)), _BUFFERED) and stat.S_ISREG(
            os.fstat(file.fileno()).st_mode
        ):
            file.flush()
    except Exception:
        pass  # closed or detached, a full disk, a subclass of user code


def flush_all_files() -> None:
    """Write what the open files of this process have in their buffers."""
    if find_descriptors(set()).files:
        flush_files(gc.get_objects())
