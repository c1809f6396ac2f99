"""One session: a name, a place in the file system, an environment; and, one after the other,
workers that hold its state.

Who may use the worker is whoever has the turn: cells, and the short questions (completion,
variables, fork). First come, first served.

A worker that ends is noticed by whoever uses it, and by ``_on_gone``: the session is then DEAD, and
the next turn begins a new generation. Its table is ``engine/sessions/session_state.py``; every step
of it is taken here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from execd.engine.sessions import worker_messages
from execd.engine.sessions.session_state import SessionEvent, SessionLife, SessionState
from execd.engine.sessions.session_worker import (
    CONFIGURE_SECONDS,
    SessionWorker,
    WorkerLost,
    lasting_rlimits,
)
from execd.errors import Conflict, InvalidArgument, NotFound, SessionBusy, Unavailable

if TYPE_CHECKING:
    from execd.engine.executions.context import EngineContext
    from execd.model import ExitReason, Limits

QUESTION_SECONDS = 5.0
ATTEMPTS = 3

log = logging.getLogger(__name__)


class SessionHost(Protocol):
    """Who gives a session its workers (``manager``)."""

    async def take_worker(self, limits: Limits) -> SessionWorker:
        """Raises ResourceExhausted, Unavailable."""

    async def note(self, session: Session) -> None:
        """Journal the session's generation."""

    def close_soon(self, worker: SessionWorker) -> asyncio.Task[None]:
        """Close a worker in the background."""


class Occupant(Protocol):
    """The cell that runs in a session."""

    @property
    def asks(self) -> worker_messages.InputRequest | None:
        """The question of ``input()`` that waits for an answer."""

    def end(self, cause: ExitReason, grace_seconds: float) -> None: ...

    def give_input(self, text: str) -> None: ...


class Session:
    """Made DEAD; the first turn that needs a worker gets it one."""

    def __init__(
        self,
        session_id: str,
        context: EngineContext,
        host: SessionHost,
        *,
        cwd: str | None,
        env: dict[str, str],
        limits: Limits,
        branch: SessionWorker | None = None,
        generation: int = 0,
    ) -> None:
        """``branch``: the worker that it begins with, forked from another session's.
        ``generation``: see ``SessionLife``."""
        self.id = session_id
        self.cwd = cwd
        self.env = env
        self.limits = limits
        self.life = SessionLife(inherits=branch is not None, generation=generation)
        self.created_at = time.time()
        self.last_used_at = self.created_at
        self.execution_count = 0
        self.is_deleted = False
        self.is_noted = True
        """Its name means something to somebody: it is journaled."""
        self._noted_generation = 0
        self.worker: SessionWorker | None = None
        self.cell: Occupant | None = None
        """The one that runs."""
        self._context = context
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._created = self._used = self._loop.time()
        self._turns: deque[asyncio.Future[None]] = deque()
        self._holder: asyncio.Future[None] | None = None
        self._number = 0
        self._signals: asyncio.Future[None] | None = None
        self._burials: set[asyncio.Task[None]] = set()
        if branch is not None:
            self.life.happens(SessionEvent.START)
            self._take(branch)
            self.life.happens(SessionEvent.READY)

    # Facts.

    @property
    def state(self) -> SessionState:
        return self.life.state

    @property
    def uptime_seconds(self) -> float:
        return self._loop.time() - self._created

    @property
    def idle_seconds(self) -> float:
        return 0.0 if self._holder is not None else self._loop.time() - self._used

    @property
    def n_waiting(self) -> int:
        return len(self._turns)

    @property
    def is_taken(self) -> bool:
        """Somebody has the turn: whoever comes now must wait."""
        return self._holder is not None

    @property
    def is_unused(self) -> bool:
        """It has run nothing, and nobody is about to."""
        return self.execution_count == 0 and self.worker is None and self._holder is None

    @property
    def generation_of_next_cell(self) -> int:
        return self.life.generation + (self.worker is None or self.worker.is_ending)

    @property
    def own_environment(self) -> dict[str, str]:
        return {"EXECD_SESSION_ID": self.id, **self.env}

    # Turns.

    def take_turn(self, *, wait: bool) -> asyncio.Future[None]:
        """Done when it has come; give it back in any case. Raises SessionBusy if it has not come
        and ``wait`` is false."""
        turn: asyncio.Future[None] = self._loop.create_future()
        if self._holder is None:
            self._holder = turn
            turn.set_result(None)
            return turn
        if not wait:
            raise SessionBusy(f"session {self.id!r} is busy", generation=self.life.generation)
        self._turns.append(turn)
        return turn

    def give_turn(self, turn: asyncio.Future[None]) -> None:
        """Let the next one have it; or leave the queue, if it never came."""
        if self._holder is not turn:
            if turn in self._turns:
                self._turns.remove(turn)
            return
        self._holder = None
        self._used, self.last_used_at = self._loop.time(), time.time()
        while self._turns:
            following = self._turns.popleft()
            if not following.done():
                self._holder = following
                following.set_result(None)
                return

    # The worker. Whoever calls these has the turn.

    def next_number(self) -> int:
        self._number += 1
        return self._number

    async def ready_worker(self) -> SessionWorker:
        """The worker, or a fresh one. Raises Unavailable, ResourceExhausted, InvalidArgument (its
        cwd), NotFound (deleted)."""
        if self._signals is not None:
            # An interrupt that is still on its way would hit what comes next.
            await asyncio.wait((self._signals,))
            self._signals = None
        if self.worker is not None and self.worker.is_ending:
            # For what came before: a grace that was over, a question that took too long, a time
            # without use.
            worker = self.worker
            await asyncio.wait((worker.gone,))
            self._lose(worker)
        self._refuse_deleted()
        if self.worker is not None:
            return self.worker
        self.life.happens(SessionEvent.START)
        try:
            worker = await self._make()
        except BaseException:
            self.life.happens(SessionEvent.LOST)
            raise
        try:
            self._refuse_deleted()
        except NotFound:
            self.life.happens(SessionEvent.LOST)
            self._close_soon(worker)
            raise
        self._take(worker)
        self.life.happens(SessionEvent.READY)
        return worker

    def _refuse_deleted(self) -> None:
        if self.is_deleted:
            raise NotFound(f"session {self.id!r} was deleted")

    async def _make(self) -> SessionWorker:
        """Once more if it ends on the way: user code elsewhere may kill all that it sees."""
        for attempt in range(ATTEMPTS):
            worker = await self._host.take_worker(self.limits)
            try:
                await self.configure(worker)
            except WorkerLost:
                self._close_soon(worker)
                log.warning(
                    "a worker ended before it was ready",
                    extra={"session": self.id, "attempt": attempt},
                )
            except BaseException:
                self._close_soon(worker)
                raise
            else:
                return worker
        raise Unavailable("workers end before they are ready")

    async def configure(self, worker: SessionWorker) -> None:
        """Raises InvalidArgument if the cwd cannot be entered, WorkerLost."""
        env, _ = await self._context.build_environment(worker.marker_id, self.own_environment)
        cwd = self.cwd or self._context.config.base_dir
        if self.cwd is None:
            await self._context.ensure_base_dir()
        limits = lasting_rlimits(self.limits, in_namespace=self._context.warden.has_namespace)
        frame = {"type": "configure", "cwd": cwd, "env": env, "limits": limits}
        answer = await worker.ask(frame, CONFIGURE_SECONDS)
        if not isinstance(answer, worker_messages.Configured):
            message = answer.message if isinstance(answer, worker_messages.Failed) else "refused"
            raise InvalidArgument(f"cwd, limits: {message}", field="cwd")

    def _take(self, worker: SessionWorker) -> None:
        self.worker = worker
        worker.gone.add_done_callback(lambda _: self._lose(worker))

    def _lose(self, worker: SessionWorker) -> None:
        if self.worker is worker:
            self.worker = None
            self.life.happens(SessionEvent.LOST)
            self._close_soon(worker)

    async def worker_for_cell(self) -> SessionWorker:
        """``ready_worker``, and its generation is noted; which takes a moment, in which it may
        end."""
        while True:
            worker = await self.ready_worker()
            if not self.is_noted or self._noted_generation == self.life.generation:
                return worker
            await self.note()

    async def note(self) -> None:
        """Before the first cell of a generation: from then on there is something to lose, and
        another daemon should know."""
        if self.is_noted and self._noted_generation != self.life.generation:
            self._noted_generation = self.life.generation
            await self._host.note(self)

    def begin(self, cell: Occupant) -> bool:
        """A cell begins. Returns whether it is the first one to miss the state of an earlier
        generation."""
        self.life.happens(SessionEvent.BEGIN)
        self.execution_count += 1
        self.cell = cell
        return self.life.tell_loss()

    def end(self, cell: Occupant) -> None:
        if self.cell is cell:
            self.cell = None
            if self.worker is not None and self.worker.gone.done():
                self._lose(self.worker)
            self.life.happens(SessionEvent.END)

    def interrupt(self, worker: SessionWorker) -> None:
        """SIGINT, and remember that it is on its way."""
        worker.interrupt()
        self._signals = self._context.warden.heard()

    async def ask(
        self,
        frame: dict[str, Any],
        descriptors: list[int] | None = None,
        *,
        only: SessionWorker | None = None,
    ) -> worker_messages.Reply:
        """A question to the worker, with the turn. Raises Conflict if it does not answer, and loses
        its state for that.

        ``only``: to this one, and not to one that has taken its place.
        """
        worker = await self.ready_worker() if only is None else only
        if self.worker is not worker:
            for fd in descriptors or []:
                os.close(fd)
            raise Conflict("the session's process has ended, and its state with it")
        self.life.happens(SessionEvent.BEGIN)
        ladder = None
        if descriptors is None:  # a fork cannot be interrupted
            ladder = self._loop.call_later(QUESTION_SECONDS, self.interrupt, worker)
        try:
            timeout_seconds = QUESTION_SECONDS + self._context.config.interrupt_grace_seconds
            answer = await worker.ask(
                {**frame, "id": self.next_number()}, timeout_seconds, descriptors
            )
        except WorkerLost:
            raise Conflict(
                "the session's process ended over this question, and its state with it"
            ) from None
        finally:
            if ladder is not None:
                ladder.cancel()
            if worker.gone.done():
                self._lose(worker)
            self.life.happens(SessionEvent.END)
        if not isinstance(answer, worker_messages.Reply):
            raise Conflict("the session gave no answer to this question")
        return answer

    # The end.

    async def drop_worker(self) -> None:
        """End the worker, and all that the session started. Its state is lost."""
        worker = self.worker
        if worker is not None:
            worker.kill()
            await asyncio.wait((worker.gone,))
            self._lose(worker)

    def _close_soon(self, worker: SessionWorker) -> None:
        burial = self._host.close_soon(worker)
        self._burials.add(burial)
        burial.add_done_callback(self._burials.discard)

    async def buried(self) -> None:
        """Until nothing is left of the workers that this session had, nor of what they started."""
        if self._burials:
            await asyncio.wait(set(self._burials))

    def refuse_waiting(self) -> None:
        """Deleted: those who wait for a turn are let through, to find that out."""
        self.is_deleted = True
