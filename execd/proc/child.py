"""One program of the warden, as the daemon holds the program: requests out, answers in.

States of the futures. ``started``, ``exited`` and ``killed`` are each resolved once, by the
warden's answer or by ``lose``, and always in the loop's thread. ``Exited`` also resolves
``started``: the warden leaves out ``Spawned`` for a program with a very short life.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from execd.proc.messages import (
    CellKilled,
    Exited,
    Kill,
    KillCell,
    Killed,
    LimitReached,
    MarkActive,
    Measure,
    Measured,
    Signal,
    Spawned,
    SpawnFailed,
    StartupDone,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from execd.proc.messages import Message, Scope

T = TypeVar("T")
ChildMessage: TypeAlias = (
    Spawned | SpawnFailed | Exited | Measured | StartupDone | Killed | CellKilled | LimitReached
)
"""The messages of the warden about a program."""


class Connection(Protocol):
    """The way to the warden, shared by all children."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def send(self, message: Message) -> None: ...

    def register(self, tag: int, child: Child) -> None:
        """Pass the warden's messages for ``tag`` to the child."""

    def unregister(self, tag: int) -> None:
        """Pass no further messages for ``tag``."""


class Lost:
    """Stands in place of an answer: the warden died, and its programs with the warden."""

    def __init__(self, survivors: tuple[int, ...] = ()) -> None:
        """``survivors``: pids, in the daemon's PID namespace, of processes that outlived the
        wait."""
        self.survivors = survivors


class Child:
    """A program under the warden. ``pid``: as user code sees the program.

    Callers wait for the futures and neither set nor cancel them.
    """

    def __init__(
        self,
        connection: Connection,
        tag: int,
        on_limit: Callable[[str, int], None],
        marker: str,
        on_startup_done: Callable[[], None] | None,
    ) -> None:
        self.pid = 0
        self.spawned_at = 0.0
        """Seconds of the monotonic clock."""
        self.is_direct = False
        """See ``messages.Spawned``."""
        self.started: asyncio.Future[Spawned | SpawnFailed | Exited | Lost] = (
            connection.loop.create_future()
        )
        self.exited: asyncio.Future[Exited | Lost] = connection.loop.create_future()
        """Done when the leader has been reaped."""
        self.killed: asyncio.Future[Killed | Lost] = connection.loop.create_future()
        """Done when a kill, or the end for a limit, has ended the tree or has given up."""
        self._measuring: deque[asyncio.Future[Measured]] = deque()
        self._killing_cells: dict[int, asyncio.Future[CellKilled | Lost]] = {}
        """By mark: the cells whose processes are being ended."""
        self._connection: Final = connection
        assert tag > 0, "tag 0 stands for a message without a tag"
        self.tag: Final = tag
        self.marker: Final = marker
        """See ``messages.Spawn``."""
        self._on_limit: Callable[[str, int], None] | None = on_limit
        self._on_startup_done = on_startup_done

    def mark_active(self) -> None:
        """Tell the warden: the program, idle so far, begins to run user code."""
        self._connection.send(MarkActive(self.tag))

    def signal(self, number: int, *, scope: Scope, mark: int = 0) -> None:
        """Signal the processes of ``scope``. For ``mark`` see ``messages.Signal``.

        The leader gets nothing after its end. Group, session and tree get the signal as long as a
        process of them lives.
        """
        self._connection.send(Signal(self.tag, number, scope, mark))

    def kill(self, grace_seconds: float, *, unless_ended_before: float = 0.0) -> None:
        """Begin to end the tree, or shorten the grace of an end that has begun.

        For ``unless_ended_before`` see ``messages.Kill``.
        """
        self._connection.send(Kill(self.tag, grace_seconds, unless_ended_before))

    def kill_cell(self, mark: int, grace_seconds: float) -> asyncio.Future[CellKilled | Lost]:
        """Begin to end the processes of a cell, or shorten the grace: see ``messages.KillCell``.

        The future stays pending if no warden is there: wait for ``exited`` as well.
        """
        killing = self._killing_cells.get(mark)
        if killing is None:
            killing = self._killing_cells[mark] = self._connection.loop.create_future()
        self._connection.send(KillCell(self.tag, mark, grace_seconds))
        return killing

    def measure(self, *, anew: bool = False, work_began: float = 0.0) -> asyncio.Future[Measured]:
        """Return a future for the figures of the tree; with ``anew`` also begin a new count.

        For ``work_began`` see ``messages.Measure``.
        The future stays pending if the program has ended: wait for ``exited`` as well.
        """
        measuring: asyncio.Future[Measured] = self._connection.loop.create_future()
        self._measuring.append(measuring)
        self._connection.send(Measure(self.tag, anew, work_began))
        return measuring

    def release(self) -> None:
        """Receive no further messages. Descendants of the program may live on."""
        # The owner may keep this object. Without the two references here no reference circle keeps
        # the owner alive until the next, rare run of the garbage collector.
        self._on_startup_done = self._on_limit = None
        self._connection.unregister(self.tag)

    def kill_rest(self, grace_seconds: float) -> asyncio.Future[Killed | Lost]:
        """End the descendants that outlived a released program.

        The warden keeps the job while descendants live. A tag without a job gets no answer but the
        loss of the warden.
        """
        if self.killed.done():
            self.killed = self._connection.loop.create_future()
        self._connection.register(self.tag, self)
        self.kill(grace_seconds)
        return self.killed

    def receive(self, message: ChildMessage) -> None:
        """Take a message of the warden for this child's tag."""
        assert message.tag == self.tag
        match message:
            case Spawned() | SpawnFailed():
                resolve(self.started, message)
            case Exited():
                resolve(self.started, message)
                resolve(self.exited, message)
            case Measured():
                if self._measuring:
                    resolve(self._measuring.popleft(), message)
            case StartupDone() if self._on_startup_done is not None:
                self._on_startup_done()
            case Killed():
                resolve(self.killed, message)
            case CellKilled(_, mark):
                if mark in self._killing_cells:
                    resolve(self._killing_cells.pop(mark), message)
            case LimitReached(_, limit, value) if self._on_limit is not None:
                self._on_limit(limit, value)

    def lose(self, lost: Lost) -> None:
        """Resolve every pending future of the life cycle with ``lost``."""
        resolve(self.started, lost)
        resolve(self.exited, lost)
        resolve(self.killed, lost)
        for killing in self._killing_cells.values():
            resolve(killing, lost)


def resolve(future: asyncio.Future[T], result: T) -> None:
    """Set the result, unless the future is done already."""
    if not future.done():
        future.set_result(result)
