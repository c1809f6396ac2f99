"""Workers: processes of the user's interpreter, in which cells run; the daemon's object for each.

Process. A worker is an orphan by design (see ``warden/adoption``): forked by the zygote or by
another worker, then adopted by the warden. From then on the warden treats the worker like any
program. Only the warden's ``Exited`` says that the worker has ended. The end of file on a pipe and
the worker's own frames do not.

Owner. A ``SessionWorker`` owns the daemon's ends of the pipes and of the protocol socket. ``close``
ends the worker with its tree and closes the descriptors.

Tasks and callbacks. The link's callbacks take frames, the pumps' callbacks take output, and a task
(``_follow_end``) waits for the end, reads the last frames and output, and completes ``gone``.

Order. A worker writes output and then a frame, on two channels. Before the daemon handles frames,
``_read_output`` reads the pipes, so output comes before later frames.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import select
import signal
import socket
from typing import TYPE_CHECKING, Any

import msgspec

from execd.engine.executions.environment import MARKER
from execd.engine.executions.interpreters import for_own_python
from execd.engine.executions.stdio import give_to_user
from execd.engine.output.pump import Pump
from execd.engine.sessions import worker_messages
from execd.engine.sessions.link import Link
from execd.errors import ResourceExhausted
from execd.model import STREAMS
from execd.proc import credential_socket, tree_mark
from execd.proc.messages import Adopt, Exited
from execd.proc.rlimits import rlimits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from execd.engine.executions.context import EngineContext
    from execd.engine.sessions.link import LinkTurns
    from execd.model import Interpreter, Limits, Stream
    from execd.proc.child import Child, Lost
    from execd.proc.client import WardenClient
    from execd.proc.messages import CellKilled, Killed, Measured
    from execd.proc.spawn import Identity

    Sink = Callable[[Stream, bytes], Awaitable[None] | None]
    Listener = Callable[[worker_messages.Rich | worker_messages.Done, int], bool]

# After this time since SIGKILL, a worker counts as lost even without the warden's Exited.
GONE_SECONDS = 3.0
# From the request for the end of an interpreter to KILL: for exit functions and threads.
END_SECONDS = 2.0
FORCED_NOTE = (
    f"[the interpreter did not end within {END_SECONDS:g} s and was killed: the text in the "
    "buffers of its files is lost]\n"
).encode()
KILLED_NOTE = (
    b"[the interpreter was killed in its exit functions: the text in the buffers of its files may "
    b"be lost]\n"
)
END_REQUEST = 0  # requests of sessions have numbers above
CONFIGURE_SECONDS = 10.0


def lasting_rlimits(limits: Limits, *, in_namespace: bool) -> list[list[int]]:
    """Return the resource limits of a worker: no RLIMIT_CPU, which would count over all cells.

    The warden counts the CPU time of each cell.
    """
    return rlimits(msgspec.structs.replace(limits, cpu_seconds=None), in_namespace=in_namespace)


def _ignore_limit(_limit: str, _value: int) -> None:
    """Stand in for a cell while no cell runs."""


class WorkerLost(Exception):
    """The worker ended, or was killed, before its answer."""


class SessionWorker:
    """One worker. The object is made before the process.

    The caller sends ``child_ends`` to the forking process, and calls ``adopt``.
    """

    def __init__(
        self, limits: Limits, turns: LinkTurns, *, drain_seconds: float, identity: Identity
    ) -> None:
        """``drain_seconds`` bounds the reading of output after the end. ``identity``: the user of
        the worker. Raises OSError."""
        self.limits = limits
        self.marker_id = f"session-{secrets.token_hex(8)}"
        """Value of the marker variable in the environment of the worker's processes."""
        self.sink: Sink | None = None
        """Gets the output of a cell. None: no cell runs."""
        self.on_background: Callable[[Stream, bytes], None] | None = None
        """Gets the output while no cell runs."""
        self.listener: Listener | None = None
        """Gets the messages of a cell. Returns False for an ignored message."""
        self.lost_threads: tuple[str, ...] = ()
        """Of a branch: the fork's warnings about threads that a cell may wait for."""
        self.on_limit: Callable[[str, int], None] = _ignore_limit
        """Gets the name and the value of a limit that the tree exceeded."""
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[Exited | Lost | None] = self._loop.create_future()
        """Done when the worker has ended and the output is read. None: killed, and no Exited came
        within GONE_SECONDS."""
        self._drain_seconds = drain_seconds
        self._child: Child | None = None
        self._mark = 0
        """Of the worker's tree: see ``tree_mark``."""
        self._following: asyncio.Task[None] | None = None
        self.interpreter: Interpreter | None = None
        """None: not asked for from a zygote yet."""
        self._answer: asyncio.Future[worker_messages.Answer] | None = None
        self._request_id: int | None = None
        """The id of the latest request; a reply has the id of its request."""
        self._gone_timer: asyncio.TimerHandle | None = None
        self._is_told_to_end = self._is_killed = False
        self._pumps: dict[Stream, Pump] = {}
        self._pipes: list[int] = []
        self._poll = select.poll()
        ours, protocol = socket.socketpair()
        self.child_ends: list[int] = [protocol.detach()]
        """The worker's ends: protocol socket, stdout, stderr, greeting socket."""
        self._link = Link(
            ours,
            worker_messages.decode,
            turns,
            self._on_message,
            self.kill,
            before_frames=self._read_output,
        )
        try:
            for stream in STREAMS:
                read_end, write_end = os.pipe2(os.O_CLOEXEC)
                pump = self._pumps[stream] = Pump(read_end, self._appender(stream))
                pump.start()
                self._poll.register(read_end, select.POLLIN)
                self.child_ends.append(write_end)
                give_to_user((write_end,), identity.uid, identity.gid)
                self._pipes.append(os.fstat(write_end).st_ino)
            wardens, workers = credential_socket.make_pair()
            self._greeting = wardens.detach()
            self.child_ends.append(workers.detach())
        except OSError:
            self._close_ours()
            raise

    @property
    def marker(self) -> str:
        return f"{MARKER}={self.marker_id}"

    @property
    def pid(self) -> int | None:
        """The process id in user code's PID namespace. None: not adopted yet."""
        return self._child.pid if self._child is not None else None

    @property
    def fault(self) -> str | None:
        """How the worker broke the protocol, if killed for that."""
        return self._link.fault

    @property
    def is_ending(self) -> bool:
        """Whether the worker has ended, or was killed or told to end. Work given to the worker
        would be lost."""
        return self._is_told_to_end or self._is_killed or self.gone.done()

    @property
    def tag(self) -> int | None:
        """The warden's number of the worker; None before the adoption."""
        return None if self._child is None else self._child.tag

    def _appender(self, stream: Stream) -> Callable[[bytes], Awaitable[None] | None]:
        def append(data: bytes) -> Awaitable[None] | None:
            if self.sink is not None:
                return self.sink(stream, data)
            if self.on_background is not None:
                self.on_background(stream, data)
            return None

        return append

    async def adopt(self, warden: WardenClient, *, is_idle: bool = False) -> None:
        """Wait until the warden has adopted the process.

        ``is_idle``: no user code runs until ``mark_active``. Raises SpawnError, WardenLost; then
        all descriptors are closed.
        """
        assert self._child is None, "adopted twice"
        try:
            tag = warden.new_tag()
            self._mark = warden.mark_of(tag)
            request = Adopt(
                tag=tag,
                mark=self._mark,
                marker=self.marker,
                pipes=self._pipes,
                processes=self.limits.processes or 0,
                memory_bytes=self.limits.memory_bytes or 0,
                cpu_seconds=self.limits.cpu_seconds or 0,
                is_idle=is_idle,
            )
            self._child = await warden.launch(
                request, [self._greeting], lambda limit, value: self.on_limit(limit, value)
            )
        except BaseException:
            self._close_ours()
            raise
        self._following = asyncio.create_task(self._follow_end(self._child), name="worker")
        if self._is_killed:
            self._child.kill(0.0)

    def mark_active(self) -> None:
        """Tell the warden that user code runs from now on."""
        if self._child is not None:
            self._child.mark_active()

    async def _follow_end(self, child: Child) -> None:
        """Wait for the end, then read the last frames and the last output."""
        await asyncio.wait((child.exited,))
        await self._link.read_rest()
        # The tree ends with the worker: no process of this generation is left for the next one.
        child.kill(0.0)
        await self._drain_output(self._drain_seconds)
        self._set_gone(child.exited.result())

    def _set_gone(self, ended: Exited | Lost | None) -> None:
        if not self.gone.done():
            self.gone.set_result(ended)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(WorkerLost())

    # Frames.

    def send(self, frame: dict[str, Any], descriptors: list[int] | None = None) -> None:
        """See ``Link.send``."""
        self._link.send(frame, descriptors)

    def _on_message(self, message: worker_messages.Claim, size_bytes: int) -> bool:
        if isinstance(message, worker_messages.Answer):
            if self._answer is None or self._answer.done():
                return False  # a late or forged answer: no request waits
            if isinstance(message, worker_messages.Reply) and message.id != self._request_id:
                return False  # the reply to a caller that has left
            self._answer.set_result(message)
            return True
        return self.listener is not None and self.listener(message, size_bytes)

    def _read_output(self) -> None:
        """Read the pipes before frames are handled, so that output comes before later frames.

        One poll for both pipes, because most often they are empty. The number of a closed pipe may
        belong to another file by now, or give POLLNVAL; the poll is a hint only, and ``drain_now``
        does nothing for an ended pump.
        """
        if self.listener is not None and self._poll.poll(0):
            for pump in self._pumps.values():
                pump.drain_now()

    def read_now(self) -> None:
        """Handle the frames in the socket. A listener must not call ``read_now``."""
        self._link.read_now()

    async def request(
        self, frame: dict[str, Any], timeout_seconds: float, descriptors: list[int] | None = None
    ) -> worker_messages.Answer:
        """Send a request and return the answer. One request at a time.

        Takes over ``descriptors``. Raises WorkerLost; a worker that does not answer in time is
        killed.
        """
        if self.gone.done():
            for fd in descriptors or []:
                os.close(fd)
            raise WorkerLost
        self._request_id = frame.get("id")
        self.send(frame, descriptors)
        return await self._wait_for_answer(self._expect_answer(), timeout_seconds)

    async def receive(self, timeout_seconds: float) -> worker_messages.Answer:
        """Return an answer without a request: the ``ready`` of a branch.

        Called before the process exists, so that the message finds a receiver. Raises WorkerLost.
        """
        return await self._wait_for_answer(self._expect_answer(), timeout_seconds)

    async def rehearse(self, configuration: dict[str, Any]) -> None:
        """Configure the worker and run one cell, ``None``, before a session gets the worker.

        The first cell is slow: the kernel copies each page of the zygote that the worker writes to.
        The cell leaves no name and no number behind. Raises WorkerLost.
        """
        await self.request(configuration, CONFIGURE_SECONDS)
        answer = self._expect_answer()

        def take(_message: worker_messages.Rich | worker_messages.Done, _size_bytes: int) -> bool:
            if not answer.done():
                answer.set_result(worker_messages.Configured())
            return True

        self.listener = take
        try:
            self.send(
                {
                    "type": "execute",
                    "id": 0,
                    "code": "None",
                    "allow_input": False,
                    "store_history": False,
                }
            )
            await self._wait_for_answer(answer, CONFIGURE_SECONDS)
        finally:
            self.listener = None

    def _expect_answer(self) -> asyncio.Future[worker_messages.Answer]:
        assert self._answer is None, "one request at a time"
        self._answer = self._loop.create_future()
        return self._answer

    async def _wait_for_answer(
        self, answer: asyncio.Future[worker_messages.Answer], timeout_seconds: float
    ) -> worker_messages.Answer:
        try:
            async with asyncio.timeout(timeout_seconds):
                return await answer
        except TimeoutError:
            self.kill()
            raise WorkerLost from None
        finally:
            self._answer = None

    # Output and the end.

    async def drain_after_writes(self) -> None:
        """Wait until the output before the last frame is in the log.

        During a write to a slow disk, the pump leaves output in the pipe. See ``Pump``.
        """
        for pump in self._pumps.values():
            await pump.drain_after_writes()

    async def _drain_output(self, timeout_seconds: float) -> None:
        """Read the last output, until the pipes are at their end or the time is over."""
        for pump in self._pumps.values():
            await pump.drain_after_writes()
            pump.drain_now()
            await pump.drain_after_writes()
        unfinished = [pump.ended for pump in self._pumps.values() if pump.is_open]
        if unfinished:
            await asyncio.wait(unfinished, timeout=timeout_seconds)

    def mark_of(self, cell: int) -> int:
        """Return the mark of a cell by the cell's number; 0: trees have no marks."""
        return self._mark and tree_mark.of_cell(self._mark, cell)

    def interrupt(self, cell: int | None = None) -> None:
        """Send SIGINT to the worker; with ``cell``, the number of a cell, also to the processes of
        the worker's group that the cell has begun."""
        if cell is None:
            self.signal(signal.SIGINT)
        elif self._child is not None:
            self._child.signal(signal.SIGINT, scope="cell", mark=self.mark_of(cell))

    def kill_cell(
        self, cell: int, grace_seconds: float
    ) -> asyncio.Future[CellKilled | Lost] | asyncio.Future[Killed | Lost]:
        """Begin to end the processes that a cell has begun: TERM, the grace, KILL. Or shorten the
        grace. Return a future for the warden's answer, or for the end of the whole tree if the
        worker is ending."""
        assert self._child is not None, "not adopted yet"
        if self.is_ending:
            return self._child.killed
        return self._child.kill_cell(self.mark_of(cell), grace_seconds)

    def signal(self, number: int) -> None:
        """Send a signal to the worker alone, not to its tree."""
        if self._child is not None:
            self._child.signal(number, scope="leader")

    async def memory_bytes(self) -> int:
        """Return the resident size of the worker's tree.

        An upper bound: pages shared with the zygote count in full.
        """
        if self._child is None or self.gone.done():
            return 0
        measuring = self._child.measure()
        await asyncio.wait((measuring, self.gone), return_when=asyncio.FIRST_COMPLETED)
        return measuring.result().tree_bytes if measuring.done() else 0

    def start_usage_count(self, work_began: float = 0.0) -> asyncio.Future[Measured]:
        """Have the warden end a count of the usage and begin the next count.

        ``work_began``: when the work of the next count began, on the monotonic clock.
        The future gets the usage of the ended count, and is never done if the worker ends first.
        """
        assert self._child is not None, "not adopted yet"
        return self._child.measure(anew=True, work_began=work_began)

    async def end(self, within_seconds: float) -> bytes | None:
        """End an idle worker in order: exit functions run, and files get the text in their buffers.
        Then kill the worker and its tree, in any case. Return a note for the user if text may be
        lost. An exit function may exit before the reply."""
        self._is_told_to_end = True
        try:
            await self.request({"type": "end", "id": END_REQUEST}, within_seconds)
        except WorkerLost:
            if not self.gone.done():
                return FORCED_NOTE
            ended = self.gone.result()
            has_exited = isinstance(ended, Exited) and os.WIFEXITED(ended.wait_status)
            return None if has_exited else KILLED_NOTE
        finally:
            self.kill()
        return None

    def kill(self) -> None:
        """Kill the worker and its tree. ``gone`` is done when the worker has ended."""
        self._is_killed = True
        if self._child is not None and not self.gone.done():
            self._child.kill(0.0)
            if self._gone_timer is None:
                self._gone_timer = self._loop.call_later(GONE_SECONDS, self._set_gone, None)

    async def close(self) -> None:
        """Kill the worker and its tree, wait for their end, and close everything."""
        child, following = self._child, self._following
        assert (child is None) == (following is None)
        if child is not None and following is not None:
            self.kill()
            await asyncio.wait((self.gone,))
            await asyncio.wait((child.killed,), timeout=GONE_SECONDS)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            child.release()
        if self._gone_timer is not None:
            self._gone_timer.cancel()
        for pump in self._pumps.values():
            await pump.drain_after_writes()
        self._close_ours()

    def _close_ours(self) -> None:
        while self.child_ends:  # no process was asked to fork
            os.close(self.child_ends.pop())
        self._link.close()
        for pump in self._pumps.values():
            pump.close()


def open_worker(limits: Limits, turns: LinkTurns, context: EngineContext) -> SessionWorker:
    """Return the object of a worker without a process. Raises ResourceExhausted."""
    try:
        return SessionWorker(
            limits,
            turns,
            drain_seconds=context.config.drain_grace_seconds,
            identity=context.identity,
        )
    except OSError as error:
        raise ResourceExhausted(
            f"no descriptors for another session: {error.strerror}; delete sessions, or repeat the "
            "request later"
        ) from error


async def configuration(
    worker: SessionWorker, context: EngineContext, cwd: str | None, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return the frame with the configuration. ``cwd`` None: the base dir."""
    env, _ = await context.build_environment(worker.marker_id, environment)
    if worker.interpreter is not None and worker.interpreter.origin == "own":
        env = for_own_python(env, context.certificates)
    return {
        "type": "configure",
        "cwd": cwd or context.config.base_dir,
        "env": env,
        "limits": lasting_rlimits(worker.limits, in_namespace=context.warden.has_namespace),
    }
