"""Adoption: how the kernel tells the warden the pid of a session's worker.

The zygote (or another worker) forks a worker twice, so the worker is an orphan and the warden
becomes the parent. The daemon makes a pair of sockets, gives the first end to the future worker,
and passes the second end, with SO_PASSCRED set, to the warden in ``Adopt``. The worker sends a
byte; the kernel stamps the byte with the sender's pid in the receiver's PID namespace (unix(7)).

A worker that forks a session holds the first end too, so user code in the worker may send the byte.
The kernel then stamps the pid of the user code, so user code can pass for no foreign process. The
warden accepts only a child of the warden that leads a process group and leads no tree yet.
"""

from __future__ import annotations

import math
import os
import select
import socket
from typing import TYPE_CHECKING

from execd.proc import credential_socket, process_tree
from execd.warden.job import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from execd.proc.memory import Account
    from execd.proc.messages import Adopt

ADOPTION_SECONDS = 10.0


class AdoptionFailed(Exception):
    """The sender of the byte is no worker, or no process sent a byte."""


class Adoption:
    """A worker that the warden waits for. Owns the descriptor until ``receive`` or ``close``."""

    def __init__(self, request: Adopt, fd: int, account: Account, due: float) -> None:
        self.request = request
        self.account = account
        self.due = due
        """When the adoption expires, on the monotonic clock."""
        self._socket = socket.socket(fileno=fd)

    def close(self) -> None:
        """Give the worker up: the worker's write then fails with EPIPE."""
        self._socket.close()

    def receive(self, parent_pid: int) -> process_tree.Process:
        """Return the sender of the byte, a child of ``parent_pid``.

        Call this method once, when the descriptor is readable. The method closes the descriptor.
        Raises AdoptionFailed.
        """
        assert self._socket.fileno() >= 0, "closed by receive or close before"
        with self._socket:
            try:
                pid = credential_socket.receive_pid(self._socket)
            except OSError as error:
                raise AdoptionFailed(str(error)) from None
        if pid <= 0:
            raise AdoptionFailed("it ended before it greeted")
        process = process_tree.read_process(pid)
        if (
            process is None
            or process.parent != parent_pid
            or process.session not in (pid, os.getsid(0))
        ):
            raise AdoptionFailed("who greeted is no child of the warden with a session of its own")
        if process.group != pid:
            raise AdoptionFailed("who greeted has no group of its own")
        return process

    def make_job(self, worker: process_tree.Process, now: float) -> Job:
        """Return the job of the worker, the answer of ``receive``. ``now``: of the monotonic
        clock."""
        return Job(
            self.request,
            worker.pid,
            worker.start,
            frozenset(f"pipe:[{inode}]" for inode in self.request.pipes),
            self.account,
            spawned_at=now,
            session=worker.session,
        )


class PendingAdoptions:
    """The adoptions under way. Registers and unregisters their descriptors with the warden's
    ``poll``."""

    def __init__(self, poll: select.poll) -> None:
        self._poll = poll
        self._awaited: dict[int, Adoption] = {}  # by descriptor

    def __bool__(self) -> bool:
        return bool(self._awaited)

    @property
    def due(self) -> float:
        """When the next adoption expires, on the monotonic clock; infinite if there is none."""
        if not self._awaited:
            return math.inf
        return min(adoption.due for adoption in self._awaited.values())

    def add(self, request: Adopt, fd: int, account: Account, now: float) -> None:
        """Wait for the worker of ``request``. Takes over ``fd``."""
        assert fd >= 0
        assert fd not in self._awaited, "an open descriptor has no second owner"
        self._awaited[fd] = Adoption(request, fd, account, now + ADOPTION_SECONDS)
        self._poll.register(fd, select.POLLIN)

    def take_ready(self, ready: Iterable[int]) -> list[Adoption]:
        """Remove and return the adoptions whose descriptors are ``ready``, for ``receive``."""
        return [self._take(fd) for fd in self._awaited.keys() & ready] if self._awaited else []

    def take_expired(self, now: float) -> list[Adoption]:
        """Remove, close and return the adoptions that have expired."""
        return self._cancel_where(lambda adoption: now >= adoption.due)

    def cancel(self, tag: int) -> bool:
        """Remove and close the adoption with this tag. Returns whether there was any."""
        return bool(self._cancel_where(lambda adoption: adoption.request.tag == tag))

    def _cancel_where(self, is_over: Callable[[Adoption], bool]) -> list[Adoption]:
        if not self._awaited:
            return []
        found = [
            self._take(fd) for fd, adoption in list(self._awaited.items()) if is_over(adoption)
        ]
        for adoption in found:
            adoption.close()
        return found

    def _take(self, fd: int) -> Adoption:
        self._poll.unregister(fd)
        return self._awaited.pop(fd)
