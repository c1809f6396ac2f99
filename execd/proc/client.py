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
import socket
from typing import TYPE_CHECKING

from execd.proc import namespaces, self_process, spawn
from execd.proc.channel import Channel, Closed
from execd.proc.child import Child, Lost, resolve
from execd.proc.memory_stand_in import Ended, MemoryStandIn
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

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.proc.messages import Message
    from execd.proc.reaper import Reaper

log = logging.getLogger(__name__)

START_SECONDS = 15.0
# For what a warden without namespaces leaves behind.
SWEEP_SECONDS = 5.0
BURY_SECONDS = 10.0
# A warden that lived this long starts the back-off anew.
STABLE_SECONDS = 10.0
# So many more tasks than at the warden's start can starve the warden; then silence is judged after
# so much more time.
STARVING_TASKS, STARVED_FACTOR = 64, 6.0
# So long after an unanswered ping the daemon looks at memory itself. A freeze of a bomb in gVisor
# takes 0.2 s as a rule.
PATIENCE_SECONDS = 0.5
# Between two SIGCONT to a warden that user code stops again and again.
CONTINUE_SECONDS = 0.02
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
        self._channel: Channel | None = None
        self._children: dict[int, Child] = {}
        self._next_tag = 1
        self._ping = 0
        self._heard = False
        self._acted_on: list[tuple[int, asyncio.Future[None]]] = []
        self._lost: asyncio.Event = asyncio.Event()
        self._spared: frozenset[int] = frozenset()
        self._usual_tasks = 0
        self._continuing: asyncio.TimerHandle | None = None
        self._continued_at = -math.inf
        self._keeper: asyncio.Task[None] | None = None
        self._stand_in = MemoryStandIn(
            self.loop,
            configuration,
            warden_pid=lambda: self.pid,
            on_ended=self._on_ended_for_memory,
            end_all=lambda: self._signal_warden(signal.SIGKILL),
        )
        self._patience: asyncio.TimerHandle | None = None

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
            await self._bury("closed", until)
        await self._stand_in.close()

    # Requests.

    async def launch(
        self,
        request: Spawn | Adopt,
        descriptors: list[int],
        on_limit: Callable[[str, int], None],
        on_rest: Callable[[], None] | None = None,
    ) -> Child:
        """Start a program, or take a process that is the warden's child for a program. The client
        gives the request its tag, and closes ``descriptors``, whatever happens.

        ``on_limit``: called with the name and the value of a limit that the tree exceeded.
        ``on_rest``: called when the young program waits rather than computes. Raises SpawnError,
        WardenLost. Cancellation ends a program that was already asked for.
        """
        channel = self._channel
        if channel is None:
            for fd in descriptors:
                os.close(fd)
            raise WardenLost
        tag = self._next_tag
        self._next_tag += 1
        child = Child(self, tag, on_limit, request.marker, on_rest)
        self._children[tag] = child
        try:
            channel.send(request._replace(tag=tag), descriptors)
        except Closed:  # the keeper of the warden resolves ``child.started`` with Lost
            self._lost.set()
        except OSError as error:
            self._children.pop(tag, None)
            raise SpawnError(
                f"no descriptor for a long request: {error.strerror}", "request", error.errno or 0
            ) from error
        else:
            self._send_rest_later(channel)
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

    def send(self, message: Message) -> None:
        """Send, or drop if the warden is gone: whoever waits for the answer is told LOST."""
        if self._channel is None:
            return
        try:
            self._channel.send(message)
        except Closed:
            self._lost.set()
            return
        self._send_rest_later(self._channel)

    def _send_rest_later(self, channel: Channel) -> None:
        if channel.queued:
            self.loop.add_writer(channel.fileno(), self._on_writable)

    def heard(self) -> asyncio.Future[None]:
        """Done when the warden has acted on all that was sent before, or is lost."""
        future: asyncio.Future[None] = self.loop.create_future()
        if self._channel is None:
            future.set_result(None)
            return future
        self._ping += 1
        self._acted_on.append((self._ping, future))
        self.send(Ping(self._ping))
        return future

    def hear(self, tag: int, child: Child) -> None:
        self._children[tag] = child

    def forget(self, tag: int) -> None:
        self._children.pop(tag, None)

    # The life of wardens.

    async def _start_one(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                # In a thread: it blocks until the exec, some 50 ms in gVisor, and `GET /` must not.
                starting = asyncio.ensure_future(asyncio.to_thread(self._start_process, theirs))
                try:
                    self.started = await asyncio.shield(starting)
                except asyncio.CancelledError:
                    # The thread goes on, and works with ``theirs``. What it starts is for ``close``
                    # to bury.
                    self.started = await starting
                    self._reaper.watch(self.started.pid)
                    raise
            self._reaper.watch(self.started.pid, self._on_warden_stopped)
            self._usual_tasks = spawn.count_tasks()
            if self.started.failed_pid is not None:
                await self._reaper.collect(self.started.failed_pid, BURY_SECONDS)
            if self.started.shape == "none":
                spawn.set_subreaper()
                self._spared = frozenset(
                    p.pid for p in await asyncio.to_thread(self_process.descendants, SWEEP_SECONDS)
                ) - {self.started.pid}
            channel = Channel(ours)
        except BaseException as error:
            ours.close()
            if isinstance(error, spawn.StepFailed) and error.pid is not None:
                await self._reaper.collect(error.pid, BURY_SECONDS)
            raise
        self._channel = channel
        self._lost = asyncio.Event()
        self._ping = 0
        self.loop.add_reader(channel.fileno(), self._on_readable)
        try:
            async with asyncio.timeout(START_SECONDS):
                ready, lost = (
                    asyncio.create_task(self.up.wait()),
                    asyncio.create_task(self._lost.wait()),
                )
                try:
                    await asyncio.wait((ready, lost), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    ready.cancel()
                    lost.cancel()
        except BaseException:
            await self._bury("did not start")
            raise
        if not self.up.is_set():
            await self._bury("died at start")
            raise OSError("the warden died while starting")

    def _start_process(self, end: socket.socket) -> namespaces.Started:
        return namespaces.start(end, self._view(), self._policy, self._module)

    async def _keep(self) -> None:
        backoff = 0.0
        while True:
            born = self.loop.time()
            reason = await self._watch()
            log.warning("warden lost", extra={"reason": reason, "children": len(self._children)})
            await self._bury(reason)
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

    async def _watch(self) -> str:
        """Ping until the warden is lost; return why.

        Silence is the sum of what was waited for, not a difference of clock times: when the whole
        pod was paused (a snapshot, a frozen cgroup), the clock says minutes and nobody was silent.

        A silent warden beside a crowd of new processes is starved rather than dead: the warden is
        about to end a fork bomb, and killing the warden would end the neighbours too. So a starved
        warden has STARVED_FACTOR times as long.
        """
        silent_seconds = 0.0
        while silent_seconds < self._dead_seconds or (
            silent_seconds < self._dead_seconds * STARVED_FACTOR
            and spawn.count_tasks() > self._usual_tasks + STARVING_TASKS
        ):
            self._heard = False
            self._ping += 1
            self.send(Ping(self._ping))
            self._patience = self.loop.call_later(PATIENCE_SECONDS, self._on_silence)
            if silent_seconds:
                self._signal_warden(signal.SIGCONT)
            pause = min(
                self._ping_seconds, max(self._dead_seconds - silent_seconds, self._dead_seconds / 2)
            )
            try:
                async with asyncio.timeout(pause):
                    await self._lost.wait()
                return "its socket closed"
            except TimeoutError:
                silent_seconds = 0.0 if self._heard else silent_seconds + pause
                self.missed_pings += not self._heard
        return "it did not answer"

    def _on_warden_stopped(self) -> None:
        """User code has stopped the warden, which gVisor allows. Continued at once, and in a flood
        at a bounded rate."""
        self._stand_in.begin()
        if self._continuing is None:
            pause = max(0.0, self._continued_at + CONTINUE_SECONDS - self.loop.time())
            self._continuing = self.loop.call_later(pause, self._continue_warden)

    def _continue_warden(self) -> None:
        self._continuing = None
        self._continued_at = self.loop.time()
        self._signal_warden(signal.SIGCONT)

    def _on_silence(self) -> None:
        if not self._heard:
            self._stand_in.begin()

    def _on_ended_for_memory(self, ended: Ended) -> None:
        for child in list(self._children.values()):
            if child.marker in ended.environment:
                child.answer(LimitReached(child.tag, "memory", ended.rss_bytes))
                child.kill(0.0)  # the rest of its tree, as soon as the warden hears it

    def _signal_warden(self, number: int) -> None:
        if self.started is not None:
            self._reaper.send_signal(self.started.pid, number)

    async def _bury(self, reason: str, until: float = math.inf) -> None:
        """``until``: on the loop's clock. By then it is over, dead or not."""
        self.up.clear()
        self._stand_in.end()
        if self._patience is not None:
            self._patience.cancel()
        channel, self._channel = self._channel, None
        if channel is not None:
            self.loop.remove_reader(channel.fileno())
            self.loop.remove_writer(channel.fileno())
            channel.close()
        survivors: tuple[int, ...] = ()
        if self._continuing is not None:
            self._continuing.cancel()
            self._continuing = None
        if self.started is not None:
            pid = self.started.pid
            self._reaper.send_signal(pid, signal.SIGKILL)
            if not await self._reaper.wait_gone(pid, min(BURY_SECONDS, until - self.loop.time())):
                survivors = (pid,)
                log.error("warden cannot be killed", extra={"warden_pid": pid, "reason": reason})
            if self.started.shape == "none":
                sweep_seconds = max(0.0, min(SWEEP_SECONDS, until - self.loop.time()))
                survivors += await asyncio.to_thread(
                    self_process.sweep, sweep_seconds, self._spared
                )
        for _, future in self._acted_on:
            resolve(future, None)
        self._acted_on.clear()
        children, self._children = self._children, {}
        for child in children.values():
            child.lose(Lost(survivors))

    # Callbacks of the socket.

    def _on_readable(self) -> None:
        assert self._channel is not None
        try:
            while (received := self._channel.receive()) is not None:
                message, descriptors = received
                for fd in descriptors:  # the warden has no business sending any
                    if fd >= 0:
                        os.close(fd)
                self._heard = True
                self._stand_in.end()
                self._dispatch(message)
        except Closed:
            self._stop_listening()
        except ProtocolError:
            log.exception("the warden broke the protocol")
            self._stop_listening()

    def _stop_listening(self) -> None:
        assert self._channel is not None
        self.loop.remove_reader(self._channel.fileno())
        self._lost.set()

    def _on_writable(self) -> None:
        assert self._channel is not None
        try:
            self._channel.flush()
        except Closed:
            self._lost.set()
        if not self._channel.queued or self._lost.is_set():
            self.loop.remove_writer(self._channel.fileno())

    def _dispatch(self, message: Message) -> None:
        match message:
            case Pong(sequence):
                while self._acted_on and self._acted_on[0][0] <= sequence:
                    resolve(self._acted_on.pop(0)[1], None)
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
                    child.answer(message)
            case _:
                raise ProtocolError(f"{type(message).__name__} is not for the daemon")


def _longer(backoff_seconds: float) -> float:
    return min(max(backoff_seconds * 2, FIRST_BACKOFF_SECONDS), MAX_BACKOFF_SECONDS)
