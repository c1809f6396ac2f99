"""The zygote, kept alive, and a pool of workers that are ready before they are asked for.

``_keep`` is the only long task: it starts a zygote when there is a warden, waits until it is lost,
starts the next with a back-off. Nothing waits for it at the daemon's start, and user code that
kills the zygote costs the next session a second, not the daemon.

The zygote is an ordinary program to the warden. It imports and exercises IPython once and then only
forks (``execd/kernel/zygote.py``). Each request to it has a deadline, which is the greeting's: one
that does not fork in time is replaced. User code may stop it as well as kill it; so one that is
slow is first told to go on.

A worker is taken from the pool if one is there and its limits are the usual ones, else forked on
the spot. The pool hides what a fork costs (25 ms in gVisor) as long as sessions come no faster than
that.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from execd.engine.executions.command import own_limits
from execd.engine.executions.environment import MARKER
from execd.engine.output.pump import Pump
from execd.engine.sessions import zygote_command
from execd.engine.sessions.link import Link
from execd.engine.sessions.session_worker import SessionWorker, WorkerLost, lasting_rlimits
from execd.errors import ExecdError, NotSupported, ResourceExhausted, Unavailable
from execd.kernel import frames
from execd.proc.client import SpawnError, WardenLost
from execd.proc.messages import NULL_DEVICE

if TYPE_CHECKING:
    from execd.engine.executions.context import EngineContext
    from execd.engine.sessions.link_turns import LinkTurns
    from execd.model import Limits
    from execd.proc.child import Child

log = logging.getLogger(__name__)

# IPython and preloads on a cold disk, in gVisor.
START_SECONDS = 120.0
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 30.0
# One that lived this long starts the back-off anew.
STABLE_SECONDS = 10.0
LAST_WORDS_BYTES = 4096
REFILL_SECONDS = 0.05
# Longer than a fork takes on a busy machine, in gVisor: until then it is no use to suspect
# anything.
SLOW_FORK_SECONDS = 1.0
FACTS = ("python", "ipython", "import_seconds", "warnings")


class ZygoteLost(Exception):
    """It ended before it was ready; the message is for people."""


class ZygoteProcess:
    """One zygote."""

    def __init__(self, turns: LinkTurns) -> None:
        self.ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.lost = asyncio.Event()
        self.born = time.monotonic()
        self._last_words = bytearray()
        self._child: Child | None = None
        self._next_id = 1
        ours, self._theirs = socket.socketpair()
        self._link = Link(
            ours, frames.FrameDecoder(frames.FROM_ZYGOTE), turns, self._on_frame, self._on_lost
        )
        read_end, self._stderr = os.pipe2(os.O_CLOEXEC)
        self._pump = Pump(read_end, self._note_words)
        self._pump.start()

    async def start(self, context: EngineContext) -> None:
        """Return when it can fork. Raises SpawnError, WardenLost, ZygoteLost."""
        env, marker = await context.build_environment("zygote", {})
        del env[MARKER]  # or it would mark every worker's processes as the zygote's
        descriptors = [self._theirs.detach(), self._stderr]  # the client closes them, come what may
        self._stderr = -1
        self._child = await context.warden.spawn(
            argv=zygote_command.argv(context.python, context.config.preload),
            env=zygote_command.environment(env),
            cwd=context.config.base_dir,
            stdio=[NULL_DEVICE, 1, 1, 0],
            descriptors=descriptors,
            marker=marker,
            limits=lasting_rlimits(
                own_limits(context.config), in_namespace=context.warden.has_namespace
            ),
            processes=0,
            identity=context.identity,
            on_limit=lambda *_: None,
            rests=True,
        )
        lost = asyncio.ensure_future(self.lost.wait())
        await asyncio.wait(
            (self.ready, lost), timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        lost.cancel()
        if not self.ready.done():
            raise ZygoteLost(
                self._last_words.decode("utf-8", "replace").strip()[-1000:]
                or "it did not become ready"
            )

    def fork(self, worker: SessionWorker) -> None:
        """Ask for it. What comes of that, the warden says."""
        theirs, worker.theirs = worker.theirs, []
        self._link.send({"type": "fork", "id": self._next_id}, theirs)
        self._next_id += 1

    def _on_frame(self, frame: dict[str, Any], _: int) -> bool:
        """False for what an honest one says a few times in its life."""
        match frame["type"]:
            case "ready" if not self.ready.done():
                self.ready.set_result(frame)
                return True
            case "failed":
                self._note_words(frame["message"].encode("utf-8", "replace"))
            case "fork_failed":
                log.warning("a worker cannot be forked: %s", frame["message"])
        return False

    def _on_lost(self) -> None:
        self.lost.set()

    def _note_words(self, data: bytes) -> None:
        self._last_words += data
        del self._last_words[:-LAST_WORDS_BYTES]

    def go_on(self) -> None:
        """It takes so long that somebody may have stopped it."""
        if self._child is not None:
            self._child.signal(signal.SIGCONT, scope="leader")

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill(0.0)
        self.lost.set()

    def close(self) -> None:
        if self._child is not None:
            self._child.kill(0.0)
            self._child.release()
        self._link.close()
        self._theirs.close()
        if self._stderr >= 0:
            os.close(self._stderr)
        self._pump.close()


class Zygote:
    """Keeps one, and the pool. ``start`` and ``close`` bracket its life."""

    def __init__(self, context: EngineContext, turns: LinkTurns) -> None:
        self._context = context
        self._turns = turns
        self.facts: dict[str, Any] | None = None
        """What the last one said of itself: python, ipython, warnings."""
        self.trouble: str | None = None
        """Why there is none."""
        self.restarts = 0
        self._process: ZygoteProcess | None = None
        self._is_up = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._filler: asyncio.Task[None] | None = None
        self._pool: list[SessionWorker] = []
        self._wanted = asyncio.Event()

    @property
    def is_up(self) -> bool:
        return self._is_up.is_set()

    @property
    def n_waiting(self) -> int:
        """Workers in the pool."""
        return len(self._pool)

    def start(self) -> None:
        """Begin to keep one. Returns at once."""
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name="zygote-keeper")
            self._filler = asyncio.create_task(self._fill(), name="worker-pool")

    def cease(self) -> None:
        """Keep none any more, and make no workers: the warden is about to end, and that is no loss
        to report or to make good."""
        for task in self._tasks:
            task.cancel()

    @property
    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for task in (self._keeper, self._filler) if task is not None]

    async def close(self) -> None:
        self.cease()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        pool, self._pool = self._pool, []
        await asyncio.gather(*(worker.close() for worker in pool))

    async def take(self, limits: Limits) -> SessionWorker:
        """A worker that has done nothing yet. Raises Unavailable, ResourceExhausted,
        NotSupported."""
        if self._context.config.sessions == "off":
            raise NotSupported("sessions are switched off here (--sessions)")
        self.start()
        if limits == own_limits(self._context.config):
            while self._pool:
                worker = self._pool.pop(0)
                # Not at once: a fork beside it would cost this session more than the pool saves it.
                asyncio.get_running_loop().call_later(REFILL_SECONDS, self._wanted.set)
                if not worker.gone.done():
                    worker.wake()
                    return worker
                await worker.close()
        worker = await self._make(limits)
        worker.wake()
        return worker

    async def _up(self) -> ZygoteProcess:
        """One that lives, as far as is known. Raises Unavailable."""
        wait_seconds = self._context.config.queue_wait_seconds
        try:
            async with asyncio.timeout(wait_seconds):
                while True:
                    await self._is_up.wait()
                    if self._process is not None and not self._process.lost.is_set():
                        return self._process
                    await asyncio.sleep(0)  # its keeper is about to learn of the loss
        except TimeoutError:
            raise Unavailable(
                f"no Python for sessions within {wait_seconds:g} s: "
                f"{self.trouble or 'it is starting'}"
            ) from None

    async def _make(self, limits: Limits) -> SessionWorker:
        process = await self._up()
        try:
            worker = SessionWorker(
                limits, self._turns, drain_seconds=self._context.config.drain_grace_seconds
            )
        except OSError as error:
            raise ResourceExhausted(
                f"no descriptors for another session: {error.strerror}"
            ) from error
        adopting = asyncio.create_task(
            worker.adopt(self._context.warden, rests=True), name="adoption"
        )
        urging: asyncio.TimerHandle | None = None
        try:
            # The warden must know that one is expected before there is one (see ``Supervisor``).
            await asyncio.sleep(0)
            await asyncio.wait((self._context.warden.heard(),))
            if not adopting.done():
                process.fork(worker)
                urging = asyncio.get_running_loop().call_later(SLOW_FORK_SECONDS, process.go_on)
            await asyncio.shield(adopting)
        except asyncio.CancelledError:
            adopting.cancel()
            await asyncio.gather(adopting, return_exceptions=True)
            await worker.close()
            raise
        except WardenLost:
            raise Unavailable("the parent process of user code is being replaced") from None
        except SpawnError as error:
            if not process.lost.is_set():
                log.warning("the zygote does not fork", extra={"reason": str(error)})
                process.kill()
            raise Unavailable(f"a worker could not be made: {error}") from None
        finally:
            if urging is not None:
                urging.cancel()
        return worker

    async def _configuration(self, worker: SessionWorker) -> dict[str, Any]:
        env, _ = await self._context.build_environment(worker.marker_id, {})
        limits = lasting_rlimits(worker.limits, in_namespace=self._context.warden.has_namespace)
        return {
            "type": "configure",
            "cwd": self._context.config.base_dir,
            "env": env,
            "limits": limits,
        }

    # The two tasks.

    async def _keep(self) -> None:
        backoff = 0.0
        while True:
            await asyncio.sleep(backoff)
            await self._context.warden.up.wait()
            process = ZygoteProcess(self._turns)
            try:
                try:
                    await self._context.ensure_base_dir()
                    await process.start(self._context)
                except (SpawnError, WardenLost, ZygoteLost, ExecdError, OSError) as error:
                    self.trouble = str(error) or type(error).__name__
                    log.warning("no zygote: %s", self.trouble)
                else:
                    self.facts, self.trouble = process.ready.result(), None
                    log.info(
                        "python for sessions is ready",
                        extra={name: self.facts[name] for name in FACTS},
                    )
                    self._process = process
                    self._is_up.set()
                    self._wanted.set()
                    await process.lost.wait()
                    self.trouble = "it has just ended, and another one is starting"
                    self.restarts += 1
            finally:
                self._is_up.clear()
                self._process = None
                process.close()
            lived_seconds = time.monotonic() - process.born
            longer = min(max(backoff * 2, FIRST_BACKOFF_SECONDS), MAX_BACKOFF_SECONDS)
            backoff = FIRST_BACKOFF_SECONDS if lived_seconds > STABLE_SECONDS else longer

    async def _fill(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self._is_up.wait()
            while len(self._pool) < self._context.config.session_pool and self.is_up:
                try:
                    worker = await self._make(own_limits(self._context.config))
                except (Unavailable, ResourceExhausted):
                    break  # the next zygote, or the next session, asks again
                try:
                    await worker.rehearse(await self._configuration(worker))
                except BaseException as error:
                    await worker.close()
                    if isinstance(error, WorkerLost):
                        break
                    raise
                worker.gone.add_done_callback(lambda _: self._wanted.set())
                self._pool.append(worker)
            dead = [worker for worker in self._pool if worker.gone.done()]
            self._pool = [worker for worker in self._pool if not worker.gone.done()]
            for worker in dead:
                await worker.close()
                self._wanted.set()
            if dead:  # user code may kill all it sees, again and again
                await asyncio.sleep(FIRST_BACKOFF_SECONDS)
