"""The sessions' life: create, declare, branch, restart, evict, delete; and their cells.

Only a deleted session is forgotten. A session whose worker ended (killed, lost with the warden, or
idle for too long) keeps the id, cwd and environment. The next cell runs in the next generation, and
the cell's result reports the loss of the state.

Tasks. Work that must end even if the caller leaves (closing workers, forks, deletions after a cell)
runs in background tasks; ``close`` waits for them.

Races:

* An id is free when a fork begins, and taken when the fork's workers are ready. ``_fork`` checks
  the id a second time, and closes the workers if the id is taken.
* The caller of a fork is cancelled. The fork goes on alone, because a half-made fork would leave
  processes behind; the branches are deleted when the fork is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from execd.engine.executions.command import (
    check_session_environment,
    resolved_cwd,
    run_seconds,
)
from execd.engine.executions.execution import Execution
from execd.engine.executions.limits import NO_LIMITS, narrower, own_limits
from execd.engine.sessions import session_fork, worker_messages
from execd.engine.sessions.cell_run import CellRunner
from execd.engine.sessions.link import FrameLease, LinkTurns
from execd.engine.sessions.session import Session
from execd.engine.sessions.session_log import LogBudget
from execd.engine.sessions.session_table import NAMES_PER_SESSION, SessionTable, check_id
from execd.engine.sessions.zygote_client import Zygote
from execd.engine.store.journal import SessionDeleted, SessionRecorded
from execd.errors import (
    Conflict,
    ExecdError,
    InvalidArgument,
    NotSupported,
    ResourceExhausted,
    Unavailable,
)
from execd.kernel import frames
from execd.model import CellFacts, ExitReason, Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from execd.config import Config
    from execd.engine.executions.context import EngineContext
    from execd.engine.executions.execution import Keeper
    from execd.engine.executions.execution_record import Registration
    from execd.engine.executions.submission import CellOptions
    from execd.engine.sessions.interpreter_refusal import Refusal
    from execd.engine.sessions.session_worker import SessionWorker
    from execd.model import Command, DialectName

log = logging.getLogger(__name__)

MAX_COMPLETED_CHARACTERS = 512
"""Characters before the cursor that ``complete`` looks at. Earlier characters of the line are
ignored.

With 16,384 characters a completion of IPython took 5 s."""

T = TypeVar("T")


class Sessions(SessionTable):
    """Own every session and the zygote. Call ``start`` first and ``close`` last.

    Implements ``session.SessionHost``.
    """

    def __init__(
        self,
        context: EngineContext,
        keeper: Keeper,
        lease: Callable[[], FrameLease],
        plan_round: Callable[[float], None],
    ) -> None:
        """``lease`` makes a lease of the budget for bytes in flight, for each link to a worker.
        ``plan_round`` has the housekeeper begin a round at a time of the loop's clock."""
        super().__init__()
        self.config: Config = context.config
        self._context = context
        self._keeper = keeper
        self._plan_round = plan_round
        self._turns = LinkTurns(lease)
        self.log_budget = LogBudget()
        self.zygote = Zygote(context, self._turns)
        self._is_draining = False
        self._write_journal = context.store.write_journal
        self._former_generations = context.store.journal.generations
        """Sessions of former daemons: id -> generation reached."""
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        """Start the zygote, if ``--sessions eager``. Otherwise the first session does."""
        if self.config.sessions == "eager":
            self.zygote.start()

    def drain(self) -> None:
        """Refuse new sessions and new cells from now on."""
        self._is_draining = True

    def end_streams(self) -> None:
        """End the streams of all sessions' readers."""
        for session in self._sessions.values():
            session.log.close(is_deleted=False)

    def refuse_all(self) -> None:
        """Make no more workers, and kill the workers there are."""
        self.zygote.stop_tasks()
        for session in self._sessions.values():
            session.is_deleted = True
            if session.worker is not None:
                session.worker.kill()

    async def end_workers(self, until: float) -> None:
        """End every session's interpreter in order, until this time of the loop's clock at most."""
        ending = [
            self._run_in_background(session.end_worker(ExitReason.SHUTDOWN), "session-end")
            for session in self._sessions.values()
            if session.worker is not None
        ]
        if ending:
            await asyncio.wait(ending, timeout=until - asyncio.get_running_loop().time())

    async def close(self, within_seconds: float) -> None:
        """Wait ``within_seconds`` at most until every worker has ended and is closed.

        The engine calls ``close`` after the warden's end. Every worker has ended then, so the wait
        is short.
        """
        until = time.monotonic() + within_seconds
        ending = [
            session.worker.gone for session in self._sessions.values() if session.worker is not None
        ]
        if ending:
            await asyncio.wait(ending, timeout=within_seconds)
        self._run_in_background(self.zygote.close(), "zygote-end")
        while self._tasks and (left := until - time.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=left)

    async def end_episode(self, within_seconds: float) -> bool:
        """Forget all sessions, of former daemons too, and begin anew without an interpreter. Call
        after ``drain``, ``refuse_all`` and the warden's end. Return whether every worker and task
        has ended in time."""
        gone = [one.worker.gone for one in self._sessions.values() if one.worker is not None]
        pending: set[asyncio.Future[Any]] = set()
        if gone:
            _, pending = await asyncio.wait(gone, timeout=within_seconds)
        for session in list(self._sessions.values()):
            self._remove(session)
        self._run_in_background(self.zygote.close(), "zygote-end")
        until = time.monotonic() + within_seconds
        while self._tasks and (left := until - time.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=left)
        restarts, self.zygote = self.zygote.restarts, Zygote(self._context, self._turns)
        self.zygote.restarts = restarts
        self._former_generations.clear()
        return not pending and not self._tasks

    def begin_again(self) -> None:
        """Take sessions again, after ``drain`` and ``end_episode``."""
        self._is_draining = False
        self.start()

    @property
    def refusal(self) -> Refusal | None:
        """Why the interpreter cannot serve sessions. None: not known to be so."""
        return self.zygote.refusal

    def facts(self) -> dict[str, Any]:
        """Describe the interpreter of sessions, for /v1/capabilities."""
        return {"mode": self.config.sessions, **self.zygote.describe()}

    # Called by sessions (``SessionHost``).

    async def take_worker(self, limits: Limits) -> SessionWorker:
        """Return an unused worker. Raises ResourceExhausted, Unavailable, NotSupported."""
        if self.n_live > self.config.max_sessions:  # the calling session is STARTING, and counts
            raise ResourceExhausted(
                f"{self.config.max_sessions} sessions are alive already; delete one, or repeat the "
                "request later",
                retry_after_seconds=5,
            )
        worker = await self.zygote.take(limits)
        self._plan_eviction()
        return worker

    async def journal_generation(self, session: Session) -> None:
        """Write the session's generation to the journal."""
        await self._write_journal(SessionRecorded(session.id, session.generation))

    def close_soon(self, worker: SessionWorker) -> asyncio.Task[None]:
        """Close a worker in the background."""
        return self._run_in_background(worker.close(), "worker-close")

    def _run_in_background(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Sessions.

    async def create(
        self,
        *,
        session_id: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        limits: Limits = NO_LIMITS,
        dialect: DialectName | None = None,
    ) -> Session:
        """Make a session with a worker, ready to run cells.

        Raises the errors of ``declare`` and ``Session.ready_worker``; then there is no session.
        """
        session = self.declare(
            session_id=session_id, cwd=cwd, env=env, limits=limits, dialect=dialect
        )
        turn = session.take_turn(wait=False)
        try:
            await session.ready_worker()
        except BaseException:
            self.forget(session)
            raise
        finally:
            session.give_turn(turn)
        return session

    def declare(
        self,
        *,
        session_id: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        limits: Limits = NO_LIMITS,
        dialect: DialectName | None = None,
    ) -> Session:
        """Make a session without a worker; the first use makes a worker. ``dialect``: the dialect
        that lists the session as its own; None: no dialect does.

        Raises InvalidArgument, Conflict (the id is taken), ResourceExhausted, NotSupported,
        Unavailable (draining).
        """
        if self.config.sessions == "off":
            raise NotSupported("sessions are switched off here (--sessions)")
        if self._is_draining:
            raise Unavailable("execd is shutting down; repeat the request when execd is back")
        session_id = check_id(session_id)
        self._refuse_taken(session_id)
        if len(self._sessions) >= self.config.max_sessions * NAMES_PER_SESSION:
            raise ResourceExhausted(
                "too many sessions are remembered; delete some", retry_after_seconds=60
            )
        check_session_environment(env or {})
        session = Session(
            session_id,
            self._context,
            self,
            cwd=resolved_cwd(self.config, cwd),
            env=dict(env or {}),
            limits=narrower(limits, own_limits(self.config)),
            generation=self._former_generations.get(session_id, 0),
        )
        session.dialect = dialect
        self._add(session)
        return session

    async def end(self, session: Session) -> None:
        """Forget a session and end all processes of the session. Return when all have ended.

        Idempotent.
        """
        if self._remove(session):
            self._former_generations.pop(session.id, None)
            if session.is_journaled:
                await self._write_journal(SessionDeleted(session.id))
        await session.end()

    def forget(self, session: Session) -> None:
        """Forget a session without a worker, which no caller knows."""
        self._remove(session)

    def forget_unless_used(self, session: Session, execution: Execution) -> None:
        """Forget the session after ``execution``, if no cell ever ran.

        For a session made along with a first cell: if the cell is refused, no caller learns of the
        session.
        """

        async def wait_and_forget() -> None:
            with contextlib.suppress(ExecdError):
                await execution.wait()
            if session.is_unused:
                self.forget(session)

        self._run_in_background(wait_and_forget(), "new-session")

    def end_after(self, session: Session, execution: Execution) -> None:
        """Delete the session after ``execution``, the session's only cell."""
        session.is_journaled = False

        async def wait_and_delete() -> None:
            with contextlib.suppress(ExecdError):
                await execution.wait()
            await self.end(session)

        self._run_in_background(wait_and_delete(), "ephemeral-session")

    async def restart(self, session: Session) -> None:
        """End the session's worker, busy or not, and make a fresh worker.

        Raises ResourceExhausted if the turn does not come in time, and the errors of
        ``Session.ready_worker``.
        """
        await session.end_worker(ExitReason.INTERRUPTED)
        async with session.turn(self.config.queue_wait_seconds):
            await session.ready_worker()

    def interrupt(self, session: Session) -> bool:
        """Interrupt the running cell (see ``cell_run``). Return whether a cell runs."""
        if session.cell is None:
            return False
        session.cell.end(ExitReason.INTERRUPTED, self.config.interrupt_grace_seconds)
        return True

    def give_input(self, session: Session, text: str) -> None:
        """Answer the ``input()`` of the running cell.

        Raises Conflict if no cell waits for input, InvalidArgument for too long a text.
        """
        if session.cell is None or session.open_input_request is None:
            raise Conflict(
                "no cell of this session waits for input; wait for the state WAITING_INPUT"
            )
        session.cell.give_input(text)

    async def complete(self, session: Session, code: str, cursor: int) -> worker_messages.Reply:
        """Complete the name at ``cursor``, a count of characters, by the nearest
        MAX_COMPLETED_CHARACTERS of the line before the cursor.

        Raises SessionBusy, Conflict.
        """
        # IPython looks at the line with the cursor alone, and takes time with the square of the
        # line's length; an interpreter that answers too late loses its state.
        start = max(code.rfind("\n", 0, cursor) + 1, cursor - MAX_COMPLETED_CHARACTERS)
        part = code[start : cursor + MAX_COMPLETED_CHARACTERS]
        answer = await self._request(
            session, {"type": "complete", "code": part, "cursor": cursor - start}
        )
        return msgspec.structs.replace(
            answer,
            cursor_start=None if answer.cursor_start is None else start + answer.cursor_start,
            cursor_end=None if answer.cursor_end is None else start + answer.cursor_end,
        )

    async def variables(self, session: Session, limit: int) -> worker_messages.Reply:
        """List the variables, ``limit`` at most. Raises SessionBusy, Conflict."""
        return await self._request(session, {"type": "variables", "limit": limit})

    async def _request(self, session: Session, frame: dict[str, Any]) -> worker_messages.Reply:
        turn = session.take_turn(wait=False)
        try:
            answer = await session.request(frame)
        finally:
            session.give_turn(turn)
        if answer.error is not None:
            raise Conflict(
                f"the session could not answer: {answer.error}; repeat the request, or run code "
                "that finds the same out"
            )
        return answer

    # Cells.

    def begin_cell(
        self, session: Session, command: Command, options: CellOptions, registration: Registration
    ) -> Execution:
        """Run the cell when the session gives it a turn. Raises SessionBusy, ResourceExhausted,
        InvalidArgument, Unavailable."""
        if self._is_draining:
            raise Unavailable("execd is shutting down; repeat the request when execd is back")
        check_session_environment(command.env)
        if (
            session.is_taken
            and sum(other.n_waiting for other in self._sessions.values()) >= self.config.max_queued
        ):
            raise ResourceExhausted(
                f"the queue is full ({self.config.max_queued}); repeat the request later, or "
                "interrupt the cells that run",
                retry_after_seconds=1,
            )
        command = msgspec.structs.replace(
            command,
            cwd=session.cwd,
            timeout_seconds=run_seconds(self.config, command),
            queue_seconds=self.config.queue_wait_seconds,
            limits=session.limits,
            on_disconnect=command.on_disconnect or self.config.on_disconnect,
        )
        return Execution(
            registration,
            command,
            self._context,
            self._keeper,
            CellRunner(session, options, self.config),
            CellFacts(session_id=session.id),
        ).begin()

    # Branches.

    async def fork(
        self, session: Session, *, session_id: str | None, count: int
    ) -> tuple[list[Session], list[str]]:
        """Branch the live state of an idle session. Return the branches and the warnings.

        The warnings name the parts of the state missing in the branches. Raises InvalidArgument;
        SessionBusy; Conflict if the worker refuses or the id is taken; ResourceExhausted. A
        cancelled caller leaves no branches.
        """
        if count > frames.MAX_BRANCHES:
            raise InvalidArgument(
                f"count: at most {frames.MAX_BRANCHES} in one request", field="count"
            )
        if session_id is not None and count != 1:
            raise InvalidArgument(
                "id: names one branch, not several; leave out id, or count", field="id"
            )
        ids = [check_id(session_id) for _ in range(count)]
        self._refuse_taken(ids[0])
        if self.n_live + count > self.config.max_sessions:
            raise ResourceExhausted(
                f"{count} more would be over {self.config.max_sessions} sessions; delete sessions, "
                "or ask for fewer branches",
                retry_after_seconds=5,
            )
        self._n_branching += count
        forking = self._run_in_background(self._fork(session, ids), "fork")
        forking.add_done_callback(lambda _: self._end_branching(count))
        try:
            return await asyncio.shield(forking)
        except asyncio.CancelledError:
            forking.add_done_callback(self._end_branches)
            raise

    async def _fork(self, session: Session, ids: list[str]) -> tuple[list[Session], list[str]]:
        turn = session.take_turn(wait=False)
        try:
            workers, warnings = await session_fork.fork(
                session, ids, self._context, self._turns, self.close_soon
            )
        finally:
            session.give_turn(turn)
        try:
            self._refuse_taken(ids[0])  # see the module's text
        except Conflict:
            for worker in workers:
                self.close_soon(worker)
            raise
        branches = [
            Session(
                branch_id,
                self._context,
                self,
                cwd=session.cwd,
                env=session.env,
                limits=session.limits,
                branch=worker,
                original=session,
                generation=self._former_generations.get(branch_id, 0),
            )
            for branch_id, worker in zip(ids, workers, strict=True)
        ]
        for branch in branches:
            self._add(branch)
        self._context.counters.branches += len(branches)
        self._plan_eviction()
        for branch in branches:
            if branch.life.has_state:
                await branch.journal_generation()
        return branches, warnings

    def _end_branching(self, count: int) -> None:
        self._n_branching -= count
        assert self._n_branching >= 0

    def _end_branches(self, forking: asyncio.Task[tuple[list[Session], list[str]]]) -> None:
        """Delete the branches of a fork with a cancelled caller."""
        if not forking.cancelled() and forking.exception() is None:
            for branch in forking.result()[0]:
                self._run_in_background(self.end(branch), "abandoned-branch")

    # Housekeeping.

    def next_eviction(self) -> float:
        """Return when the next session may have been idle for too long, on the loop's clock;
        infinity if no session has a worker."""
        longest_idle_seconds = max(
            (session.idle_seconds for session in self._sessions.values() if session.worker),
            default=-math.inf,
        )
        now = asyncio.get_running_loop().time()
        return now + self.config.session_idle_seconds - longest_idle_seconds

    def _plan_eviction(self) -> None:
        """To be called when a session gets a worker."""
        self._plan_round(asyncio.get_running_loop().time() + self.config.session_idle_seconds)

    def note_restore(self, frozen_seconds: float) -> None:
        """The sandbox was restored from a checkpoint. See ``Session.note_restore``."""
        self.zygote.reseed()
        for session in self._sessions.values():
            session.note_restore(frozen_seconds)

    def evict_idle(self) -> None:
        """End the workers of sessions idle for longer than ``session_idle_seconds``."""
        for session in self._sessions.values():
            if (
                session.worker is not None
                and session.idle_seconds > self.config.session_idle_seconds
            ):
                log.info("idle session evicted", extra={"session": session.id})
                self._run_in_background(self._evict(session), "eviction")

    async def _evict(self, session: Session) -> None:
        if not session.is_taken:  # a cell may have come since
            await session.end_worker(ExitReason.CANCELED)
