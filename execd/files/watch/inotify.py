"""inotify(7) for directories known by descriptor.

Libraries such as watchfiles watch paths, and recursive libraries follow links (tried: watchfiles
1.3 reports changes behind a link out of the root). Here a directory is watched by descriptor, so
user code cannot swap the directory first, and the caller can tell a full queue from silence.
inotify needs four system calls and a struct.
"""

from __future__ import annotations

import ctypes
import os
import struct
from enum import IntFlag
from typing import NamedTuple


class Mask(IntFlag):
    """The constants of sys/inotify.h."""

    MODIFY = 0x2
    ATTRIB = 0x4
    CLOSE_WRITE = 0x8
    MOVED_FROM = 0x40
    MOVED_TO = 0x80
    CREATE = 0x100
    DELETE = 0x200
    DELETE_SELF = 0x400
    MOVE_SELF = 0x800
    UNMOUNT = 0x2000
    Q_OVERFLOW = 0x4000
    IGNORED = 0x8000
    ONLYDIR = 0x01000000
    ISDIR = 0x40000000


WANTED = (
    Mask.MODIFY
    | Mask.ATTRIB
    | Mask.CLOSE_WRITE
    | Mask.MOVED_FROM
    | Mask.MOVED_TO
    | Mask.CREATE
    | Mask.DELETE
    | Mask.DELETE_SELF
    | Mask.MOVE_SELF
    | Mask.ONLYDIR
)
_HEADER = struct.Struct("iIII")
_READ_BYTES = 64 * 1024

_libc = ctypes.CDLL(None, use_errno=True)
_libc.inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)


class RawEvent(NamedTuple):
    watch: int
    mask: Mask
    cookie: int
    """The same number in both halves of a move."""
    name: bytes


class Inotify:
    """An inotify queue. Owns the descriptor; ``close`` ends the queue."""

    def __init__(self) -> None:
        """Raises OSError; EMFILE if the user has too many queues."""
        self.fd = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def add(self, directory: int, mask: Mask = WANTED) -> int:
        """Watch a directory by descriptor, which may be O_PATH. A directory watched twice keeps its
        number.

        Raises OSError; ENOSPC if the user has too many watches.
        """
        assert directory >= 0
        return _checked(_libc.inotify_add_watch(self.fd, b"/proc/self/fd/%d" % directory, mask))

    def remove(self, watch: int) -> None:
        """Remove a watch. No error if the kernel has removed the watch already."""
        _libc.inotify_rm_watch(self.fd, watch)

    def read(self) -> list[RawEvent]:
        """Return the events so far, in order. Never blocks."""
        events: list[RawEvent] = []
        while True:
            try:
                data = os.read(self.fd, _READ_BYTES)
            except BlockingIOError:
                return events
            at = 0
            while at < len(data):
                watch, mask, cookie, length = _HEADER.unpack_from(data, at)
                at += _HEADER.size
                events.append(
                    RawEvent(watch, Mask(mask), cookie, data[at : at + length].rstrip(b"\0"))
                )
                at += length

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
