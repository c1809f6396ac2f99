"""An execution: a run from the queue to its result. The execution is its own record
(``execution_record``) and has a runner, which starts and ends a program: ``command_run`` for
commands, ``cell_run`` for cells.

Each execution has one task, ``_live``: wait for a turn, start the program, await its end, write the
result down. Everything else only reports an event (``state``): the deadline's timer and ``end`` ask
for the end, and the first cause becomes the reason; the warden reports what the program did;
readers report whether anybody still listens.

Promises, and what keeps them.
  * The warden's clock decides. A program that ended before the deadline, or before anybody asked
    for its end, keeps its own reason, however late the daemon learns of the end (``cause_at``).
  * The answer comes within the deadline + 0.5 s. The end begins at the deadline, never earlier.
    ``deadlines.overdue`` answers at the deadline + 0.45 s with what is known, even while the tree
    is still being ended.
  * A place in the queue or among the running is given back exactly once: ``_live`` gives the place
    back in its ``finally``.
  * An execution whose last reader leaves without the reply is ended, unless its policy is to
  detach.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from execd.engine.executions.deadlines import Deadlines
from execd.engine.executions.end_words import end_fields, in_words, named_reason
from execd.engine.executions.execution_record import ExecutionRecord
from execd.engine.executions.readers import Readers
from execd.engine.executions.state import ExecutionEvent, ExecutionPhase, advance
from execd.engine.output.follow import OutputView
from execd.errors import (
    Conflict,
    ExecdError,
    Internal,
    ResourceExhausted,
    Unavailable,
)
from execd.model import TIMEOUTS, DiskExcess, ExitReason, Result, State

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from execd.engine.executions.context import EngineContext
    from execd.engine.executions.end_words import EndFields
    from execd.engine.executions.execution_record import Registration
    from execd.engine.executions.readers import Attachment
    from execd.model import CellFacts, Command, Stream

log = logging.getLogger(__name__)
end_logger = logging.getLogger("execd.executions")

# The answer to a timeout: its grace (0.25 s by default) for TERM, the rest for KILL, within the
# promised 0.5 s.
TIMEOUT_ANSWER_SECONDS = 0.45
# Causes that end no descendants of a program that has ended before.
SPARING = (*TIMEOUTS, ExitReason.CLIENT_DISCONNECTED)
# For every other cause, after the grace: the time after which the warden names the survivors of a
# kill, and a little for the messages.
KILL_ANSWER_SECONDS = 3.0


class Keeper(Protocol):
    """Remembers executions (``retention``)."""

    def begin(self, execution: Execution) -> None:
        """Journal that the execution was accepted, if it is kept and the journal does not have
        it."""

    async def journaled(self, execution: Execution) -> None:
        """Wait until the journal has what a caller may be told: that the execution is accepted."""

    async def finish(self, execution: Execution) -> None:
        """Journal how the execution ended, before any caller is told."""

    def ended(self, execution: Execution) -> None:
        """From now on the execution may be forgotten."""


class Remains(Protocol):
    """The processes that an ended program may have left behind."""

    async def end_rest(self, grace_seconds: float) -> None:
        """End the descendants of the program, after the program's end."""


class Runner(Protocol):
    """Starts and ends the program of one execution. Created in the queue."""

    turn: asyncio.Future[None]
    """Done when the execution may run."""

    @property
    def obstacle(self) -> str:
        """In words: the reason why the turn has not come yet."""

    @property
    def is_running(self) -> bool:
        """Whether there is a program that ``terminate`` can end."""

    @property
    def tree_tag(self) -> int | None:
        """The warden's number of the program's tree; None while there is no program."""

    async def start(self, execution: Execution) -> Result | None:
        """Start the program, and report REQUEST and START. Return None, or the result if no program
        was started. Raises ExecdError."""

    async def finish(self, execution: Execution) -> Result:
        """Await the program's end, report FINISH, and return the result."""

    def terminate(self, grace_seconds: float, unless_ended_before: float) -> None:
        """End the program within the grace or by force, and its descendants with it. A program that
        ended before ``unless_ended_before`` (monotonic clock) keeps its descendants."""

    def sample(self) -> bool:
        """Take the program's output so far. Return whether the program has said "done"."""

    def leave(self) -> None:
        """Give the place in the queue or among the running to another execution. The task of the
        execution calls this last, however the task ends."""

    def remains(self) -> Remains | None:
        """The processes that the ended program has left behind; None: no process."""

    def signal(self, number: int) -> None: ...

    async def write_stdin(self, data: bytes) -> None: ...

    async def end_stdin(self) -> None: ...

    def resize(self, cols: int, rows: int) -> None: ...


class Execution(ExecutionRecord):
    """See the module's text. The engine creates executions, inside its loop, and calls ``begin``.

    ``runner`` is None for an execution of a former daemon (``records``), which has EXITED.
    """

    __slots__ = (
        "_arrived",
        "_context",
        "_has_begun",
        "_keeper",
        "_loop",
        "_pending_end",
        "_remains",
        "_task",
        "_waiting",
        "deadlines",
        "has_open_request",
        "readers",
        "runner",
    )

    def __init__(
        self,
        registration: Registration,
        command: Command,
        context: EngineContext,
        keeper: Keeper,
        runner: Runner | None,
        cell: CellFacts | None = None,
    ) -> None:
        super().__init__(
            registration,
            command,
            context.make_log(registration.id, command.limits),
            ExecutionPhase.EXITED if runner is None else ExecutionPhase.QUEUED,
            cell,
        )
        self.readers = Readers(self._abandon)
        self._loop = context.loop
        self.deadlines = Deadlines(
            self._end_overrun, self._sample, context.look_for_restore, self._loop
        )
        self.runner = runner
        """None: the execution has ended."""
        self._remains: Remains | None = None
        self._context = context
        self._keeper = keeper
        self._arrived = time.monotonic()
        self._pending_end: tuple[float, ExitReason] | None = None
        """Grace and cause of an end requested before the program ran."""
        self._waiting: list[asyncio.Future[None]] = []
        """Callers that wait for the start or the end."""
        self._task: asyncio.Task[None] | None = None
        self._has_begun = False
        self.has_open_request = False
        """The request that started the execution is under way, and its log line can tell the
        end."""

    def begin(self) -> Self:
        """Enter the queue. The execution ends by itself, or by ``end``."""
        assert self.phase is ExecutionPhase.QUEUED
        assert self._task is None
        if self.command.detached:  # the caller is told now that the execution is accepted
            self._keeper.begin(self)
        self._task = self._loop.create_task(self._live(), name=f"execution-{self.id}")
        return self

    # Called by dialects.

    def attach(self) -> Attachment:
        """Be a reader, in a ``with`` block. When the last reader leaves without the reply, the
        program ends; a client that can find the execution again is expected back for a while."""
        self.readers.reattach_seconds = (
            self._context.config.reattach_seconds if self.is_repeatable else 0.0
        )
        return self.readers.attach()

    def _abandon(self) -> None:
        if self.command.detached or self.command.on_disconnect == "detach":
            return
        # A restore calls ``outlive_callers``. A cell that has said "done" ended by itself.
        if not (self._context.look_for_restore() or self._sample()):
            self.end(ExitReason.CLIENT_DISCONNECTED, self._context.config.cancel_grace_seconds)

    def postpone(self, seconds: float) -> None:
        """The sandbox was frozen for so long: neither the queue nor the program has had the
        time."""
        self._arrived += seconds
        self.deadlines.postpone(seconds)

    def outlive_callers(self) -> None:
        """Go on without callers after a restore of the sandbox, in which all connections are gone.
        If a client can find the execution again, the execution waits for the client from now on.
        Otherwise the program goes on as if detached, and still ends at its deadline."""
        if self.is_repeatable:
            self.readers.restart_grace()
        else:
            self.detach()

    def close_request(self) -> EndFields | None:
        """The request that started the execution is over. Return the fields of the end for the
        request's log line; nothing if the execution goes on, and logs its end by itself."""
        assert self.has_open_request
        self.has_open_request = False
        return end_fields(self) if self.phase is ExecutionPhase.EXITED else None

    def log_end(self) -> None:
        """Write a log line for the end, which no request's line tells."""
        if end_logger.isEnabledFor(logging.INFO):
            request_id = self.command.origin.request_id
            end_logger.info("execution", extra={"request_id": request_id, **end_fields(self)})

    def count_end(self) -> None:
        """Add the end to the engine's counters, in the words of the log line."""
        outcome, streams = self.outcome, self.output.streams
        self._context.counters.record_end(
            self.command.origin.dialect,
            named_reason(self, outcome),
            outcome.duration_seconds
            if outcome is not None and self.started_at is not None
            else None,
            (streams["stdout"].total_bytes, streams["stderr"].total_bytes),
            None if self.cell is None else self.cell.status,
        )

    @property
    def is_read(self) -> bool:
        """Whether anybody is attached."""
        return self.readers.count > 0

    @property
    def is_delivered(self) -> bool:
        """Whether some reader has got the whole reply."""
        return self.readers.is_delivered

    async def wait_started(self) -> None:
        """Wait until the program runs or the execution has ended. Raises ResourceExhausted if the
        wait was too long, Unavailable when draining."""
        while self.state is State.QUEUED:
            await self._step()
        self.refuse_failed()

    async def wait(self) -> Result:
        """Wait until the execution has ended. Raises the errors of ``wait_started``."""
        await self.ended()
        self.refuse_failed()
        assert self.result is not None
        return self.result

    async def journaled(self) -> None:
        """Wait until the journal has what a caller may be told: that the execution is accepted."""
        await self._keeper.journaled(self)

    def end(self, cause: ExitReason, grace_seconds: float, *, at: float | None = None) -> None:
        """End the program and all its descendants. The first cause becomes the reason; later calls
        can only hasten the end.

        ``at``: when the cause arose, on the monotonic clock; None: now. A program that had ended by
        then keeps its own reason.
        """
        before, self.phase = self.phase, advance(self.phase, ExecutionEvent.END)
        if before in (ExecutionPhase.CLOSING, ExecutionPhase.EXITED):
            return
        at = time.monotonic() if at is None else at
        if before is not ExecutionPhase.ENDING:
            assert self.cause is None
            self.cause, self.cause_at = cause, at
        assert self.runner is not None
        if self.runner.is_running:
            self.runner.terminate(grace_seconds, at if cause in SPARING else 0.0)
            self.deadlines.answer_within(
                TIMEOUT_ANSWER_SECONDS if cause in TIMEOUTS else grace_seconds + KILL_ANSWER_SECONDS
            )
        elif self.may_have_run:
            # The start is requested: the program is ended when it runs (``started``), so that the
            # answer is true of the whole tree.
            self._pending_end = min(self._pending_end or (math.inf, cause), (grace_seconds, cause))
        elif before is ExecutionPhase.QUEUED and self._task is not None and self._has_begun:
            self._task.cancel()  # once: the task cleans up from there

    def answer_now(self) -> None:
        """Wait no longer for a requested end: the result holds what is known now."""
        if self.phase not in (ExecutionPhase.CLOSING, ExecutionPhase.EXITED):
            self.deadlines.answer_now()

    @property
    def tree_tag(self) -> int | None:
        """The warden's number of the tree that runs, if one does."""
        return None if self.runner is None else self.runner.tree_tag

    async def ended(self) -> None:
        """Wait until the execution has ended, in whatever way."""
        while self.phase is not ExecutionPhase.EXITED:
            await self._step()

    async def _step(self) -> None:
        """Wait for the start or the end, whichever comes next."""
        step = self._loop.create_future()
        self._waiting.append(step)
        try:
            await step
        finally:
            self._waiting.remove(step)

    def _note_step(self) -> None:
        for step in self._waiting:
            if not step.done():
                step.set_result(None)

    async def end_rest(self, grace_seconds: float) -> None:
        """End the program's descendants after its own end. Return when all are gone, or have
        survived even KILL."""
        remains = self._remains if self.runner is None else self.runner.remains()
        if remains is not None:
            await remains.end_rest(grace_seconds)

    def detach(self) -> None:
        """From now on the program runs until its own end, with or without readers."""
        self.command = msgspec.structs.replace(self.command, detached=True)
        # An execution that has ended is not journaled now: no record would say how it ended.
        if self.phase is not ExecutionPhase.EXITED:
            self.is_kept = True
            self._keeper.begin(self)

    def signal(self, number: int) -> None:
        """Signal the program's process group. Raises Conflict if the program is not running."""
        self._running_program().signal(number)

    async def write_stdin(self, data: bytes) -> None:
        """Write to the program's standard input; return when the program or the pipe has taken the
        data. Raises Conflict."""
        await self._running_program().write_stdin(data)

    async def end_stdin(self) -> None:
        """Let the program read end of file after what was written; on a terminal send Ctrl-D.
        Raises Conflict."""
        await self._running_program().end_stdin()

    def resize(self, cols: int, rows: int) -> None:
        """Set the size of the terminal, in characters. Raises Conflict if there is no terminal, or
        the program is not running."""
        self._running_program().resize(cols, rows)

    @property
    def program_has_ended(self) -> bool:
        """Whether the program was started and has ended. With the state RUNNING the last of its
        output is being read."""
        return self.state in (State.RUNNING, State.EXITED) and not (
            self.runner is not None and self.runner.is_running
        )

    def _running_program(self) -> Runner:
        if self.runner is None or not self.runner.is_running:
            raise Conflict(
                "the program has ended: it takes no input, signal or size any more; start the "
                "program again"
                if self.program_has_ended
                else f"the program has not started yet: the execution is {self.state}; wait for "
                "the event started, or for the state RUNNING"
            )
        return self.runner

    @property
    def view(self) -> OutputView:
        """The output, for readers."""
        return OutputView(self.output, self._context.config.stream_heartbeat_seconds)

    # Called by the runner.

    def requested(self) -> None:
        """The runner asks for the program's start."""
        self.phase = advance(self.phase, ExecutionEvent.REQUEST)
        self.may_have_run = True
        self._context.on_run()

    def started(self, elapsed_seconds: float = 0.0, *, has_ended: bool = False) -> None:
        """The program runs. ``elapsed_seconds``: how long the program has already run.
        ``has_ended``: the runner knows already that the program has ended."""
        self.phase = advance(self.phase, ExecutionEvent.START)
        self.started_at = time.time() - elapsed_seconds
        self.output.note_start()
        self._note_step()
        self.deadlines.start(
            self.seconds_left(self.command.timeout_seconds - elapsed_seconds),
            self.command.no_output_timeout_seconds,
            has_ended=has_ended,
        )
        if self._pending_end is not None:
            grace_seconds, cause = self._pending_end
            self.end(cause, grace_seconds)

    def finished(self) -> None:
        """The runner awaits nothing more from the program."""
        self.phase = advance(self.phase, ExecutionEvent.FINISH)

    def exceed_limit(self, reason: ExitReason, excess: int) -> None:
        """The warden is ending the tree already, because the tree exceeded a limit with the figure
        ``excess``."""
        before, self.phase = self.phase, advance(self.phase, ExecutionEvent.END)
        if before in (ExecutionPhase.CLOSING, ExecutionPhase.EXITED):
            return
        if before is not ExecutionPhase.ENDING:
            self.cause, self.excess = reason, excess
        self.deadlines.answer_within(KILL_ANSWER_SECONDS)

    def exceed_disk(self, excess: DiskExcess) -> None:
        """End the program for filling a directory, at once. A program that is ending already keeps
        its reason, and loses its grace."""
        if self.cause is None:
            self.excess = excess
        self.end(ExitReason.DISK_LIMIT, 0.0)

    def append(self, stream: Stream, data: bytes) -> Awaitable[None] | None:
        """Take output of the program. An awaitable asks the caller to wait for the disk."""
        self.deadlines.last_output = time.monotonic()
        write = self.output.append(stream, data)
        limit_bytes = self.command.limits.log_bytes
        if (
            self.command.kill_on_output_limit
            and limit_bytes is not None
            and self.output.streams[stream].total_bytes > limit_bytes
        ):
            # The program wrote too much before its end, whenever the daemon reads that.
            self.end(ExitReason.OUTPUT_LIMIT, 0.0, at=-math.inf)
        return write

    def seconds_left(self, own_limit: float) -> float:
        """Return the part of the limit that waiting and running together still allow."""
        if self.command.total_seconds is None:
            return own_limit
        return min(
            own_limit, max(0.0, self._arrived + self.command.total_seconds - time.monotonic())
        )

    # The task.

    async def _live(self) -> None:
        runner = self.runner
        assert runner is not None
        try:
            self._has_begun = True
            if self.phase is ExecutionPhase.ENDING:
                # The end was asked for before the task's first step. Cancelled before that step, a
                # task would run nothing of this method, not even the ``finally``.
                raise asyncio.CancelledError
            if not runner.turn.done():
                await self._wait_turn(runner.turn)
            self._context.counters.queue_seconds.observe(time.monotonic() - self._arrived)
            if self.is_kept:
                self._keeper.begin(self)
                await self._keeper.journaled(self)
            self.result = in_words(self, await runner.start(self) or await runner.finish(self))
        except asyncio.CancelledError:
            # Only ``end`` cancels, and only before the start of a program is requested.
            if (
                self.cause is ExitReason.SHUTDOWN
                and not self.may_have_run
                and not self.command.detached
            ):
                # "Come again later" is true only if the program has certainly not run, and useful
                # only to a caller that is still there.
                self.error = Unavailable(
                    "execd is shutting down; repeat the request when execd is back"
                )
            else:
                self.result = in_words(
                    self,
                    Result(
                        exit_code=None,
                        term_signal=None,
                        exit_reason=self.cause or ExitReason.CANCELED,
                    ),
                )
        except ExecdError as error:
            self.error = error
        except Exception:
            # The daemon's own fault. Every waiting caller must learn of it, and a repeated request
            # must not run the program again.
            log.exception("an execution came to no result", extra={"execution_id": self.id})
            self.error = Internal(f"internal error in execution {self.id}")
        finally:
            try:
                await self._conclude()
            finally:
                self.phase = advance(self.phase, ExecutionEvent.EXIT)
                self._note_step()
                runner.leave()
                self._keeper.ended(self)
                self.count_end()
                if not self.has_open_request:
                    self.log_end()
                self._forget_run(runner)

    def _forget_run(self, runner: Runner) -> None:
        """Keep nothing that only a run needs: thousands of executions are remembered."""
        self._task = None
        self._remains, self.runner = runner.remains(), None

    async def _wait_turn(self, turn: asyncio.Future[None]) -> None:
        limit = self.seconds_left(self.command.queue_seconds)
        # ``postpone`` moves the arrival, and so the end of the wait.
        from_arrival_seconds = time.monotonic() - self._arrived + limit
        timer: asyncio.TimerHandle

        def end_wait() -> None:
            nonlocal timer
            self._context.look_for_restore()
            seconds_left = self._arrived + from_arrival_seconds - time.monotonic()
            if turn.done():
                return
            if seconds_left > 0:
                timer = self._loop.call_later(seconds_left, end_wait)
                return
            assert self.runner is not None
            turn.set_exception(
                ResourceExhausted(
                    f"no turn came within {limit:g} s: {self.runner.obstacle}; repeat the request "
                    "later, or end executions",
                    retry_after_seconds=1,
                )
            )

        # Not asyncio.timeout, which makes ten calls for each command of a crowd.
        timer = self._loop.call_later(limit, end_wait)
        try:
            await turn
        finally:
            timer.cancel()

    async def _conclude(self) -> None:
        self.finished()
        self.deadlines.close()
        # Drop the fields for running: they can hold the body of a request, and a body for each
        # remembered execution is too much memory.
        if self.command.stdin or self.command.env or self.command.program.script is not None:
            program = msgspec.structs.replace(self.command.program, script=None)
            self.command = msgspec.structs.replace(self.command, program=program, stdin=b"", env={})
        self.ended_at = time.time()
        self.ended_monotonic = self._loop.time()
        await self._keeper.finish(self)
        self.output.finish()
        # Before the readers see the last event, and ask how the execution ended.
        self.phase = advance(self.phase, ExecutionEvent.EXIT)
        self.readers.close()
        self.output.note_exit()
        self.output.pack()

    def mark_ended(self, seconds_ago: float) -> None:
        """An execution of a former daemon ended so long ago: let no caller wait."""
        assert self.phase is ExecutionPhase.EXITED
        self.ended_monotonic = self._loop.time() - seconds_ago
        self.readers.close()
        self.deadlines.close()

    def _sample(self) -> bool:
        return self.runner is not None and self.runner.sample()

    def _end_overrun(self, cause: ExitReason, at: float) -> None:
        """A limit of time passed at ``at`` (monotonic clock), unless the program is done after
        all."""
        if not self._sample():
            self.end(cause, self._context.config.timeout_grace_seconds, at=at)
