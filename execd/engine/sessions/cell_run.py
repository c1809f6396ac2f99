"""One run of a cell: an execution whose process is a session's worker, and which leaves that worker
alive.

It ends by the worker's ``done`` frame; by the worker's end, which the warden reports; or, when its
answer is due and neither has come, without knowing more. In the last case the cell keeps its turn
in the session until one of them does come (``_settle``), so that the next cell finds a worker that
waits, or a fresh one.

The ladder. SIGINT to the worker alone, and once more halfway through the grace: CPython acts on a
signal that comes just before a system call only after it, and a second one interrupts that. (A cell
that cleans up for so long is interrupted in it, as by a second Ctrl-C.) After the grace SIGKILL to
its whole tree, which is the end of this generation. A SIGINT that arrives when its cell is over
would hit the next one: the session waits for the warden to say that it is sent before it goes on
(``Session.interrupt``), and a worker between cells ignores it.

What it uses is counted by the warden, from when it has run for a moment to when it is done. A cell
that is over before that is not worth the two messages, which cost as much as a small cell: what it
used is less than a tick of the kernel's clock. At the limit of CPU time, of which the warden tells
us, a cell goes down the same ladder; a limit of the whole tree, memory or processes, ends that.

Frames say what the cell showed and how it went. They are claims of the process that user code runs
in: they can falsify this cell's own result, and nothing else.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Any

import msgspec

from execd.engine.executions import exit_status
from execd.engine.executions.execution import Execution
from execd.engine.sessions import worker_messages
from execd.errors import Conflict, InvalidArgument, PreconditionFailed
from execd.kernel import frames
from execd.model import CellFacts, DisplayMessage, ExitReason, Result, RichKind, Usage
from execd.proc.child import Lost
from execd.proc.messages import Exited, Measured

if TYPE_CHECKING:
    from execd.engine.executions.context import EngineContext
    from execd.engine.executions.execution import Keeper
    from execd.engine.sessions.session import Session
    from execd.engine.sessions.session_worker import SessionWorker
    from execd.model import Command

# More than a worker that keeps to its own bounds sends for one cell: one that sends more is not
# ours any more.
MAX_RICH_BYTES = 32 << 20
MAX_RICH_EVENTS = 10_000
TREE_LIMITS = {"processes": ExitReason.PROCESS_LIMIT, "memory": ExitReason.MEMORY_LIMIT}
# A tick of the clock that /proc counts CPU time with. Half of it had a fourth of the smallest cells
# counted in gVisor, at twice their cost.
UNCOUNTED_SECONDS = 0.01
LESS_THAN_A_TICK = Usage(max_rss_bytes=None, peak_tree_bytes=None, processes=None)
UNKNOWN = msgspec.structs.replace(LESS_THAN_A_TICK, user_seconds=None, system_seconds=None)
# For the warden to say what was used: as a rule; and when the answer is due, which the figures are
# not worth a delay of.
COUNT_SECONDS, LATE_COUNT_SECONDS = 1.0, 0.03
RICH_KINDS: dict[type[worker_messages.Rich], RichKind] = {
    worker_messages.Display: "display",
    worker_messages.CellResult: "result",
    worker_messages.CellError: "error",
    worker_messages.InputRequest: "input_request",
    worker_messages.ClearOutput: "clear_output",
}


class CellOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a cell is run, besides what every execution has."""

    allow_input: bool = False
    """``input()`` asks the caller, instead of raising at once."""
    expect_generation: int | None = None
    """Run only in this generation."""


class Cell(Execution):
    """See the module's text. ``turn`` is the session's, and given back to it."""

    def __init__(
        self,
        execution_id: str,
        command: Command,
        context: EngineContext,
        keeper: Keeper,
        turn: asyncio.Future[None],
        *,
        session: Session,
        options: CellOptions,
        key: str | None = None,
        payload: str = "",
        is_kept: bool = False,
    ) -> None:
        super().__init__(
            execution_id, command, context, keeper, turn, key=key, payload=payload, is_kept=is_kept
        )
        self.cell: CellFacts = CellFacts(session_id=session.id)
        self._session = session
        self._options = options
        self._turn = turn
        self._number = 0
        self._worker: SessionWorker | None = None
        self._done: asyncio.Future[worker_messages.Done] = self._loop.create_future()
        self._woken: asyncio.Future[None] = self._loop.create_future()
        """Done when ``_done`` is, when the worker has ended, or when the answer is due: to wait for
        three futures would take a turn of the loop more, of every small cell."""
        self._ladder: list[asyncio.TimerHandle] = []
        self._settling: asyncio.Task[None] | None = None
        self._counting: asyncio.Future[Measured] | None = None
        """Done when the warden has begun to count what it uses."""
        self._rich_events = self._rich_bytes = 0
        """Heard of it so far, also after its answer was given."""
        self.asks: worker_messages.InputRequest | None = None
        """The input_request that is open."""

    # For dialects.

    def signal(self, number: int) -> None:
        """SIGINT is an interrupt; any other goes to the worker alone. Raises Conflict if it is not
        running."""
        if self._worker is None:
            self._refuse()
        if number == signal.SIGINT:
            self.end(ExitReason.INTERRUPTED, self._context.config.interrupt_grace_seconds)
        else:
            self._worker.signal(number)

    async def write_stdin(self, data: bytes) -> None:
        raise Conflict(
            "a cell has no standard input: answer its input_request", unwritten_bytes=len(data)
        )

    async def end_stdin(self) -> None:
        raise Conflict("a cell has no standard input")

    def resize(self, cols: int, rows: int) -> None:
        raise Conflict(f"a cell has no terminal to be {cols} by {rows}")

    def give_input(self, text: str) -> None:
        """The answer to its open input_request, which stays open until the answer is sent.

        Raises Conflict if there is none, InvalidArgument for a text that no frame holds.
        """
        if self._worker is None or self.asks is None:
            self._refuse()
        try:
            self._worker.send({"type": "input", "id": self._number, "text": text})
        except frames.FrameError:
            raise InvalidArgument("text: too long", field="text") from None
        self.asks = None

    # Its life.

    async def _live(self, turn: asyncio.Future[None]) -> None:
        try:
            await super()._live(turn)
        finally:
            if self._settling is None:
                self._session.give_turn(self._turn)

    async def _run(self) -> Result:
        session, options = self._session, self._options
        frame: dict[str, Any] = {
            "type": "execute",
            "id": session.next_number(),
            "code": self.command.display,
        }
        frame |= {"allow_input": options.allow_input, "store_history": True}
        self._refuse_other_generation(session.generation_of_next_cell)
        worker = await session.worker_for_cell()
        self._refuse_other_generation(session.life.generation)
        self._number = frame["id"]
        try:
            worker.send(frame)
        except frames.FrameError:
            raise InvalidArgument("code: too long", field="code") from None
        self.may_have_run = True
        state_lost = session.begin(self)
        self.cell = msgspec.structs.replace(
            self.cell, generation=session.life.generation, state_lost=state_lost
        )
        self.pid, self._worker = worker.pid, worker
        worker.sink, worker.listener, worker.on_limit = self._append, self._hear, self._on_limit
        began = time.monotonic()
        self._has_started()
        self._timers.append(self._loop.call_later(UNCOUNTED_SECONDS, self._count, worker))
        try:
            worker.gone.add_done_callback(self._wake)
            await self._woken
            duration_seconds = round(time.monotonic() - began, 6)
            self._stop_timers()
            counted = worker.count_anew() if self._counting is not None else None
            if self._done.done() and not worker.gone.done():
                await worker.take_rest()
            if counted is not None:
                time_left = max(
                    LATE_COUNT_SECONDS, min(COUNT_SECONDS, self._answer_at - self._loop.time())
                )
                await asyncio.wait(
                    (counted, worker.gone), timeout=time_left, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            worker.gone.remove_done_callback(self._wake)
            self._is_over = True
            worker.sink = None
            self.asks = None
            if self._done.done() or worker.gone.done():
                self._leave(worker)
            else:
                self._settling = asyncio.create_task(
                    self._settle(worker), name=f"settling-{self.id}"
                )
        result = self._decide(worker, self._usage(worker, counted), duration_seconds)
        done = self._done.result() if self._done.done() else None
        is_success = (
            result.exit_reason is ExitReason.EXITED
            and done is not None
            and done.status == "success"
        )
        self.cell = msgspec.structs.replace(
            self.cell,
            status="success" if is_success else "error",
            execution_count=None if done is None else done.execution_count,
        )
        return result

    def _wake(self, _: object = None) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    def _give_answer(self) -> None:
        super()._give_answer()
        self._wake()

    def _count(self, worker: SessionWorker) -> None:
        self._counting = worker.count_anew()

    def _usage(self, worker: SessionWorker, counted: asyncio.Future[Measured] | None) -> Usage:
        """``counted``: the answer at its end, if its count has begun."""
        output_bytes = sum(log.total_bytes for log in self.output.streams.values())
        if self._counting is None:
            return msgspec.structs.replace(LESS_THAN_A_TICK, output_bytes=output_bytes)
        used: Measured | Exited | None = None
        # What has no size was gone by then, and its end tells; but not if it came before the count.
        if counted is not None and counted.done() and counted.result().max_rss_bytes:
            used = counted.result()
        elif worker.gone.done() and isinstance(ended := worker.gone.result(), Exited):
            used = (
                ended if self._counting.done() and self._counting.result().max_rss_bytes else None
            )
        if used is None:
            return msgspec.structs.replace(UNKNOWN, output_bytes=output_bytes)
        return Usage(
            user_seconds=round(used.user_seconds, 6),
            system_seconds=round(used.system_seconds, 6),
            max_rss_bytes=used.max_rss_bytes,
            peak_tree_bytes=used.peak_tree_bytes,
            processes=used.processes,
            output_bytes=output_bytes,
        )

    def _refuse_other_generation(self, generation: int) -> None:
        if self._options.expect_generation not in (None, generation):
            current = self._session.life.generation
            raise PreconditionFailed(
                f"the session is in generation {current}, not {self._options.expect_generation}",
                generation=current,
            )

    def _leave(self, worker: SessionWorker) -> None:
        for step in self._ladder:
            step.cancel()
        self._worker = worker.listener = None
        worker.on_limit = lambda _: None
        self._session.end(self)

    async def _settle(self, worker: SessionWorker) -> None:
        """The answer is given; the worker has not stopped yet. It will, or be ended: the ladder
        goes on."""
        await asyncio.wait((self._done, worker.gone), return_when=asyncio.FIRST_COMPLETED)
        self._leave(worker)
        self._session.give_turn(self._turn)

    @property
    def _is_running(self) -> bool:
        return self._worker is not None

    def _overran(self, cause: ExitReason, at: float) -> None:
        """The warden reaps no cell, and a cell's word on when it ended would be the code's own. So
        what counts is whether it had said that it is done when it would be told to stop."""
        if self._worker is not None:
            self._worker.read_now()
        if not self._done.done():
            super()._overran(cause, at)

    def _terminate(self, grace_seconds: float, unless_ended_before: float) -> None:
        assert self._worker is not None
        if grace_seconds <= 0 or self._cause is ExitReason.OUTPUT_LIMIT:
            self._worker.kill()
            return
        if self._cause is ExitReason.TIMEOUT:
            # The state of a session is worth more than the quarter of a second that a command gets;
            # the answer does not wait for it.
            grace_seconds = max(grace_seconds, self._context.config.interrupt_grace_seconds)
        self._session.interrupt(self._worker)
        if not self._ladder:
            again = self._loop.call_later(grace_seconds / 2, self._session.interrupt, self._worker)
            self._ladder = [again, self._loop.call_later(grace_seconds, self._worker.kill)]

    def _on_limit(self, limit: str) -> None:
        if limit in TREE_LIMITS:  # the warden is ending the tree already
            self._cause = self._cause or TREE_LIMITS[limit]
        elif self._cause is None and self._counting is not None and self._counting.done():
            # Or it was said of what the cell before left behind; nobody ended anything but that.
            # by itself, or because its program got KILL; the warden said so before it gave the
            # figures
            if self._done.done():
                self._cause = ExitReason.CPU_LIMIT
            else:
                self.end(ExitReason.CPU_LIMIT, self._context.config.interrupt_grace_seconds)

    def _hear(self, claim: worker_messages.Rich | worker_messages.Done, size_bytes: int) -> bool:
        """Whether it changed anything; or would have, if the answer were not given yet."""
        if claim.id != self._number or self._done.done():
            return False  # of an earlier cell: a thread that it left behind may well show something
        if isinstance(claim, worker_messages.Done):
            self._done.set_result(claim)
            self._wake()
            return True
        self._rich_events += 1
        self._rich_bytes += size_bytes
        if self._rich_bytes > MAX_RICH_BYTES or self._rich_events > MAX_RICH_EVENTS:
            self.end(ExitReason.OUTPUT_LIMIT, 0.0)
            return False
        if self._is_over:
            return True
        if isinstance(claim, worker_messages.InputRequest):
            self.asks = claim
        fields = {name: getattr(claim, name) for name in claim.__struct_fields__ if name != "id"}
        self.output.append_rich(DisplayMessage(RICH_KINDS[type(claim)], fields), size_bytes)
        return True

    def _decide(self, worker: SessionWorker, usage: Usage, duration_seconds: float) -> Result:
        if self._done.done():
            done = self._done.result()
            exit_code = 0
            # SystemExit has a code, and ends the cell but not the session
            if done.status == "error":
                exit_code = (0 if done.exit is None else done.exit.code) or 1
            return Result(
                exit_code=exit_code,
                term_signal=None,
                exit_reason=self._cause or ExitReason.EXITED,
                usage=usage,
                duration_seconds=duration_seconds,
            )
        ended = worker.gone.result() if worker.gone.done() else None
        if isinstance(ended, Exited):
            exit_ = exit_status.decode(ended.wait_status)
            how = (
                f"exit code {exit_.exit_code}"
                if exit_.term_signal is None
                else f"signal {exit_.term_signal}"
            )
            return Result(
                exit_code=exit_.exit_code,
                term_signal=exit_.term_signal,
                exit_reason=self._cause or ExitReason.WORKER_DIED,
                message=(
                    f"the session's process ended with {how}, and its state with it"
                    if worker.fault is None
                    else f"the session's process was ended, and its state with it: {worker.fault}"
                ),
                usage=usage,
                duration_seconds=duration_seconds,
            )
        if isinstance(ended, Lost) or worker.gone.done():
            reason, message = (
                ExitReason.INIT_KILLED,
                "the session's process was killed, and its state with it",
            )
        else:
            reason, message = (
                ExitReason.TIMEOUT,
                "the cell was told to stop and has not yet; the next one waits for it",
            )
        return Result(
            exit_code=None,
            term_signal=signal.SIGKILL if worker.gone.done() else signal.SIGINT,
            exit_reason=self._cause or reason,
            message=message,
            usage=usage,
            duration_seconds=duration_seconds,
            survivors=ended.survivors if isinstance(ended, Lost) else (),
        )
