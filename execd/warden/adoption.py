"""How the warden learns which process is a session's worker: by the kernel's word and not the
worker's own.

A worker is forked by the zygote (or by another worker) twice, so that it is an orphan and the
warden its parent. The daemon makes a pair of sockets, gives one end to the worker-to-be and the
other, which has SO_PASSCRED set, to the warden. The worker sends one byte; the kernel stamps it
with the sender's pid, in the receiver's PID namespace (unix(7)). User code in a worker that forks a
session holds such an end too, and may greet with it; but only as itself or one of its own, and none
that leads a tree already.
"""

from __future__ import annotations

import math
import os
import select
import socket
from typing import TYPE_CHECKING

from execd.proc import credential_socket, process_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from execd.proc.memory import Account
    from execd.proc.messages import Adopt

ADOPTION_SECONDS = 10.0


class AdoptionFailed(Exception):
    """No worker came of it."""


class Adoption:
    """One that is awaited. Owns the descriptor, until ``receive`` or ``close``."""

    def __init__(self, request: Adopt, fd: int, account: Account, due: float) -> None:
        self.request = request
        self.account = account
        self.due = due
        """On the monotonic clock: when it is given up."""
        self._socket = socket.socket(fileno=fd)

    def close(self) -> None:
        self._socket.close()

    def receive(self, parent_pid: int) -> process_tree.Process:
        """The process that greeted, which must be a child of ``parent_pid``. Raises AdoptionFailed.
        Call it when there is something to read."""
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


class PendingAdoptions:
    """All that are awaited. Registers their descriptors with the warden's ``poll``, and sees to the
    end of each."""

    def __init__(self, poll: select.poll) -> None:
        self._poll = poll
        self._awaited: dict[int, Adoption] = {}  # by descriptor

    def __bool__(self) -> bool:
        return bool(self._awaited)

    @property
    def due(self) -> float:
        """When the first of them is given up; infinite if there is none."""
        return min((adoption.due for adoption in self._awaited.values()), default=math.inf)

    def add(self, request: Adopt, fd: int, account: Account, now: float) -> None:
        """``fd`` is now ours."""
        self._awaited[fd] = Adoption(request, fd, account, now + ADOPTION_SECONDS)
        self._poll.register(fd, select.POLLIN)

    def take_ready(self, ready: Iterable[int]) -> list[Adoption]:
        """Those of the descriptors that are awaited, for ``receive``."""
        return [self._take(fd) for fd in self._awaited.keys() & ready]

    def take_expired(self, now: float) -> list[Adoption]:
        """Those that came to nothing, closed."""
        return self._cancel_where(lambda adoption: now >= adoption.due)

    def cancel(self, tag: int) -> bool:
        """Nobody waits for it any more. Whether somebody did."""
        return bool(self._cancel_where(lambda adoption: adoption.request.tag == tag))

    def _cancel_where(self, whether: Callable[[Adoption], bool]) -> list[Adoption]:
        found = [
            self._take(fd) for fd, adoption in list(self._awaited.items()) if whether(adoption)
        ]
        for adoption in found:
            adoption.close()
        return found

    def _take(self, fd: int) -> Adoption:
        self._poll.unregister(fd)
        return self._awaited.pop(fd)
