"""All sessions: made, found, branched, evicted, deleted; and what they need of the engine.

Only deleted ids are forgotten. A session whose worker is gone (it died, the warden died, it was
idle for too long) keeps its name, cwd and environment; its next cell runs in the next generation,
and says that state was lost.

What counts against ``max_sessions`` is live workers; names alone cost a kilobyte, and there may be
NAMES_PER_SESSION times as many.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from execd.engine.executions import command as commands
from execd.engine.executions.execution import Execution
from execd.engine.sessions import session_fork
from execd.engine.sessions.cell_run import CellRunner
from execd.engine.sessions.link_turns import FrameLease, LinkTurns
from execd.engine.sessions.session import Session
from execd.engine.sessions.session_state import SessionState
from execd.engine.sessions.zygote_client import FACTS, Zygote
from execd.engine.store.journal import SessionDeleted, SessionRecorded
from execd.errors import (
    Conflict,
    ExecdError,
    InvalidArgument,
    NotFound,
    NotSupported,
    ResourceExhausted,
    Unavailable,
)
from execd.kernel.frames import MAX_BRANCHES
from execd.model import CellFacts, ExitReason, Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from execd.config import Config
    from execd.engine.executions.context import EngineContext
    from execd.engine.executions.execution import Keeper, Registration
    from execd.engine.sessions import worker_messages
    from execd.engine.sessions.cell_run import CellOptions
    from execd.engine.sessions.session_worker import SessionWorker
    from execd.model import Command

log = logging.getLogger(__name__)

NAMES_PER_SESSION = 16
NO_LIMITS = Limits()

T = TypeVar("T")


class Sessions:
    """``start`` and ``close`` bracket its life. Implements what ``session`` and ``zygote`` ask
    for."""

    def __init__(
        self, context: EngineContext, keeper: Keeper, lease: Callable[[], FrameLease]
    ) -> None:
        """``lease``: a share of the budget for bytes in flight, for each link to a worker."""
        self.config: Config = context.config
        self._context = context
        self._keeper = keeper
        self._turns = LinkTurns(lease)
        self.zygote = Zygote(context, self._turns)
        self._is_draining = False
        self._sessions: dict[str, Session] = {}
        self._n_branching = 0
        self._journal = context.store.write_journal
        self._former = context.store.journal.generations
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        if self.config.sessions == "eager":
            self.zygote.start()

    def drain(self) -> None:
        """Take no new session and no new cell."""
        self._is_draining = True

    def refuse_all(self) -> None:
        """Give nobody a worker any more, and end those there are."""
        self.zygote.cease()
        for session in self._sessions.values():
            session.refuse_waiting()
            if session.worker is not None:
                session.worker.kill()

    async def close(self, within_seconds: float) -> None:
        """Until nothing is left of any worker, or the time is over. Called when the warden is gone,
        it has little to wait for."""
        until = time.monotonic() + within_seconds
        ending = [
            session.worker.gone for session in self._sessions.values() if session.worker is not None
        ]
        if ending:
            await asyncio.wait(ending, timeout=within_seconds)
        self._later(self.zygote.close(), "zygote-end")
        while self._tasks and (left := until - time.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=left)

    def facts(self) -> dict[str, Any]:
        """What can be said of the interpreter that sessions run in."""
        zygote = self.zygote
        known = {name: value for name, value in (zygote.facts or {}).items() if name in FACTS}
        return {
            "mode": self.config.sessions,
            "ready": zygote.is_up,
            "trouble": zygote.trouble,
            "restarts": zygote.restarts,
            **known,
        }

    # What sessions and the zygote need.

    async def take_worker(self, limits: Limits) -> SessionWorker:
        if self.n_live > self.config.max_sessions:  # the one that asks is STARTING already
            raise ResourceExhausted(
                f"{self.config.max_sessions} sessions are alive already", retry_after_seconds=5
            )
        return await self.zygote.take(limits)

    async def note(self, session: Session) -> None:
        await self._journal(SessionRecorded(session.id, session.life.generation))

    def close_soon(self, worker: SessionWorker) -> asyncio.Task[None]:
        """Close it in the background."""
        return self._later(worker.close(), "worker-burial")

    def _later(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Sessions.

    @property
    def n_live(self) -> int:
        return self._n_branching + sum(
            session.state is not SessionState.DEAD for session in self._sessions.values()
        )

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: str) -> Session:
        """Raises NotFound."""
        session = self._sessions.get(session_id)
        if session is None:
            raise NotFound(f"there is no session {session_id!r}")
        return session

    def find(self, session_id: str | None) -> Session | None:
        return None if session_id is None else self._sessions.get(session_id)

    def page(self, *, limit: int, cursor: str | None) -> tuple[list[Session], str | None]:
        """The oldest first, and a cursor for what comes after them."""
        found = sorted(self._sessions.values(), key=_age)
        if cursor is not None:
            created_at, _, session_id = cursor.partition(":")
            try:
                last = (float(created_at), session_id)
            except ValueError:
                raise InvalidArgument("cursor: not one of ours", field="cursor") from None
            found = [session for session in found if _age(session) > last]
        page = found[:limit]
        return page, f"{page[-1].created_at!r}:{page[-1].id}" if len(found) > limit else None

    async def create(
        self,
        *,
        session_id: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        limits: Limits = NO_LIMITS,
    ) -> Session:
        """Return when it can run cells. Raises Conflict for an id that is taken, and what keeps it
        from being ready."""
        session = self.declare(session_id=session_id, cwd=cwd, env=env, limits=limits)
        turn = session.take_turn(wait=False)
        try:
            await session.ready_worker()
        except BaseException:
            self._sessions.pop(session.id, None)
            session.refuse_waiting()
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
    ) -> Session:
        """It has a name, and gets its worker at its first use. Raises InvalidArgument, Conflict,
        ResourceExhausted, NotSupported."""
        if self.config.sessions == "off":
            raise NotSupported("sessions are switched off here (--sessions)")
        if self._is_draining:
            raise Unavailable("execd is shutting down")
        session_id = check_id(session_id)
        self._refuse_taken(session_id)
        if len(self._sessions) >= self.config.max_sessions * NAMES_PER_SESSION:
            raise ResourceExhausted(
                "too many sessions are remembered: delete some", retry_after_seconds=60
            )
        commands.check_environment(env or {})
        session = Session(
            session_id,
            self._context,
            self,
            cwd=commands.resolved_cwd(self.config, cwd),
            env=dict(env or {}),
            limits=commands.narrower(limits, commands.own_limits(self.config)),
            generation=self._former.get(session_id, 0),
        )
        self._sessions[session_id] = session
        return session

    async def delete(self, session: Session) -> None:
        """End all that it started, and forget it."""
        was_known = self._sessions.get(session.id) is session
        if was_known:
            del self._sessions[session.id]
            self._former.pop(session.id, None)
        session.refuse_waiting()
        if was_known and session.is_noted:
            await self._journal(SessionDeleted(session.id))
        if session.cell is not None:
            session.cell.end(ExitReason.CANCELED, 0.0)
        await session.drop_worker()
        await session.buried()  # its tree is gone when the answer comes

    def forget(self, session: Session) -> None:
        """It has no worker, and nobody was told of it."""
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]
        session.refuse_waiting()

    def forget_unless_used(self, session: Session, execution: Execution) -> None:
        """It was made for this cell, which may not come to run: then nobody was told of the
        session."""

        async def wait_and_forget() -> None:
            with contextlib.suppress(ExecdError):
                await execution.wait()
            if session.is_unused:
                self.forget(session)

        self._later(wait_and_forget(), "new-session")

    def delete_after(self, session: Session, execution: Execution) -> None:
        """It is for this one cell."""
        session.is_noted = False

        async def wait_and_delete() -> None:
            with contextlib.suppress(ExecdError):
                await execution.wait()
            await self.delete(session)

        self._later(wait_and_delete(), "ephemeral-session")

    async def restart(self, session: Session) -> None:
        """End its worker, whatever it does, and give it a fresh one."""
        if session.cell is not None:
            session.cell.end(ExitReason.INTERRUPTED, 0.0)
        await session.drop_worker()
        async with _Turn(session, self.config.queue_wait_seconds):
            await session.ready_worker()

    def interrupt(self, session: Session) -> bool:
        """Begin the ladder for the cell that runs. Whether there is one."""
        if session.cell is None:
            return False
        session.cell.end(ExitReason.INTERRUPTED, self.config.interrupt_grace_seconds)
        return True

    def give_input(self, session: Session, text: str) -> None:
        """Raises Conflict if no cell waits for input, InvalidArgument for a text that is too
        long."""
        if session.cell is None or session.cell.asks is None:
            raise Conflict("no cell of this session waits for input")
        session.cell.give_input(text)

    async def complete(self, session: Session, code: str, cursor: int) -> worker_messages.Reply:
        """Raises SessionBusy, Conflict."""
        return await self._ask(session, {"type": "complete", "code": code, "cursor": cursor})

    async def variables(self, session: Session, limit: int) -> worker_messages.Reply:
        """Raises SessionBusy, Conflict."""
        return await self._ask(session, {"type": "variables", "limit": limit})

    async def _ask(self, session: Session, frame: dict[str, Any]) -> worker_messages.Reply:
        turn = session.take_turn(wait=False)
        try:
            answer = await session.ask(frame)
        finally:
            session.give_turn(turn)
        if answer.error is not None:
            raise Conflict(f"the session could not answer: {answer.error}")
        return answer

    # Cells.

    def begin_cell(
        self, session: Session, command: Command, options: CellOptions, registration: Registration
    ) -> Execution:
        """Run the cell when the session gives it a turn. Raises SessionBusy, ResourceExhausted,
        InvalidArgument, Unavailable."""
        if self._is_draining:
            raise Unavailable("execd is shutting down")
        if (
            session.is_taken
            and sum(other.n_waiting for other in self._sessions.values()) >= self.config.max_queued
        ):
            raise ResourceExhausted(
                f"{self.config.max_queued} cells wait already", retry_after_seconds=1
            )
        command = msgspec.structs.replace(
            command,
            cwd=session.cwd,
            timeout_seconds=commands.least(
                command.timeout_seconds, self.config.timeout, "timeout_seconds"
            ),
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
        """Branch the live state of an idle session. Returns the branches and what did not come
        along.

        Raises SessionBusy; Conflict if its worker refuses; ResourceExhausted. A caller that leaves
        meanwhile leaves no branches.
        """
        if count > MAX_BRANCHES:
            raise InvalidArgument(f"count: {MAX_BRANCHES} at the most", field="count")
        if session_id is not None and count != 1:
            raise InvalidArgument("id: names one branch, not several", field="id")
        names = [check_id(session_id) for _ in range(count)]
        self._refuse_taken(names[0])
        if self.n_live + count > self.config.max_sessions:
            raise ResourceExhausted(
                f"{count} more would be over {self.config.max_sessions} sessions",
                retry_after_seconds=5,
            )
        self._n_branching += count
        forking = self._later(self._fork(session, names), "fork")
        forking.add_done_callback(lambda _: self._branched(count))
        try:
            return await asyncio.shield(forking)
        except asyncio.CancelledError:
            forking.add_done_callback(self._abandon)
            raise

    async def _fork(self, session: Session, names: list[str]) -> tuple[list[Session], list[str]]:
        turn = session.take_turn(wait=False)
        try:
            workers, warnings = await session_fork.fork(
                session, names, self._context, self._turns, self.close_soon
            )
        finally:
            session.give_turn(turn)
        try:
            self._refuse_taken(names[0])  # by now it may be
        except Conflict:
            for worker in workers:
                self.close_soon(worker)
            raise
        branches = [
            Session(
                name,
                self._context,
                self,
                cwd=session.cwd,
                env=session.env,
                limits=session.limits,
                branch=worker,
            )
            for name, worker in zip(names, workers, strict=True)
        ]
        self._sessions.update((branch.id, branch) for branch in branches)
        for branch in branches:
            await branch.note()
        return branches, warnings

    def _branched(self, count: int) -> None:
        self._n_branching -= count

    def _abandon(self, forking: asyncio.Task[tuple[list[Session], list[str]]]) -> None:
        if not forking.cancelled() and forking.exception() is None:
            for branch in forking.result()[0]:
                self._later(self.delete(branch), "abandoned-branch")

    def _refuse_taken(self, session_id: str) -> None:
        if session_id in self._sessions:
            raise Conflict(f"there is a session {session_id!r} already")

    # Housekeeping.

    def evict_idle(self) -> None:
        """End the workers of those that nobody used for too long."""
        for session in self._sessions.values():
            if (
                session.worker is not None
                and session.idle_seconds > self.config.session_idle_seconds
            ):
                log.info("idle session evicted", extra={"session": session.id})
                session.worker.kill()


class _Turn:
    """``async with``: with the session's turn. Raises ResourceExhausted if it does not come in
    time."""

    def __init__(self, session: Session, wait_seconds: float) -> None:
        self._session = session
        self._wait_seconds = wait_seconds
        self._turn = session.take_turn(wait=True)

    async def __aenter__(self) -> None:
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._turn
        except TimeoutError:
            self._session.give_turn(self._turn)
            raise ResourceExhausted(
                f"the session was busy for {self._wait_seconds:g} s", retry_after_seconds=1
            ) from None
        except BaseException:
            self._session.give_turn(self._turn)
            raise

    async def __aexit__(self, *_: object) -> None:
        self._session.give_turn(self._turn)


def check_id(session_id: str | None, field: str = "id") -> str:
    """A new one for None. Raises InvalidArgument, which names the caller's ``field``."""
    if session_id is None:
        return secrets.token_hex(8)
    if not commands.ID_PATTERN.fullmatch(session_id):
        raise InvalidArgument(f"{field}: must match {commands.ID_PATTERN.pattern}", field=field)
    return session_id


def _age(session: Session) -> tuple[float, str]:
    return session.created_at, session.id
