"""A session: an id, a cwd, an environment, and the workers that hold the state, one at a time.

Turns. The holder of the turn may use the worker: a cell, a request (completion, variables, fork), a
restart. First come, first served. A turn is a future: done when the turn has come, and given back
in any case.

Worker. ``ready_worker`` makes the worker in a turn. The end of a worker is noticed in two places:
by a callback on ``worker.gone``, and by the holder of the turn. The holder may resume before the
callback runs. Both call ``_detach``, and the second call does nothing. The session is then DEAD,
and the next turn begins a new generation. Each change of state goes through the table in
``session_state``.

Race: an interrupt and the end of the cell. The daemon asks the warden to send SIGINT, and the cell
ends before the signal arrives; the signal would hit the next cell. So ``ready_worker`` waits for
the warden's Pong before the worker gets other work. The Pong comes after the signal is sent.
Between cells a worker ignores SIGINT.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from execd.engine.sessions import worker_messages
from execd.engine.sessions.session_log import (
    MAX_PROMPT_CHARACTERS,
    CellStarted,
    LogBudget,
    SessionLog,
    StateChanged,
)
from execd.engine.sessions.session_state import SessionEvent, SessionLife, SessionState
from execd.engine.sessions.session_worker import (
    CONFIGURE_SECONDS,
    END_SECONDS,
    FORCED_NOTE,
    SessionWorker,
    WorkerLost,
    configuration,
)
from execd.errors import (
    Conflict,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    SessionBusy,
    Unavailable,
)
from execd.kernel import frames
from execd.model import ExitReason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from execd.engine.executions.context import EngineContext
    from execd.model import DialectName, Interpreter, Limits

log = logging.getLogger(__name__)

# A longer request is interrupted.
REQUEST_SECONDS = 5.0
# From the interrupt to KILL. KILL loses the session's state, and on a starved pod an honest
# completion takes seconds, so the grace is long. REQUEST_SECONDS and the grace together stay below
# the 30 s after which routers give up.
REQUEST_GRACE_SECONDS = 20.0
# Workers that may end on the way, one after the other, before the caller gets an error.
ATTEMPTS = 3
# The log tells the starts and ends of cells; completions and forks are short.
OWN_EVENTS = (SessionEvent.BEGIN, SessionEvent.REQUEST, SessionEvent.END)


class SessionHost(Protocol):
    """What a session may ask of its manager. ``Sessions`` implements the protocol."""

    log_budget: LogBudget

    async def take_worker(self, limits: Limits) -> SessionWorker:
        """Return an unused worker. Raises ResourceExhausted, Unavailable, NotSupported."""

    async def journal_generation(self, session: Session) -> None:
        """Write the session's generation to the journal."""

    def close_soon(self, worker: SessionWorker) -> asyncio.Task[None]:
        """Close a worker in the background."""


class Occupant(Protocol):
    """The running cell of a session."""

    @property
    def open_input_request(self) -> worker_messages.InputRequest | None:
        """The input request without an answer yet. None: the cell does not wait."""

    def end(self, cause: ExitReason, grace_seconds: float) -> None:
        """Interrupt the cell; kill the worker when ``grace_seconds`` are over."""

    def give_input(self, text: str) -> None:
        """Answer the open input request. Raises Conflict, InvalidArgument."""


class Session:
    """One session, DEAD at first. The first turn that needs a worker makes a worker."""

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
        original: Session | None = None,
        generation: int = 0,
    ) -> None:
        """``branch``: the worker to begin with, forked from the worker of ``original``.

        ``cwd`` None: the base dir. ``generation``: see ``SessionLife``.
        """
        self.id = session_id
        self.cwd = cwd
        self.env = env
        self.limits = limits
        self.dialect: DialectName | None = None
        """The dialect that lists the session as its own."""
        self.life: SessionLife = SessionLife(
            original=None if original is None else original.life, generation=generation
        )
        self.created_at = time.time()
        self.last_used_at = self.created_at
        self.execution_count: int = 0 if original is None else original.execution_count
        """The number of the last cell in the present generation, which counts from 1, and a branch
        from its original's number. While a cell runs, the number that the cell should have."""
        self.is_deleted = False
        """Waiting turns fail with NotFound."""
        self.is_journaled = True
        """Whether a later daemon must know the session. False: a session for a single cell."""
        self._journaled_generation = 0
        self.worker: SessionWorker | None = None
        self.cell: Occupant | None = None
        """The running cell."""
        self._context = context
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._created = self._used = self._loop.time()
        self._turns: deque[asyncio.Future[None]] = deque()
        self._holder: asyncio.Future[None] | None = None
        self._number = 0
        self._interrupt_sent: asyncio.Future[None] | None = None
        """Done when the warden has sent the last interrupt."""
        self._closing: set[asyncio.Task[None]] = set()
        """Former workers, being closed."""
        self.log = SessionLog(host.log_budget)
        if branch is not None:
            self._apply(SessionEvent.START)
            self._attach(branch)
            self._apply(SessionEvent.READY)

    def _apply(self, event: SessionEvent) -> None:
        """Go to the next state. The log has the change, unless the log has an event of its own for
        the change (BEGIN, END), or the state stays."""
        before = self.life.state
        self.life.apply(event)
        is_news = self.life.state is not before or event is SessionEvent.ASK
        if is_news and event not in OWN_EVENTS:
            self.note_state()

    def note_state(self) -> None:
        """Write the present state to the log."""
        question = self.open_input_request
        self.log.note(
            StateChanged(self.life.state, self.life.generation)
            if question is None
            else StateChanged(
                self.life.state,
                self.life.generation,
                question.prompt[:MAX_PROMPT_CHARACTERS],
                question.password,
            )
        )

    # Facts.

    @property
    def state(self) -> SessionState:
        return self.life.state

    @property
    def uptime_seconds(self) -> float:
        """Time since the session was made."""
        return self._loop.time() - self._created

    @property
    def idle_seconds(self) -> float:
        """Time since the last turn ended. 0: a turn is held now."""
        return 0.0 if self._holder is not None else self._loop.time() - self._used

    def note_restore(self, frozen_seconds: float) -> None:
        """The sandbox was restored: the time of the freeze is no idle time, and the state must not
        draw the numbers that another life of the same state draws."""
        self._used = min(self._used + frozen_seconds, self._loop.time())
        if self.worker is not None:
            self.worker.send({"type": "reseed"})

    @property
    def n_waiting(self) -> int:
        """The number of waiting turns."""
        return len(self._turns)

    @property
    def is_taken(self) -> bool:
        """Whether the turn is held. A newcomer must wait then."""
        return self._holder is not None

    @property
    def is_unused(self) -> bool:
        """Whether no cell ever ran, no worker exists and the turn is free."""
        return self.execution_count == 0 and self.worker is None and self._holder is None

    @property
    def generation(self) -> int:
        """The number of the latest generation; 0 before the first worker."""
        return self.life.generation

    @property
    def interpreter(self) -> Interpreter | None:
        """The Python that the state lives in. None: there is no worker."""
        return None if self.worker is None else self.worker.interpreter

    @property
    def pid(self) -> int | None:
        """The worker's pid, as user code sees it; None without a worker."""
        return None if self.worker is None else self.worker.pid

    @property
    def open_input_request(self) -> worker_messages.InputRequest | None:
        """The question that the running cell waits for. None: the cell does not wait."""
        return None if self.cell is None else self.cell.open_input_request

    @property
    def unclaimed_output_bytes(self) -> int:
        """Output that came while no cell ran, and that no reply has told."""
        return self.log.untold_bytes

    async def memory_bytes(self) -> int:
        """Measure the memory of the worker's tree; 0 without a worker."""
        return 0 if self.worker is None else await self.worker.memory_bytes()

    @property
    def generation_of_next_cell(self) -> int:
        """The generation in which a cell would run if the cell started now."""
        return self.life.generation + (self.worker is None or self.worker.is_ending)

    @property
    def own_environment(self) -> dict[str, str]:
        """The session's variables, for the worker and for commands run in the session."""
        return {"EXECD_SESSION_ID": self.id, **self.env}

    # Turns.

    def take_turn(self, *, wait: bool, is_next: bool = False) -> asyncio.Future[None]:
        """Return a future, done when the turn has come. Give the turn back in any case.

        ``is_next``: before all who wait. Raises SessionBusy if the turn is held and ``wait`` is
        false.
        """
        turn: asyncio.Future[None] = self._loop.create_future()
        if self._holder is None:
            assert not self._turns, "a waiting turn and no holder"
            self._holder = turn
            turn.set_result(None)
            return turn
        if not wait:
            raise SessionBusy(
                f"session {self.id!r} is busy; wait for the state IDLE, interrupt the cell, or "
                "(for a cell) send on_busy=queue",
                generation=self.life.generation,
            )
        if is_next:
            self._turns.appendleft(turn)
        else:
            self._turns.append(turn)
        return turn

    def give_turn(self, turn: asyncio.Future[None]) -> None:
        """Pass the turn on to the next in the queue. A turn still waiting leaves the queue."""
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

    @contextlib.asynccontextmanager
    async def turn(self, wait_seconds: float) -> AsyncGenerator[None, None]:
        """Hold the turn. Raises ResourceExhausted if the turn does not come in time."""
        turn = self.take_turn(wait=True)
        try:
            try:
                async with asyncio.timeout(wait_seconds):
                    await turn
            except TimeoutError:
                raise ResourceExhausted(
                    f"the session was busy for {wait_seconds:g} s; repeat the request later, or "
                    "interrupt the cell",
                    retry_after_seconds=1,
                ) from None
            yield
        finally:
            self.give_turn(turn)

    # The worker. The caller holds the turn.

    def next_number(self) -> int:
        """Return a number for a cell or a request, above all earlier numbers of the session."""
        self._number += 1
        return self._number

    async def ready_worker(self) -> SessionWorker:
        """Return the worker, made if there is none.

        Raises Unavailable, ResourceExhausted, InvalidArgument (the cwd cannot be entered), NotFound
        (the session was deleted).
        """
        assert self._holder is not None, "the caller holds the turn"
        if self._interrupt_sent is not None:  # see the module's text
            await asyncio.wait((self._interrupt_sent,))
            self._interrupt_sent = None
        if self.worker is not None and self.worker.is_ending:
            # Killed for an earlier reason: a grace that was over, too long a request, an eviction.
            # The worker must not get this turn's work.
            worker = self.worker
            await asyncio.wait((worker.gone,))
            self._detach(worker)
        self._refuse_deleted()
        if self.worker is not None:
            return self.worker
        self._apply(SessionEvent.START)
        try:
            worker = await self._make_worker()
        except BaseException:
            self._apply(SessionEvent.LOST)
            raise
        try:
            self._refuse_deleted()
        except NotFound:
            self._apply(SessionEvent.LOST)
            self._close_soon(worker)
            raise
        self._attach(worker)
        self.execution_count = 0
        self._apply(SessionEvent.READY)
        return worker

    async def _make_worker(self) -> SessionWorker:
        """Take an unused worker, and send the session's configuration.

        User code elsewhere may kill a worker on the way; then the next worker is tried. Raises
        Unavailable after ATTEMPTS workers, and the errors of ``ready_worker``.
        """
        for attempt in range(ATTEMPTS):
            worker = None
            try:
                worker = await self._host.take_worker(self.limits)
                await self._configure(worker)
            except BaseException as error:
                if worker is not None:
                    self._close_soon(worker)
                if not isinstance(error, WorkerLost):
                    raise
                log.warning(
                    "a worker ended before it was ready",
                    extra={"session": self.id, "attempt": attempt, "reason": str(error)},
                )
            else:
                return worker
        raise Unavailable(
            "workers end before they are ready; read the log of execd, and repeat the request"
        )

    async def _configure(self, worker: SessionWorker) -> None:
        """Send the configuration. Raises InvalidArgument if the cwd cannot be entered,
        WorkerLost."""
        frame = await configuration(worker, self._context, self.cwd, self.own_environment)
        if self.cwd is None:
            await self._context.ensure_base_dir()
        try:
            answer = await worker.request(frame, CONFIGURE_SECONDS)
        except frames.FrameError:
            # An environment alone fits: the check of ``env`` bounds its characters.
            raise worker_messages.too_long("env" if self.cwd is None else "cwd") from None
        if not isinstance(answer, worker_messages.Configured):
            refusal = "cwd, limits: refused by the worker"
            message = answer.message if isinstance(answer, worker_messages.Failed) else refusal
            raise InvalidArgument(message, field="cwd" if message.startswith("cwd") else "limits")

    def _refuse_deleted(self) -> None:
        if self.is_deleted:
            raise NotFound(f"session {self.id!r} was deleted; make another session")

    def _attach(self, worker: SessionWorker) -> None:
        assert self.worker is None
        self.worker = worker
        worker.on_background = self.log.take_output
        worker.gone.add_done_callback(lambda _: self._detach(worker))

    def _detach(self, worker: SessionWorker) -> None:
        if self.worker is worker:
            self.worker = None
            self.log.finish_output()
            self._apply(SessionEvent.LOST)
            self._close_soon(worker)

    async def worker_for_cell(self) -> SessionWorker:
        """Return the worker, once the generation is in the journal.

        The worker may end while the disk writes; then a fresh worker, of the next generation, takes
        the place.
        """
        while True:
            worker = await self.ready_worker()
            if not self.is_journaled or self._journaled_generation == self.life.generation:
                return worker
            await self.journal_generation()

    async def journal_generation(self) -> None:
        """Journal the generation, before the first cell.

        From the first cell on, the generation has state to lose, and a later daemon must be able to
        report the loss.
        """
        if self.is_journaled and self._journaled_generation != self.life.generation:
            self._journaled_generation = self.life.generation
            await self._host.journal_generation(self)

    def begin_cell(self, cell: Occupant, execution_id: str) -> bool:
        """Note the start of a cell.

        Return True for the first cell after the loss of an earlier generation's state.
        """
        assert self.cell is None, "two cells in one session"
        self._apply(SessionEvent.BEGIN)
        self.execution_count += 1
        self.cell = cell
        state_lost = self.life.report_loss()
        self.log.note(CellStarted(execution_id, self.life.generation, state_lost))
        return state_lost

    def end_cell(self, cell: Occupant, execution_count: int | None = None) -> None:
        """Note the end of a cell. Idempotent. ``execution_count``: the cell's own number; None: the
        cell has told no number."""
        if self.cell is cell:
            self.cell = None
            if execution_count is not None:
                self.execution_count = execution_count
            if self.worker is not None and self.worker.gone.done():
                self._detach(self.worker)
            self._apply(SessionEvent.END)

    def ask(self) -> None:
        """Note that the running cell asks for input."""
        self._apply(SessionEvent.ASK)

    def resume(self) -> None:
        """Note that the running cell waits for input no more."""
        self._apply(SessionEvent.RESUME)

    def interrupt(self, worker: SessionWorker, cell: int | None = None) -> None:
        """Have the warden send SIGINT: see ``SessionWorker.interrupt``. The next turn waits until
        the worker has got the signal."""
        worker.interrupt(cell)
        self._interrupt_sent = self._context.warden.confirm_sent()

    async def request(
        self,
        frame: dict[str, Any],
        descriptors: list[int] | None = None,
        *,
        only: SessionWorker | None = None,
    ) -> worker_messages.Reply:
        """Send a request to the worker and return the reply.

        Takes over ``descriptors``. ``only``: the intended worker; a later worker would have lost
        the state. Raises Conflict if the worker does not reply in time (the worker is killed then,
        and the state lost), has ended, or replies with a wrong frame.
        """
        worker = await self.ready_worker() if only is None else only
        if self.worker is not worker:
            for fd in descriptors or []:
                os.close(fd)
            raise Conflict(
                "the session's process has ended, and its state with it; repeat the request, for "
                "a new generation"
            )
        self._apply(SessionEvent.REQUEST)
        interrupting = None
        if descriptors is None:  # a fork cannot be interrupted
            interrupting = self._loop.call_later(REQUEST_SECONDS, self.interrupt, worker)
        try:
            timeout_seconds = REQUEST_SECONDS + REQUEST_GRACE_SECONDS
            answer = await worker.request(
                {**frame, "id": self.next_number()}, timeout_seconds, descriptors
            )
        except WorkerLost:
            raise Conflict(
                "the session's process ended over this question, and its state with it; make the "
                "state again in the next generation"
            ) from None
        finally:
            if interrupting is not None:
                interrupting.cancel()
            if worker.gone.done():
                self._detach(worker)
            self._apply(SessionEvent.END)
        if not isinstance(answer, worker_messages.Reply):
            raise Conflict("the session gave no answer to this question; repeat the request")
        return answer

    # The end.

    async def end(self) -> None:
        """End all processes of the session, which is deleted. Return when all have ended.
        Idempotent."""
        assert self.is_deleted, "waiting turns fail, and make no worker"
        await self.end_worker(ExitReason.CANCELED)
        if self._closing:  # former workers, with their trees
            await asyncio.wait(set(self._closing))

    async def end_worker(self, cause: ExitReason) -> None:
        """End the running cell, then the interpreter in order within END_SECONDS, then its tree.
        The state is lost. The end takes the next turn, before all waiting cells."""
        if self.cell is not None:
            self.cell.end(cause, END_SECONDS)
        worker = self.worker
        if worker is None:
            return
        turn = self.take_turn(wait=True, is_next=True)
        try:
            await asyncio.wait(
                (turn, worker.gone), timeout=END_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            note = None
            if not worker.is_ending:
                note = await worker.end(END_SECONDS) if turn.done() else FORCED_NOTE
            if note is not None:
                log.warning("an interpreter was killed before its end", extra={"session": self.id})
                self.log.take_output("stderr", note)
        finally:
            worker.kill()
            self.give_turn(turn)
        await asyncio.wait((worker.gone,))
        self._detach(worker)

    def _close_soon(self, worker: SessionWorker) -> None:
        closing = self._host.close_soon(worker)
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
