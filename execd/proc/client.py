"""The daemon's stub of the warden: requests, answers, and the replacement of a lost warden.

Processes. The warden is a child of the daemon and the parent of all user code. ``WardenProcess`` is
the life of one warden: start, pings, loss, end. This module holds everything with a longer life
than one warden: the children and the back-off. A reset ends one warden and starts the next on
purpose (``halt``, ``resume``): no loss, no back-off.

Tasks. ``_keep`` is the only long task: wait until the warden is lost, end the process, start the
next warden. All requests run in the tasks of their callers. Answers come in callbacks of the
socket.

Loss. Programs are reported as lost only after ``WardenProcess.end`` has returned. So a caller reads
"lost" of a program only when the program no longer runs, or when its pid is among the survivors.

What can race.

* A request against the loss of the warden. If the request is sent first, ``_end_warden`` resolves
  the child's futures with ``Lost``. If the warden is lost first, ``_channel`` is None and the
  request raises WardenLost at once. No future stays pending.
* An answer against the cancellation of a request. If the cancellation comes first, the program gets
  KILL, and the answer meets an unknown tag and is dropped. If the answer comes first, the caller
  has the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
from typing import TYPE_CHECKING

from execd.proc import messages, namespaces, totals_file, tree_mark
from execd.proc.child import Child, Lost, resolve
from execd.proc.memory_stand_in import MemoryStandIn
from execd.proc.warden_process import WardenProcess

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from execd.proc.child import ChildMessage
    from execd.proc.loop_channel import LoopChannel
    from execd.proc.messages import Message
    from execd.proc.reaper import Reaper
    from execd.proc.totals_file import Totals

log = logging.getLogger(__name__)

START_SECONDS = 15.0
# A warden that lived for this long resets the back-off.
STABLE_SECONDS = 10.0
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 5.0
NO_RESERVE = messages.Configure(0, 0)


class SpawnError(Exception):
    """The program could not be started.

    ``step``: a name of ``spawn.STEP_NAMES``. ``error``: an errno, or 0 where no system call failed.
    """

    def __init__(self, message: str, step: str, error: int) -> None:
        super().__init__(message)
        self.step = step
        self.error = error


class WardenLost(Exception):
    """The warden died before the answer came."""


class WardenClient:
    """Keeps one warden alive and sends requests. ``start`` and ``close`` bracket its life."""

    def __init__(
        self,
        view: Callable[[], namespaces.View],
        reaper: Reaper,
        *,
        module: str,
        policy: str,
        ping_seconds: float,
        dead_seconds: float,
        configuration: messages.Configure = NO_RESERVE,
        record_lag: Callable[[float], None] = lambda _seconds: None,
        on_memory: Callable[[], None] = lambda: None,
    ) -> None:
        """``view`` is called before each start of a warden, in a thread. ``module``: the module
        with the warden's ``main``. ``policy``: see ``namespaces.start``.

        ``ping_seconds``: the pause between two pings. ``dead_seconds``: the silence after which a
        warden is replaced. ``configuration``: sent to each warden when the warden is ready.
        ``record_lag``: see ``WardenProcess.watch``. ``on_memory`` is called when something ends for
        memory, or should and cannot.
        """
        self.loop = asyncio.get_running_loop()
        self.started: namespaces.Started | None = None
        self.root_capabilities: list[str] = []
        """The capabilities of a root command, as the warden reports them: names without CAP_."""
        self.restarts = 0
        self.missed_pings = 0
        self.killed_processes = 0
        """Processes that got SIGKILL when a tree was ended, over all wardens."""
        self.up = asyncio.Event()
        self._view = view
        self._reaper = reaper
        self._module = module
        self._policy = policy
        self._ping_seconds = ping_seconds
        self._dead_seconds = dead_seconds
        self._configuration = configuration
        self._record_lag = record_lag
        self._on_memory = on_memory
        self._warden: WardenProcess | None = None
        self._channel: LoopChannel | None = None
        self._children: dict[int, Child] = {}
        self._last_tag = 0
        self._marks = tree_mark.new_daemon() if tree_mark.is_possible() else None
        """None: no tree has a mark."""
        self._ping = 0
        self._unconfirmed: list[tuple[int, asyncio.Future[None]]] = []
        self._reading: dict[int, asyncio.Future[messages.Written | None]] = {}
        """By sequence number: the requests for ``Written`` without an answer."""
        self._n_reads = 0
        self._totals_fd = -1
        self._keeper: asyncio.Task[None] | None = None
        self._stand_in = MemoryStandIn(
            self.loop,
            configuration,
            runtime_bytes=lambda: self.runtime_bytes,
            end_all=self._end_for_memory,
        )

    @property
    def pid(self) -> int | None:
        """The warden's pid in the daemon's PID namespace; None while no warden is up."""
        return self.started.pid if self.started is not None and self.up.is_set() else None

    @property
    def has_namespace(self) -> bool:
        """Whether the latest warden runs user code in a PID namespace of its own."""
        return self.started is not None and self.started.shape != "none"

    async def start(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Start the first warden; return once the warden is up.

        ``meanwhile`` is called while the warden's interpreter starts, and may block. Raises OSError
        or TimeoutError if no warden can be started.
        """
        assert self._keeper is None, "started twice"
        await self._start_one(meanwhile)
        self._stand_in.start()
        self._keeper = asyncio.create_task(self._keep(), name="warden-keeper")

    async def close(self, within_seconds: float = math.inf) -> None:
        """End the warden, and all user code with the warden.

        ``within_seconds`` bounds the wait. A process that nobody has reaped by then is left to the
        kernel.
        """
        if self._keeper is not None:
            until = self.loop.time() + within_seconds
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            await self._end_warden("closed", until)
        self._stand_in.close()

    async def halt(self) -> tuple[int, ...]:
        """End the warden on purpose, and all user code with the warden, and start no other warden
        until ``resume``. Return the processes that live on. A second call completes a call that was
        cancelled."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        return await self._end_warden("halted")

    async def resume(self) -> None:
        """Start a warden after ``halt``, and keep one alive from now on, also if the first start
        fails. Raises OSError, TimeoutError: further starts follow, with a back-off."""
        assert self._keeper is None or self._keeper.done(), "resume() follows halt()"
        try:
            await self._start_one()
        finally:
            self._keeper = asyncio.create_task(self._keep(), name="warden-keeper")

    # Requests.

    def reconfigure(self, configuration: messages.Configure) -> None:
        """The pod has another size. See ``pod_memory``."""
        self._configuration = configuration
        self._stand_in.configure(configuration)
        if self.up.is_set():  # a warden gets the configuration when ready
            self.send(configuration)

    def new_tag(self) -> int:
        """Return a number for a program that no other program has had."""
        self._last_tag += 1
        return self._last_tag

    def mark_of(self, tag: int) -> int:
        """Return the mark of the program's tree; 0: trees have no marks."""
        return 0 if self._marks is None else tree_mark.of_tree(self._marks, tag)

    async def launch(
        self,
        request: messages.Spawn | messages.Adopt,
        descriptors: list[int],
        on_limit: Callable[[str, int], None],
        on_startup_done: Callable[[], None] | None = None,
    ) -> Child:
        """Start a program, or adopt a child of the warden as a program: the process that sends on
        the other end of the first descriptor.

        ``request.tag`` is a ``new_tag``. The client closes ``descriptors``, also on failure.
        ``on_limit``: called with the name and the value of a limit that the tree exceeded.
        ``on_startup_done``: called when the start-up of the program is over. Raises SpawnError,
        WardenLost. A cancelled call ends the program that the warden may have started.
        """
        if self._channel is None:
            for fd in descriptors:
                os.close(fd)
            raise WardenLost
        tag = request.tag
        assert tag not in self._children, "each request has a tag of its own"
        if self._marks is not None and isinstance(request, messages.Spawn):
            # What runs no user code has no mark: an orphan of the zygote is a worker to be adopted.
            mark = None if request.is_idle else tree_mark.of_tree(self._marks, tag)
            request = request._replace(limits=[*request.limits, tree_mark.limit(mark)])
        child = Child(self, tag, on_limit, request.marker, on_startup_done)
        self._children[tag] = child
        try:
            self._channel.send(request, descriptors)
        except OSError as error:
            self._children.pop(tag, None)
            raise SpawnError(
                f"no descriptor for a long request: {error.strerror}", "request", error.errno or 0
            ) from error
        except ValueError as error:
            self._children.pop(tag, None)
            raise SpawnError(str(error), "request", 0) from error
        try:
            answer = await child.started
        except asyncio.CancelledError:
            child.kill(0.0)
            self._children.pop(tag, None)
            raise
        if isinstance(answer, (messages.Spawned, messages.Exited)):
            child.pid, child.spawned_at = answer.pid, answer.spawned_at
            child.is_direct = answer.is_direct
            return child
        self._children.pop(tag, None)
        if isinstance(answer, Lost):
            raise WardenLost
        raise SpawnError(answer.message, answer.step, answer.error)

    def send(self, message: Message) -> None:
        """Send the message, or drop the message while no warden is there.

        The loss of a warden resolves the futures of all requests, so a dropped request does not
        leave a caller waiting.
        """
        if self._channel is not None:
            self._channel.send(message)

    def confirm_sent(self) -> asyncio.Future[None]:
        """Return a future that is done once the warden has acted on every message sent before.

        The future is also done when the warden is lost.
        """
        future: asyncio.Future[None] = self.loop.create_future()
        if self._channel is None:
            future.set_result(None)
            return future
        self._unconfirmed.append((self._ping + 1, future))
        self._send_ping()
        return future

    def read_written(self, *, is_urgent: bool = False) -> asyncio.Future[messages.Written | None]:
        """Return a future for what each tree has written; None if the warden is lost.
        ``is_urgent``: see ``ReadWritten``."""
        future: asyncio.Future[messages.Written | None] = self.loop.create_future()
        if self._channel is None:
            future.set_result(None)
            return future
        self._n_reads += 1
        self._reading[self._n_reads] = future
        self._channel.send(messages.ReadWritten(self._n_reads, is_urgent))
        return future

    def read_totals(self) -> Totals | None:
        """Return the figures of all trees together, as of the latest scan; None while no warden is
        up."""
        return totals_file.read(self._totals_fd) if self.up.is_set() else None

    @property
    def runtime_bytes(self) -> int:
        """The estimate of gVisor's own memory, as of the latest scan."""
        totals = totals_file.read(self._totals_fd)
        return 0 if totals is None else totals.runtime_bytes

    def end_tree(self, tag: int) -> None:
        """End a tree of ``read_written`` that no execution waits for."""
        self.send(messages.Kill(tag, 0.0))

    def register(self, tag: int, child: Child) -> None:
        assert tag == child.tag
        self._children[tag] = child

    def unregister(self, tag: int) -> None:
        self._children.pop(tag, None)

    # The replacement of lost wardens.

    async def _start_one(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Start a warden and wait until the warden is ready. Raises OSError, TimeoutError."""
        warden = self._warden = WardenProcess(
            self._reaper,
            self._stand_in,
            ping_seconds=self._ping_seconds,
            dead_seconds=self._dead_seconds,
        )
        assert self._channel is None, "the end of a warden clears its channel"
        assert not self.up.is_set(), "the end of a warden clears the event"
        self._channel = await warden.start(self._launch, self._on_message)
        self.started = warden.started
        try:
            meanwhile()
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
        """Wait for each loss and start the next warden, with a back-off after quick losses."""
        backoff = 0.0 if self.up.is_set() else FIRST_BACKOFF_SECONDS
        while True:
            assert self._warden is not None, "start() has started the first warden"
            born = self.loop.time()
            if self.up.is_set():
                reason = await self._warden.watch(
                    self._send_ping, self._count_missed, self._record_lag
                )
                extra = {"reason": reason, "children": len(self._children)}
                log.warning("warden lost", extra=extra)
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

    def _configure(self) -> None:
        if self._channel is None:
            return
        descriptors: list[int] = []
        with contextlib.suppress(OSError):  # without the file there are no totals
            self._totals_fd = totals_file.make()
            descriptors = [os.dup(self._totals_fd)]
        self._channel.send(self._configuration, descriptors)

    def _send_ping(self) -> None:
        self._ping += 1
        assert not self._unconfirmed or self._unconfirmed[-1][0] <= self._ping, "out of order"
        self.send(messages.Ping(self._ping))

    def _count_missed(self) -> None:
        self.missed_pings += 1

    def _kill_warden(self) -> None:
        if self._warden is not None:
            self._warden.send_signal(signal.SIGKILL)

    async def _end_warden(self, reason: str, until: float = math.inf) -> tuple[int, ...]:
        """End the present warden; then report every program of the warden as lost. Return the
        processes that live on.

        ``until``: a time of the loop's clock at which the wait ends, whether the warden is dead or
        not. A second call completes a call that was cancelled.
        """
        self.up.clear()
        self._stand_in.end()
        self._channel = None
        survivors = () if self._warden is None else await self._warden.end(reason, until)
        for _, future in self._unconfirmed:
            resolve(future, None)
        self._unconfirmed.clear()
        for reading in self._reading.values():
            resolve(reading, None)
        self._reading.clear()
        if self._totals_fd >= 0:
            os.close(self._totals_fd)
            self._totals_fd = -1
        children, self._children = self._children, {}
        for child in children.values():
            child.lose(Lost(survivors))
        return survivors

    def _end_for_memory(self) -> None:
        """The warden is silent, and memory is nearly gone."""
        self._on_memory()
        self._kill_warden()

    # Messages of the warden.

    def _on_message(self, message: Message) -> None:
        self._stand_in.end()
        match message:
            case (
                messages.Spawned()
                | messages.SpawnFailed()
                | messages.Exited()
                | messages.Measured()
                | messages.StartupDone()
            ):
                self._pass_on(message)
            case messages.Pong(sequence, is_quiet):
                if self._warden is not None and sequence == self._ping:
                    # An earlier ping may have come before a request.
                    self._warden.record_pong(is_quiet=is_quiet)
                while self._unconfirmed and self._unconfirmed[0][0] <= sequence:
                    resolve(self._unconfirmed.pop(0)[1], None)
            case messages.Written(sequence, tags):
                if any(len(figures) != len(tags) for figures in message[2:]):
                    raise messages.ProtocolError("Written: lists of different lengths")
                if sequence in self._reading:
                    resolve(self._reading.pop(sequence), message)
            case messages.Ready(_, root_capabilities):
                self.root_capabilities = root_capabilities
                self._configure()
                self.up.set()
            case messages.MemoryShort(left_bytes, shared_bytes):
                figures = {"left_bytes": left_bytes, "shared_bytes": shared_bytes}
                log.warning("memory is short, and no execution is the reason", extra=figures)
                self._on_memory()
            case messages.Fault(text):
                log.error("the warden failed", extra={"traceback": text})
            case messages.Killed() | messages.CellKilled():
                self.killed_processes += message.killed
                self._pass_on(message)
            case messages.LimitReached(_, limit):
                if limit == "memory":
                    self._on_memory()
                self._pass_on(message)
            case _:
                raise messages.ProtocolError(f"{type(message).__name__} is not for the daemon")

    def _pass_on(self, message: ChildMessage) -> None:
        child = self._children.get(message.tag)
        if child is not None:
            child.receive(message)


def _longer(backoff_seconds: float) -> float:
    return min(max(backoff_seconds * 2, FIRST_BACKOFF_SECONDS), MAX_BACKOFF_SECONDS)
