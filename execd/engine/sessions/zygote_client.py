"""The zygote, kept alive, and a pool of workers made in advance.

Processes. The zygote is an ordinary program to the warden. The zygote imports IPython, exercises
IPython once, and then only forks (``execd/kernel/zygote.py``).

Tasks. ``_keep_zygote`` starts a zygote while there is a warden, waits for the loss of the zygote,
and starts another zygote after a back-off. ``_fill_pool`` keeps ``session_pool`` workers ready. The
daemon's start waits for neither. User code that kills the zygote delays the next session by a
second and leaves the daemon alone.

Refusal. Of several interpreters the next takes the place of one that cannot serve
(``interpreter_choice``). The last is started no more, and callers get NotSupported at once.
A caller's request starts the interpreter again if the interpreter has changed, and then waits, as
for any start; or if REFUSED_SECONDS have passed since the last start, and then does not wait.

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
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from execd.engine.executions.limits import own_limits
from execd.engine.sessions.interpreter_choice import InterpreterChoice
from execd.engine.sessions.session_worker import (
    SessionWorker,
    WorkerLost,
    configuration,
    open_worker,
)
from execd.engine.sessions.zygote_process import InterpreterRefused, ZygoteLost, ZygoteProcess
from execd.errors import ExecdError, NotSupported, ResourceExhausted, Unavailable
from execd.proc.client import SpawnError, WardenLost

if TYPE_CHECKING:
    from execd.engine.executions.context import EngineContext
    from execd.engine.sessions.interpreter_refusal import Refusal
    from execd.engine.sessions.link import LinkTurns
    from execd.model import Limits

log = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 30.0
# After a zygote that was ready: user code may kill zygote or warden again and again, and a caller
# waits for an interpreter no longer than the queue's wait.
MAX_BACKOFF_AFTER_READY_SECONDS = 1.0
# After a life of this length the back-off begins at the first value again.
STABLE_SECONDS = 10.0
# A refused interpreter gets a new start, at a caller's request, this long after the last.
REFUSED_SECONDS = 60.0
# A start of an interpreter that served before may fail for trouble of the machine in this many ways
# that look like a fault of the interpreter.
MAX_DOUBTS = 3
# Pause before the pool is filled again. A fork right away would run beside the session that took
# the worker, and cost this session more time than the pool saves.
REFILL_SECONDS = 0.05
# A fork takes less on a busy machine, in gVisor. A slower zygote may have been stopped.
SLOW_FORK_SECONDS = 1.0
FACTS = ("python", "ipython", "import_seconds", "warnings")


class Zygote:
    """Keep one zygote alive, and the pool. Call ``start`` first and ``close`` last."""

    def __init__(self, context: EngineContext, turns: LinkTurns) -> None:
        self._context = context
        self._turns = turns
        self.facts: dict[str, Any] | None = None
        """The last zygote's ``ready``: versions of python and ipython, warnings."""
        self.trouble: str | None = None
        """Why there is no zygote. None: no trouble."""
        self.refusal: Refusal | None = None
        """Why the interpreter cannot serve sessions. None: not known to be so."""
        self.restarts = 0
        self._choice = InterpreterChoice(context.interpreters)
        self._refused_at = 0.0
        self._retry = asyncio.Event()
        """Set: a refused interpreter gets a new start."""
        self._is_decided = asyncio.Event()
        """Set: a zygote is ready, or the interpreter is refused."""
        self._process: ZygoteProcess | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._filling: asyncio.Task[None] | None = None
        self._pool: list[SessionWorker] = []
        self._pool_wanted = asyncio.Event()

    def describe(self) -> dict[str, Any]:
        """Describe the interpreter and the zygote, for /v1/capabilities."""
        known = {name: value for name, value in (self.facts or {}).items() if name in FACTS}
        return {
            "ready": self.is_up,
            "trouble": self.trouble,
            "refused": None if self.refusal is None else self.refusal._asdict(),
            "restarts": self.restarts,
            "interpreter": msgspec.structs.asdict(self._choice.current),
            **known,
        }

    @property
    def is_up(self) -> bool:
        """Whether a zygote is ready to fork."""
        return self._process is not None

    @property
    def n_pooled(self) -> int:
        """The number of workers in the pool."""
        return len(self._pool)

    def reseed(self) -> None:
        """Reseed the workers of the pool. Later workers are reseeded when they are forked."""
        for worker in self._pool:
            worker.send({"type": "reseed"})

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
            if not task.cancelling():  # a second cancel would cut off what the first began to close
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

        Raises WorkerLost (user code has ended the warden, the zygote or the new worker: the next
        call waits for the next zygote), Unavailable, ResourceExhausted, NotSupported.
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
        """Wait for a zygote, not known to be lost. Raises Unavailable, NotSupported."""
        self._reconsider()
        wait_seconds = self._context.config.queue_wait_seconds
        try:
            async with asyncio.timeout(wait_seconds):
                while True:
                    await self._is_decided.wait()
                    if self.refusal is not None:
                        raise NotSupported(
                            f"this sandbox has no Python for sessions: {self.refusal.message}",
                            cause=self.refusal.cause,
                        )
                    if self._process is not None and not self._process.lost.is_set():
                        return self._process
                    await asyncio.sleep(0)  # until ``_keep_zygote`` notices the loss
        except TimeoutError:
            raise Unavailable(
                f"no Python for sessions within {wait_seconds:g} s: "
                f"{self.trouble or 'it is starting'}; repeat the request later"
            ) from None

    def _reconsider(self) -> None:
        """Give a refused interpreter a new start, if the next start may end otherwise."""
        if self.refusal is None:
            return
        if self._choice.has_changed():
            self.refusal = None
            self._is_decided.clear()
            self._retry.set()
        elif time.monotonic() - self._refused_at > REFUSED_SECONDS:
            self._retry.set()

    def _refuse(self, refusal: Refusal, process: ZygoteProcess) -> bool:
        """Return whether another interpreter takes the place of the refused one."""
        is_last = self._choice.is_last
        refusal = self._choice.refuse(refusal, process.footprint)
        self.trouble = refusal.message
        fields = {"cause": refusal.cause, "reason": refusal.message}
        if not is_last:
            log.info("another interpreter is tried for sessions", extra=fields)
            return True
        if self.refusal != refusal:
            log.warning("the interpreter cannot serve sessions", extra=fields)
        self.refusal, self._refused_at = refusal, time.monotonic()
        self._retry.clear()
        self._is_decided.set()
        return False

    def _on_hang(self, refusal: Refusal, process: ZygoteProcess) -> None:
        """The last interpreter may go on: a slow disk looks the same."""
        if self._refuse(refusal, process):
            process.kill()

    async def _make_worker(self, limits: Limits) -> SessionWorker:
        """Fork a worker from the zygote.

        Raises WorkerLost, Unavailable, ResourceExhausted, NotSupported.
        """
        process = await self._wait_for_zygote()
        worker = open_worker(limits, self._turns, self._context)
        worker.interpreter = process.interpreter
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
        except (SpawnError, WardenLost) as error:
            if not process.lost.is_set():
                if isinstance(error, SpawnError):
                    log.warning("the zygote does not fork", extra={"reason": str(error)})
                process.kill()
            raise WorkerLost(f"a worker could not be made: {error}") from None
        finally:
            if resuming is not None:
                resuming.cancel()
        return worker

    # The two tasks.

    async def _keep_zygote(self) -> None:
        backoff = 0.0
        doubts = 0
        while True:
            await asyncio.sleep(backoff)
            await self._context.warden.up.wait()
            process = ZygoteProcess(self._turns, self._choice.current)
            refusal: Refusal | None = None
            max_backoff = MAX_BACKOFF_SECONDS
            try:
                try:
                    await self._context.ensure_base_dir()
                    await process.start(self._context, partial(self._on_hang, process=process))
                except InterpreterRefused as error:
                    refusal, doubts = error.refusal, doubts + 1
                    self.trouble = refusal.message
                except (SpawnError, WardenLost, ZygoteLost, ExecdError, OSError) as error:
                    self.trouble = str(error) or type(error).__name__
                    log.warning("no zygote: %s", self.trouble)
                else:
                    self.facts, self.trouble = process.ready.result(), None
                    self.refusal, doubts = None, 0
                    self._choice.settle()
                    max_backoff = MAX_BACKOFF_AFTER_READY_SECONDS
                    log.info(
                        "python for sessions is ready",
                        extra={name: self.facts[name] for name in FACTS},
                    )
                    assert self._process is None, "two zygotes"
                    self._process = process
                    self._is_decided.set()
                    self._pool_wanted.set()
                    await process.lost.wait()
                    self.trouble = "it has just ended, and another one is starting"
                    self.restarts += 1
            finally:
                self._process = None
                if self.refusal is None:
                    self._is_decided.clear()
                process.close()
            if (
                refusal is not None
                # A start during a change may have met half of each interpreter: the kernel reads a
                # script's first line, and the script's interpreter opens the path again.
                and not process.footprint.has_changed()
                and (refusal.is_certain or self.facts is None or doubts >= MAX_DOUBTS)
            ):
                if not self._refuse(refusal, process):
                    await self._retry.wait()
                    self._choice.begin_again()
                backoff = 0.0
                continue
            lived_seconds = time.monotonic() - process.started_at
            longer = min(max(backoff * 2, FIRST_BACKOFF_SECONDS), max_backoff)
            backoff = FIRST_BACKOFF_SECONDS if lived_seconds > STABLE_SECONDS else longer

    async def _fill_pool(self) -> None:
        while True:
            await self._pool_wanted.wait()
            self._pool_wanted.clear()
            try:
                await self._fill_pool_once()
            except Exception:
                # A task that ends in silence would leave the pool empty for good.
                log.exception("the pool of workers could not be filled")
                self._pool_wanted.set()
                await asyncio.sleep(MAX_BACKOFF_AFTER_READY_SECONDS)

    async def _fill_pool_once(self) -> None:
        """Make the missing workers, and part with dead ones."""
        while len(self._pool) < self._context.config.session_pool and self.is_up:
            try:
                worker = await self._make_worker(own_limits(self._context.config))
            except (WorkerLost, ResourceExhausted):
                await self._fill_pool_later()
                break
            except (Unavailable, NotSupported):
                break  # the next zygote sets ``_pool_wanted`` again
            try:
                await worker.rehearse(await configuration(worker, self._context, None, {}))
            except BaseException as error:
                await worker.close()
                if isinstance(error, WorkerLost):
                    await self._fill_pool_later()
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

    async def _fill_pool_later(self) -> None:
        """Try again after the loss of a worker that was not ready yet, or without a descriptor for
        a worker.

        If user code has killed the worker alone, no new zygote follows, and no session may come for
        hours. Descriptors that callers have taken come back without an event.
        """
        self._pool_wanted.set()
        await asyncio.sleep(FIRST_BACKOFF_SECONDS)
