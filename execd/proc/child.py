"""One program the warden started, as the daemon holds it: what may be asked of the warden for it,
what has been heard of it."""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from execd.proc.messages import (
    AtRest,
    Exited,
    Kill,
    Killed,
    LimitReached,
    Measure,
    Measured,
    Signal,
    Spawned,
    SpawnFailed,
    Wake,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from execd.proc.messages import Message, Scope

T = TypeVar("T")


class Connection(Protocol):
    """The way to the warden, which all children share."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def send(self, message: Message) -> None: ...

    def register(self, tag: int, child: Child) -> None:
        """Pass on what the warden says of ``tag``."""

    def unregister(self, tag: int) -> None:
        """Pass on nothing more."""


class Lost:
    """In place of an answer: the warden died, and every program with it."""

    def __init__(self, survivors: tuple[int, ...] = ()) -> None:
        self.survivors = survivors


class Child:
    """A program the warden started. ``pid`` as user code sees it. The futures are for waiting on,
    not for setting or cancelling."""

    def __init__(
        self,
        connection: Connection,
        tag: int,
        on_limit: Callable[[str, int], None],
        marker: str,
        on_rest: Callable[[], None] | None,
    ) -> None:
        self.pid = 0
        self.spawned_at = 0.0
        """On the monotonic clock."""
        self.started: asyncio.Future[Spawned | SpawnFailed | Lost] = connection.loop.create_future()
        self.exited: asyncio.Future[Exited | Lost] = connection.loop.create_future()
        """Done when the leader has been reaped."""
        self.killed: asyncio.Future[Killed | Lost] = connection.loop.create_future()
        """Done when a kill, or what a limit began, has ended the tree or given up."""
        self._measuring: deque[asyncio.Future[Measured]] = deque()
        self._connection: Final = connection
        self.tag: Final = tag
        self.marker: Final = os.fsencode(marker)
        """As in messages.Spawn."""
        self._on_limit: Callable[[str, int], None] | None = on_limit
        self._on_rest = on_rest

    def wake(self) -> None:
        """It has rested, and begins to run user code."""
        self._connection.send(Wake(self.tag))

    def signal(self, number: int, *, scope: Scope) -> None:
        """Signal the program or its process group, after its end nothing; or whatever there is of
        its session or tree."""
        self._connection.send(Signal(self.tag, number, scope))

    def kill(self, grace_seconds: float, *, unless_ended_before: float = 0.0) -> None:
        """Begin to end the tree, or hasten an end that has begun. For ``unless_ended_before`` see
        messages.Kill."""
        self._connection.send(Kill(self.tag, grace_seconds, unless_ended_before))

    def measure(self, *, anew: bool = False) -> asyncio.Future[Measured]:
        """What its tree uses, and, with ``anew``, begin a new count. Never done if it has ended:
        wait for that as well."""
        measuring: asyncio.Future[Measured] = self._connection.loop.create_future()
        self._measuring.append(measuring)
        self._connection.send(Measure(self.tag, anew))
        return measuring

    def release(self) -> None:
        """The daemon wants to hear no more of it. Descendants may live on."""
        # The owner may hold on to this: a circle would keep both until the garbage collector's rare
        # visit.
        self._on_rest = self._on_limit = None
        self._connection.unregister(self.tag)

    def kill_rest(self, grace_seconds: float) -> asyncio.Future[Killed | Lost]:
        """End what lives on of one that was released. The warden keeps its job for as long; it
        knows no other by this tag."""
        if self.killed.done():
            self.killed = self._connection.loop.create_future()
        self._connection.register(self.tag, self)
        self.kill(grace_seconds)
        return self.killed

    def receive(
        self, message: Spawned | SpawnFailed | Exited | Measured | AtRest | Killed | LimitReached
    ) -> None:
        """The client passes on what the warden says."""
        match message:
            case Spawned() | SpawnFailed():
                resolve(self.started, message)
            case Exited():
                resolve(self.started, Spawned(message.tag, message.pid, message.spawned_at))
                resolve(self.exited, message)
            case Measured():
                if self._measuring:
                    resolve(self._measuring.popleft(), message)
            case AtRest() if self._on_rest is not None:
                self._on_rest()
            case Killed():
                resolve(self.killed, message)
            case LimitReached(_, limit, value) if self._on_limit is not None:
                self._on_limit(limit, value)

    def lose(self, lost: Lost) -> None:
        resolve(self.started, lost)
        resolve(self.exited, lost)
        resolve(self.killed, lost)


def resolve(future: asyncio.Future[T], result: T) -> None:
    """Unless it is done already."""
    if not future.done():
        future.set_result(result)
