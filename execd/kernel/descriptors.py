"""Descriptors of the worker's own that live beside user code: out of its way, never inherited,
never mistaken.

User code shares the process and may close any descriptor, or put a file of its own on a number. So
ours have high numbers, where a loop over the low ones does not pass; a number is used only while
the same file is behind it; and a fork of user code closes them first thing, as exec does (CLOEXEC).

Runs in the user's interpreter: standard library only, Python 3.9.
"""

from __future__ import annotations

import fcntl
import os
import resource
import stat

HIGHEST_NUMBER = 4096
"""Above it a descriptor table costs real memory."""


class DescriptorLost(Exception):
    """User code closed it, or put something else in its place."""


class PrivateDescriptor:
    """A descriptor moved to a high number; the one given is closed."""

    _all: dict[int, PrivateDescriptor] = {}  # noqa: RUF012  # the one list that a fork of user code goes by

    def __init__(self, fd: int) -> None:
        # Below the limit, however low it is: F_DUPFD takes the first free number from there on.
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        floor = (
            HIGHEST_NUMBER if soft == resource.RLIM_INFINITY else min(soft, HIGHEST_NUMBER)
        ) - 16
        self._fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(floor, 3))
        os.close(fd)
        self._identity = _identity(self._fd)
        self._all[self._fd] = self

    @property
    def number(self) -> int:
        """Raises Lost."""
        if self._fd < 0 or _identity(self._fd) != self._identity:
            raise DescriptorLost
        return self._fd

    def is_same_file(self, fd: int) -> bool:
        """Whether ``fd`` leads to the same file."""
        return _identity(fd) == self._identity

    def close(self) -> None:
        """At once; a number that is not ours any more is left alone."""
        fd, self._fd = self._fd, -1
        self._all.pop(fd, None)
        if fd >= 0 and _identity(fd) == self._identity:
            os.close(fd)


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def open_sockets() -> set[int]:
    """Descriptors of this process that are sockets."""
    return {fd for fd in map(int, os.listdir("/proc/self/fd")) if _is_socket(fd)}


def _is_socket(fd: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False  # the descriptor of the listing itself


def close_all_private() -> None:
    for private in list(PrivateDescriptor._all.values()):
        private.close()


# For every fork that goes through Python: os.fork, multiprocessing, our own branches, which bring
# new ones.
os.register_at_fork(after_in_child=close_all_private)
