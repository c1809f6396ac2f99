"""The worker's own descriptors, in a process shared with user code.

User code may close any descriptor, or put a file of its own at any number. Three rules protect the
worker's descriptors:
  * High numbers: a loop of user code over the low numbers does not reach them.
  * A check before each use: the number must still lead to the same file (device and inode).
  * No inheritance: a fork of user code closes the worker's descriptors first, exec closes them too
    (CLOEXEC).

Runs in the user's interpreter: standard library only, Python 3.9.
"""

from __future__ import annotations

import fcntl
import os
import resource
import stat

HIGHEST_NUMBER = 4096
"""The descriptor table of a process grows with the highest number: above 4096 the table takes real
memory."""


class DescriptorLost(Exception):
    """User code has closed the descriptor, or put another file at its number."""


class PrivateDescriptor:
    """A descriptor at a high number. Takes over ``fd`` and closes the old number."""

    # All of the process, for ``close_all_private``.
    _all: dict[int, PrivateDescriptor] = {}  # noqa: RUF012

    def __init__(self, fd: int) -> None:
        assert fd >= 0
        # F_DUPFD takes the first free number from the floor on; the floor is below RLIMIT_NOFILE.
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        floor = (
            HIGHEST_NUMBER if soft == resource.RLIM_INFINITY else min(soft, HIGHEST_NUMBER)
        ) - 16
        self._fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(floor, 3))
        assert self._fd >= 3
        os.close(fd)
        self._identity = _identity(self._fd)
        self._all[self._fd] = self

    @property
    def number(self) -> int:
        """The descriptor. Raises DescriptorLost if the number leads to another file."""
        if self._fd < 0 or _identity(self._fd) != self._identity:
            raise DescriptorLost
        return self._fd

    def is_same_file(self, fd: int) -> bool:
        """Return whether ``fd`` leads to the same file."""
        return _identity(fd) == self._identity

    def close(self) -> None:
        """Close the descriptor, unless the number leads to another file by now."""
        fd, self._fd = self._fd, -1
        self._all.pop(fd, None)
        if fd >= 0 and _identity(fd) == self._identity:
            os.close(fd)


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError as error:
        if is_of_a_handler(error):
            raise
        return None
    return status.st_dev, status.st_ino


def is_of_a_handler(error: OSError) -> bool:
    """Whether a signal handler of user code raised the error, in the place of the system call that
    the caller's frame made. A TimeoutError, for example, is an OSError too. Such an error goes to
    the user's code. The handler's frame tells: a system call has none."""
    assert error.__traceback__ is not None, "caught"
    return error.__traceback__.tb_next is not None


def open_sockets() -> set[int]:
    """Return all sockets among the descriptors of this process."""
    return {fd for fd in map(int, os.listdir("/proc/self/fd")) if _is_socket(fd)}


def _is_socket(fd: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False  # os.listdir's own descriptor, closed by now


def private_numbers() -> set[int]:
    """Return the numbers of every private descriptor of this process."""
    return set(PrivateDescriptor._all)


def close_all_private() -> None:
    """Close every private descriptor of this process."""
    for private in list(PrivateDescriptor._all.values()):
        private.close()


# Runs in every fork made by Python code: os.fork, multiprocessing, and branches, whose descriptors
# come with the fork frame.
os.register_at_fork(after_in_child=close_all_private)
