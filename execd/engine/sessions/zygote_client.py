"""The zygote, kept alive, and a pool of workers made in advance.

Processes. The zygote is an ordinary program to the warden. The zygote imports IPython, exercises
IPython once, and then only forks (``execd/kernel/zygote.py``).

Tasks. ``_keep_zygote`` starts a zygote while there is a warden, waits for the loss of the zygote,
and starts another zygote after a back-off. ``_fill_pool`` keeps ``session_pool`` workers ready. The
daemon's start waits for neither. User code that kills the zygote delays the next session by a
second and leaves the daemon alone.

Deadlines. Each fork has the warden's deadline for the greeting; a zygote that does not fork in time
is replaced. User code may also have stopped the zygote, so a slow zygote gets SIGCONT first.

Race: a worker may greet the warden before the warden expects the worker. So ``_make_worker`` sends
the request to adopt, and waits for the warden's Pong, before the zygote gets its request to fork.

Pool. A worker comes from the pool if the limits are the daemon's own, or else from a fork. A fork
takes 25 ms in gVisor. The pool hides this time as long as sessions come no faster than that.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from execd.engine.executions.environment import MARKER
from execd.engine.executions.limits import own_limits
from execd.engine.output.pump import Pump
from execd.engine.sessions import zygote_command
from execd.engine.sessions.link import Link
from execd.engine.sessions.session_worker import SessionWorker, WorkerLost, lasting_rlimits
from execd.errors import ExecdError, NotSupported, ResourceExhausted, Unavailable
from execd.kernel import frames
from execd.proc.client import SpawnError, WardenLost
from execd.proc.messages import NULL_DEVICE, Spawn

if TYPE_CHECKING:
    from execd.engine.executions.context import EngineContext
    from execd.engine.sessions.link_turns import LinkTurns
    from execd.model import Limits
    from execd.proc.child import Child

log = logging.getLogger(__name__)

# Time to import IPython and the preloads from a cold disk, in gVisor.
START_SECONDS = 120.0
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 30.0
# After a life of this length the back-off begins at the first value again.
STABLE_SECONDS = 10.0
STDERR_TAIL_BYTES = 4096
# Pause before the pool is filled again. A fork right away would run beside the session that took
# the worker, and cost this session more time than the pool saves.
REFILL_SECONDS = 0.05
# A fork takes less on a busy machine, in gVisor. A slower zygote may have been stopped.
SLOW_FORK_SECONDS = 1.0
FACTS = ("python", "ipython", "import_seconds", "warnings")


class ZygoteLost(Exception):
    """The zygote ended before its ``ready``. The message is for people."""


class ZygoteProcess:
    """One zygote: its process, link and standard error. ``close`` ends all of them."""

    def __init__(self, turns: LinkTurns) -> None:
        self.ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.lost = asyncio.Event()
        self.started_at = time.monotonic()
        self._stderr_tail = bytearray()
        self._child: Child | None = None
        self._next_id = 1
        ours, self._child_end = socket.socketpair()
        self._link = Link(
            ours, frames.FrameDecoder(frames.FROM_ZYGOTE), turns, self._on_frame, self._on_lost
        )
        read_end, self._stderr_fd = os.pipe2(os.O_CLOEXEC)
        self._pump = Pump(read_end, self._keep_stderr)
        self._pump.start()

    async def start(self, context: EngineContext) -> None:
        """Start the process, and return when the zygote can fork.

        Raises SpawnError, WardenLost, ZygoteLost.
        """
        assert self._child is None, "started twice"
        identity = context.identity
        env, marker = await context.build_environment("zygote", {})
        # Workers inherit the environment, and would inherit the zygote's marker.
        del env[MARKER]
        # ``launch`` closes the descriptors, even if the launch fails.
        descriptors = [self._child_end.detach(), self._stderr_fd]
        self._stderr_fd = -1
        limits = lasting_rlimits(
            own_limits(context.config), in_namespace=context.warden.has_namespace
        )
        request = Spawn(
            tag=0,
            argv=zygote_command.argv(context.python, context.config.preload),
            env=zygote_command.environment(env),
            cwd=context.config.base_dir,
            stdio=[NULL_DEVICE, 1, 1, 0],
            terminal=False,
            limits=limits,
            processes=0,
            marker=marker,
            uid=identity.uid,
            gid=identity.gid,
            groups=None if identity.groups is None else list(identity.groups),
            is_idle=True,
        )
        self._child = await context.warden.launch(request, descriptors, lambda *_: None)
        lost = asyncio.ensure_future(self.lost.wait())
        await asyncio.wait(
            (self.ready, lost), timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        lost.cancel()
        if not self.ready.done():
            raise ZygoteLost(
                self._stderr_tail.decode("utf-8", "replace").strip()[-1000:]
                or "it did not become ready"
            )

    def fork(self, worker: SessionWorker) -> None:
        """Ask the zygote to fork. The warden reports the success, by the adoption."""
        assert worker.child_ends, "forked twice"
        child_ends, worker.child_ends = worker.child_ends, []
        self._link.send({"type": "fork", "id": self._next_id}, child_ends)
        self._next_id += 1

    def _on_frame(self, frame: dict[str, Any], _: int) -> bool:
        """Handle a frame. Return False for frames rarely sent by an honest zygote."""
        match frame["type"]:
            case "ready" if not self.ready.done():
                self.ready.set_result(frame)
                return True
            case "failed":
                self._keep_stderr(frame["message"].encode("utf-8", "replace"))
            case "fork_failed":
                log.warning("a worker cannot be forked: %s", frame["message"])
        return False

    def _on_lost(self) -> None:
        self.lost.set()

    def _keep_stderr(self, data: bytes) -> None:
        self._stderr_tail += data
        del self._stderr_tail[:-STDERR_TAIL_BYTES]

    def resume(self) -> None:
        """Send SIGCONT: the zygote is slow, and user code may have stopped the zygote."""
        if self._child is not None:
            self._child.signal(signal.SIGCONT, scope="leader")

    def kill(self) -> None:
        """Kill the process, and report the loss."""
        if self._child is not None:
            self._child.kill(0.0)
        self.lost.set()

    def close(self) -> None:
        """Kill the process and close the descriptors."""
        if self._child is not None:
            self._child.kill(0.0)
            self._child.release()
        self._link.close()
        self._child_end.close()
        if self._stderr_fd >= 0:
            os.close(self._stderr_fd)
        self._pump.close()


class Zygote:
    """Keep one zygote alive, and the pool. Call ``start`` first and ``close`` last."""

    def __init__(self, context: EngineContext, turns: LinkTurns) -> None:
        self._context = context
        self._turns = turns
        self.facts: dict[str, Any] | None = None
        """The last zygote's ``ready``: versions of python and ipython, warnings."""
        self.trouble: str | None = None
        """Why there is no zygote. None: no trouble."""
        self.restarts = 0
        self._process: ZygoteProcess | None = None
        self._is_up = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._filling: asyncio.Task[None] | None = None
        self._pool: list[SessionWorker] = []
        self._pool_wanted = asyncio.Event()

    def describe(self) -> dict[str, Any]:
        """Describe the interpreter and the zygote, for /v1/capabilities."""
        known = {name: value for name, value in (self.facts or {}).items() if name in FACTS}
        return {"ready": self.is_up, "trouble": self.trouble, "restarts": self.restarts, **known}

    @property
    def is_up(self) -> bool:
        """Whether a zygote is ready to fork."""
        return self._is_up.is_set()

    @property
    def n_pooled(self) -> int:
        """The number of workers in the pool."""
        return len(self._pool)

    def start(self) -> None:
        """Start both tasks. Idempotent; returns at once."""
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep_zygote(), name="zygote-keeper")
            self._filling = asyncio.create_task(self._fill_pool(), name="worker-pool")

    def stop_tasks(self) -> None:
        """Make no more zygotes and workers.

        Called before the warden's end, which would otherwise be reported as the loss of a zygote.
        """
        for task in self._tasks:
            task.cancel()

    @property
    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for task in (self._keeping, self._filling) if task is not None]

    async def close(self) -> None:
        """End both tasks, the zygote and the workers in the pool."""
        self.stop_tasks()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        pool, self._pool = self._pool, []
        await asyncio.gather(*(worker.close() for worker in pool))

    async def take(self, limits: Limits) -> SessionWorker:
        """Return an unused worker. The caller closes the worker.

        Raises Unavailable, ResourceExhausted, NotSupported.
        """
        if self._context.config.sessions == "off":
            raise NotSupported("sessions are switched off here (--sessions)")
        self.start()
        if limits == own_limits(self._context.config):
            while self._pool:
                worker = self._pool.pop(0)
                asyncio.get_running_loop().call_later(REFILL_SECONDS, self._pool_wanted.set)
                if not worker.gone.done():
                    worker.mark_active()
                    return worker
                await worker.close()
        worker = await self._make_worker(limits)
        worker.mark_active()
        return worker

    async def _wait_for_zygote(self) -> ZygoteProcess:
        """Wait for a zygote, not known to be lost. Raises Unavailable."""
        wait_seconds = self._context.config.queue_wait_seconds
        try:
            async with asyncio.timeout(wait_seconds):
                while True:
                    await self._is_up.wait()
                    if self._process is not None and not self._process.lost.is_set():
                        return self._process
                    await asyncio.sleep(0)  # until ``_keep_zygote`` notices the loss
        except TimeoutError:
            raise Unavailable(
                f"no Python for sessions within {wait_seconds:g} s: "
                f"{self.trouble or 'it is starting'}"
            ) from None

    async def _make_worker(self, limits: Limits) -> SessionWorker:
        """Fork a worker from the zygote. Raises Unavailable, ResourceExhausted."""
        process = await self._wait_for_zygote()
        try:
            worker = SessionWorker(
                limits, self._turns, drain_seconds=self._context.config.drain_grace_seconds
            )
        except OSError as error:
            raise ResourceExhausted(
                f"no descriptors for another session: {error.strerror}"
            ) from error
        adopting = asyncio.create_task(
            worker.adopt(self._context.warden, is_idle=True), name="adoption"
        )
        resuming: asyncio.TimerHandle | None = None
        try:
            await asyncio.sleep(0)  # the task sends the request to adopt; see the module's text
            await asyncio.wait((self._context.warden.confirm_sent(),))
            if not adopting.done():
                process.fork(worker)
                resuming = asyncio.get_running_loop().call_later(SLOW_FORK_SECONDS, process.resume)
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
            if resuming is not None:
                resuming.cancel()
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

    async def _keep_zygote(self) -> None:
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
                    assert self._process is None, "two zygotes"
                    self._process = process
                    self._is_up.set()
                    self._pool_wanted.set()
                    await process.lost.wait()
                    self.trouble = "it has just ended, and another one is starting"
                    self.restarts += 1
            finally:
                self._is_up.clear()
                self._process = None
                process.close()
            lived_seconds = time.monotonic() - process.started_at
            longer = min(max(backoff * 2, FIRST_BACKOFF_SECONDS), MAX_BACKOFF_SECONDS)
            backoff = FIRST_BACKOFF_SECONDS if lived_seconds > STABLE_SECONDS else longer

    async def _fill_pool(self) -> None:
        while True:
            await self._pool_wanted.wait()
            self._pool_wanted.clear()
            await self._is_up.wait()
            while len(self._pool) < self._context.config.session_pool and self.is_up:
                try:
                    worker = await self._make_worker(own_limits(self._context.config))
                except (Unavailable, ResourceExhausted):
                    break  # the next zygote, or the next session, sets ``_pool_wanted`` again
                try:
                    await worker.rehearse(await self._configuration(worker))
                except BaseException as error:
                    await worker.close()
                    if isinstance(error, WorkerLost):
                        break
                    raise
                worker.gone.add_done_callback(lambda _: self._pool_wanted.set())
                self._pool.append(worker)
                assert len(self._pool) <= self._context.config.session_pool
            dead = [worker for worker in self._pool if worker.gone.done()]
            self._pool = [worker for worker in self._pool if not worker.gone.done()]
            for worker in dead:
                await worker.close()
                self._pool_wanted.set()
            if dead:  # user code may kill the pool's workers again and again
                await asyncio.sleep(FIRST_BACKOFF_SECONDS)
