"""The warden's stub in the daemon: spawn, signal, kill; ping; loss and restart.

Tasks. ``_keep`` is the only long one: it starts a warden, pings it until it is lost, buries it,
starts the next. Everything else happens in callbacks of the socket.

Loss. A warden is lost when its socket closes (user code may kill it), when it says something the
protocol does not know, or when it has not answered for ``dead_seconds``. Stopped is not dead: after
the first missed answer it gets CONT. Burying means KILL, wait until the kernel has reaped it (in a
PID namespace: until everything inside is dead), and without namespaces sweep what it leaves behind.
Only then are its programs reported lost: nobody hears "ended" of a program that still runs.

What can race. Requests in flight when the warden dies: their futures are resolved as LOST by
``_bury``, never left hanging. A warden's pid reused after somebody else reaped it: only ``Reaper``
waits, and it remembers whether the pid is still ours to signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
from typing import TYPE_CHECKING

from execd.proc import namespaces
from execd.proc.child import Child, Lost, resolve
from execd.proc.memory_stand_in import KilledProcess, MemoryStandIn
from execd.proc.messages import (
    Adopt,
    AtRest,
    Configure,
    Exited,
    Fault,
    Killed,
    LimitReached,
    Measured,
    MemoryShort,
    Ping,
    Pong,
    ProtocolError,
    Ready,
    Spawn,
    Spawned,
    SpawnFailed,
)
from execd.proc.warden_process import WardenProcess

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from execd.proc.loop_channel import LoopChannel
    from execd.proc.messages import Message
    from execd.proc.reaper import Reaper
    from execd.proc.spawn import Identity

log = logging.getLogger(__name__)

START_SECONDS = 15.0
# A warden that lived this long starts the back-off anew.
STABLE_SECONDS = 10.0
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 5.0
NO_RESERVE = Configure(0, 0)


class SpawnError(Exception):
    """The program could not be started. ``step`` is a name of ``spawn.STEP_NAMES``, ``error`` an
    errno or 0."""

    def __init__(self, message: str, step: str, error: int) -> None:
        super().__init__(message)
        self.step = step
        self.error = error


class WardenLost(Exception):
    """The warden died before it answered."""


class WardenClient:
    """Keeps one warden alive and talks to it. ``start`` and ``close`` bracket its life."""

    def __init__(
        self,
        view: Callable[[], namespaces.View],
        reaper: Reaper,
        *,
        module: str,
        policy: str,
        ping_seconds: float,
        dead_seconds: float,
        configuration: Configure = NO_RESERVE,
    ) -> None:
        """``view`` is asked before each start of a warden, in a thread. ``module``: whose ``main``
        is the warden's program.

        ``configuration``: each warden's.
        """
        self.loop = asyncio.get_running_loop()
        self.started: namespaces.Started | None = None
        self.root_capabilities: list[str] = []
        """What a command that runs as root gets, as the warden says (names without CAP_)."""
        self.restarts = 0
        self.missed_pings = 0
        self.up = asyncio.Event()
        self._view = view
        self._reaper = reaper
        self._module = module
        self._policy = policy
        self._ping_seconds = ping_seconds
        self._dead_seconds = dead_seconds
        self._configuration = configuration
        self._warden: WardenProcess | None = None
        self._channel: LoopChannel | None = None
        self._children: dict[int, Child] = {}
        self._next_tag = 1
        self._ping = 0
        self._unconfirmed: list[tuple[int, asyncio.Future[None]]] = []
        self._keeper: asyncio.Task[None] | None = None
        self._stand_in = MemoryStandIn(
            self.loop,
            configuration,
            warden_pid=lambda: self.pid,
            on_killed=self._on_killed_for_memory,
            end_all=self._kill_warden,
        )

    @property
    def pid(self) -> int | None:
        """The warden's pid, as the daemon sees it, while there is one."""
        return self.started.pid if self.started is not None and self.up.is_set() else None

    @property
    def has_namespace(self) -> bool:
        """Whether user code has a PID namespace of its own, as far as is known."""
        return self.started is not None and self.started.shape != "none"

    async def start(self) -> None:
        """Return once the first warden is up. Raises OSError or TimeoutError if none can be
        started."""
        await self._start_one()
        self._stand_in.start()
        self._keeper = asyncio.create_task(self._keep(), name="warden-keeper")

    async def close(self, within_seconds: float = math.inf) -> None:
        """End the warden and with it all user code. Whoever is not reaped within the time is left
        to the kernel."""
        if self._keeper is not None:
            until = self.loop.time() + within_seconds
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            await self._end_warden("closed", until)
        await self._stand_in.close()

    # Requests.

    async def spawn(
        self,
        *,
        argv: list[str],
        env: dict[str, str],
        cwd: str,
        stdio: list[int],
        descriptors: list[int],
        marker: str,
        limits: list[list[int]],
        processes: int,
        identity: Identity,
        on_limit: Callable[[str, int], None],
        terminal: bool = False,
        memory_bytes: int = 0,
        rests: bool = False,
        announce: bool = True,
        on_rest: Callable[[], None] | None = None,
    ) -> Child:
        """Start a program. Takes over ``descriptors`` and closes them, come what may.

        Raises SpawnError, WardenLost. Cancellation ends the program that was already asked for.
        """
        tag = self._next_tag
        self._next_tag += 1
        request = Spawn(
            tag=tag,
            argv=argv,
            env=env,
            cwd=cwd,
            stdio=stdio,
            terminal=terminal,
            limits=limits,
            processes=processes,
            marker=marker,
            uid=identity.uid,
            gid=identity.gid,
            groups=None if identity.groups is None else list(identity.groups),
            memory_bytes=memory_bytes,
            rests=rests,
            announce=announce,
        )
        return await self._begin(request, descriptors, on_limit, on_rest)

    async def adopt(
        self,
        *,
        greeting: int,
        marker: str,
        pipes: list[int],
        on_limit: Callable[[str, int], None],
        processes: int = 0,
        memory_bytes: int = 0,
        cpu_seconds: int = 0,
        rests: bool = False,
    ) -> Child:
        """Have the process that greets on the other end of ``greeting`` (a descriptor, taken over)
        for a program of ours.

        For the rest see messages.Adopt and ``spawn``.
        """
        tag = self._next_tag
        self._next_tag += 1
        return await self._begin(
            Adopt(tag, marker, pipes, processes, memory_bytes, cpu_seconds, rests),
            [greeting],
            on_limit,
        )

    async def _begin(
        self,
        request: Spawn | Adopt,
        descriptors: list[int],
        on_limit: Callable[[str, int], None],
        on_rest: Callable[[], None] | None = None,
    ) -> Child:
        tag = request.tag
        if self._channel is None:
            for fd in descriptors:
                os.close(fd)
            raise WardenLost
        child = Child(self, tag, on_limit, request.marker, on_rest)
        self._children[tag] = child
        try:
            self.send(request, descriptors)
        except OSError as error:
            self._children.pop(tag, None)
            raise SpawnError(
                f"no descriptor for a long request: {error.strerror}", "request", error.errno or 0
            ) from error
        try:
            answer = await child.started
        except asyncio.CancelledError:
            child.kill(0.0)
            self._children.pop(tag, None)
            raise
        if isinstance(answer, Spawned):
            child.pid, child.spawned_at = answer.pid, answer.at
            return child
        self._children.pop(tag, None)
        if isinstance(answer, Lost):
            raise WardenLost
        raise SpawnError(answer.message, answer.step, answer.error)

    def send(self, message: Message, descriptors: list[int] | None = None) -> None:
        """Send, or drop if the warden is gone: whoever waits for the answer is told LOST."""
        if self._channel is None:
            return
        self._channel.send(message, descriptors)

    def heard(self) -> asyncio.Future[None]:
        """Done when the warden has acted on all that was sent before, or is lost."""
        future: asyncio.Future[None] = self.loop.create_future()
        if self._channel is None:
            future.set_result(None)
            return future
        self._unconfirmed.append((self._ping + 1, future))
        self._send_ping()
        return future

    def register(self, tag: int, child: Child) -> None:
        self._children[tag] = child

    def unregister(self, tag: int) -> None:
        self._children.pop(tag, None)

    # The life of wardens.

    async def _start_one(self) -> None:
        warden = self._warden = WardenProcess(
            self._reaper,
            self._stand_in,
            ping_seconds=self._ping_seconds,
            dead_seconds=self._dead_seconds,
        )
        assert self._channel is None, "the end of a warden clears its channel"
        self._channel = await warden.start(self._launch, self._on_message)
        self.started = warden.started
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._channel.wait_for(self.up)
        except BaseException:
            await self._end_warden("did not start")
            raise
        if not self.up.is_set():
            await self._end_warden("died at start")
            raise OSError("the warden died while starting")

    def _launch(self, end: socket.socket) -> namespaces.Started:
        return namespaces.start(end, self._view(), self._policy, self._module)

    async def _keep(self) -> None:
        backoff = 0.0
        while True:
            assert self._warden is not None, "start() has started the first warden"
            born = self.loop.time()
            reason = await self._warden.watch(self._send_ping, self._count_missed)
            log.warning("warden lost", extra={"reason": reason, "children": len(self._children)})
            await self._end_warden(reason)
            backoff = 0.0 if self.loop.time() - born > STABLE_SECONDS else _longer(backoff)
            while True:
                await asyncio.sleep(backoff)
                try:
                    await self._start_one()
                except (OSError, TimeoutError):
                    log.exception("cannot start a warden")
                    backoff = _longer(backoff)
                else:
                    self.restarts += 1
                    break

    def _send_ping(self) -> None:
        self._ping += 1
        self.send(Ping(self._ping))

    def _count_missed(self) -> None:
        self.missed_pings += 1

    def _kill_warden(self) -> None:
        if self._warden is not None:
            self._warden.send_signal(signal.SIGKILL)

    async def _end_warden(self, reason: str, until: float = math.inf) -> None:
        """End the present warden; then report every program of the warden as lost.

        ``until``: a time of the loop's clock at which the wait ends, whether the warden is dead or
        not.
        """
        self.up.clear()
        self._stand_in.end()
        self._channel = None
        survivors = () if self._warden is None else await self._warden.end(reason, until)
        for _, future in self._unconfirmed:
            resolve(future, None)
        self._unconfirmed.clear()
        children, self._children = self._children, {}
        for child in children.values():
            child.lose(Lost(survivors))

    def _on_killed_for_memory(self, ended: KilledProcess) -> None:
        for child in list(self._children.values()):
            if child.marker in ended.environment:
                child.receive(LimitReached(child.tag, "memory", ended.rss_bytes))
                # The rest of the tree, as soon as the warden reads the request.
                child.kill(0.0)

    # Messages of the warden.

    def _on_message(self, message: Message) -> None:
        self._stand_in.end()
        self._dispatch(message)

    def _dispatch(self, message: Message) -> None:
        match message:
            case Pong(sequence):
                while self._unconfirmed and self._unconfirmed[0][0] <= sequence:
                    resolve(self._unconfirmed.pop(0)[1], None)
            case Ready(_, root_capabilities):
                self.root_capabilities = root_capabilities
                self.send(self._configuration)
                self.up.set()
            case MemoryShort(left_bytes, shared_bytes):
                figures = {"left_bytes": left_bytes, "shared_bytes": shared_bytes}
                log.warning("memory is short, and no execution is the reason", extra=figures)
            case Fault(text):
                log.error("the warden failed", extra={"traceback": text})
            case (
                Spawned()
                | SpawnFailed()
                | Exited()
                | Measured()
                | AtRest()
                | Killed()
                | LimitReached()
            ):
                child = self._children.get(message.tag)
                if child is not None:
                    child.receive(message)
            case _:
                raise ProtocolError(f"{type(message).__name__} is not for the daemon")


def _longer(backoff_seconds: float) -> float:
    return min(max(backoff_seconds * 2, FIRST_BACKOFF_SECONDS), MAX_BACKOFF_SECONDS)
