"""The runner of a cell: the program is a session's worker, and the worker outlives the cell.

A cell ends by the worker's ``done`` frame; by the worker's end, which the warden reports; or
without knowing more, when the answer is due and neither has come. In the last case the cell keeps
its turn in the session until the frame or the end does come (``_settle``), so that the next cell
finds an idle worker, or a fresh one.

The ladder of an end. SIGINT goes to the worker, and once more halfway through the grace:
CPython acts on a signal that arrives just before a system call only after the call, and a second
signal interrupts the call. (A cell that cleans up for so long is interrupted in its cleaning, as by
a second Ctrl-C.) After the grace SIGKILL goes to the worker's whole tree, and the generation ends.

A cell that was told to end leaves no process behind, and what earlier cells have begun lives on.
The warden tells the processes of cells apart by their marks (``tree_mark``). The cell's processes
in the worker's group get SIGINT with the worker, as from a terminal. Those that live when the cell
is done get TERM, and KILL after the grace; when a timeout's grace is over before, KILL. The answer
waits for their end.

A SIGINT that arrives after its cell is over would hit the next cell. Two rules prevent this: the
session waits until the warden has sent the signal (``Session.interrupt``), and a worker between
cells ignores the signal.

The warden counts what a cell uses, from UNCOUNTED_SECONDS after its start to its end. A shorter
cell is not counted: the two messages would cost as much as the cell, whose CPU time is less than a
tick of the kernel's clock. What was not counted is null. At the limit of CPU time, which the warden
reports, the cell goes down the same ladder; a limit of the whole tree, memory or processes, ends
the tree.

Frames say what the cell showed and how the cell went. Frames are claims of the process that user
code runs in: they can falsify this cell's own result, and nothing else.
"""

from __future__ import annotations

import asyncio
import math
import signal
import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from execd.engine.executions.environment import MARKER
from execd.engine.sessions import worker_messages
from execd.engine.sessions.cell_result import CellEnd, decide, usage_of_cell
from execd.engine.sessions.session_log import CellEnded
from execd.engine.sessions.session_worker import END_SECONDS
from execd.errors import Conflict, InvalidArgument, PreconditionFailed
from execd.kernel import frames
from execd.model import (
    CellFacts,
    DisplayKind,
    DisplayMessage,
    ExitReason,
    Result,
)

if TYPE_CHECKING:
    from execd.config import Config
    from execd.engine.executions.execution import Execution
    from execd.engine.executions.submission import CellOptions
    from execd.engine.sessions.session import Session
    from execd.engine.sessions.session_worker import SessionWorker
    from execd.proc.child import Lost
    from execd.proc.messages import CellKilled, Killed, Measured

T = TypeVar("T")

# An honest worker sends less for one cell. A worker that sends more is under the control of user
# code.
MAX_RICH_BYTES = 32 << 20
MAX_RICH_EVENTS = 10_000
TREE_LIMITS = {"processes": ExitReason.PROCESS_LIMIT, "memory": ExitReason.MEMORY_LIMIT}
# One tick of the clock that /proc counts CPU time with. With 5 ms a quarter of the smallest cells
# were counted in gVisor, and took twice as long.
UNCOUNTED_SECONDS = 0.01
# How long the warden may take to say what was used; and how long when the answer is due, because
# the figures are not worth a later answer.
COUNT_SECONDS, LATE_COUNT_SECONDS = 1.0, 0.03
# How long the next cell waits for the end of the processes of a cell that was answered before its
# end. The warden names survivors earlier.
SETTLE_SECONDS = 3.0
RICH_KINDS: dict[type[worker_messages.Rich], DisplayKind] = {
    worker_messages.Display: "display",
    worker_messages.CellResult: "result",
    worker_messages.CellError: "error",
    worker_messages.InputRequest: "input_request",
    worker_messages.ClearOutput: "clear_output",
}


class CellRunner:
    """A ``Runner``, and the session's ``Occupant`` while the cell runs."""

    def __init__(self, session: Session, options: CellOptions, config: Config) -> None:
        """Raises SessionBusy if the session has a cell and ``options`` says not to wait."""
        self._session = session
        self._options = options
        self._config = config
        self._execution: Execution | None = None
        self._worker: SessionWorker | None = None
        self._number = 0
        self._began = 0.0
        """On the monotonic clock."""
        # Kept, because each look at the running loop is a system call (getpid).
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[worker_messages.Done] = self._loop.create_future()
        self._woken: asyncio.Future[None] = self._loop.create_future()
        """Done when ``_done`` is, when the worker has ended, or when the answer is due. One future
        instead of three saves one turn of the loop of every small cell."""
        self._ladder: list[asyncio.TimerHandle] = []
        self._kill_at = math.inf
        """When the processes of a cell that was told to end get KILL, on the loop's clock."""
        self._kills: list[asyncio.Future[CellKilled | Lost] | asyncio.Future[Killed | Lost]] = []
        """The warden's answers about the ends of the cell's processes."""
        self._count_timer: asyncio.TimerHandle | None = None
        self._settling: asyncio.Task[None] | None = None
        self._counting: asyncio.Future[Measured] | None = None
        """Done when the warden has begun to count what the cell uses."""
        self._n_rich_events = self._rich_bytes = 0
        """Received for the cell so far, also after its answer was given."""
        self._input_request: worker_messages.InputRequest | None = None
        self.turn = session.take_turn(wait=options.on_busy == "queue")

    @property
    def obstacle(self) -> str:
        return f"session {self._session.id!r} is busy with another cell"

    # Called by the session, and for callers, while the cell runs.

    @property
    def open_input_request(self) -> worker_messages.InputRequest | None:
        """The input_request that is open."""
        return self._input_request

    def end(self, cause: ExitReason, grace_seconds: float) -> None:
        if self._execution is not None:
            self._execution.end(cause, grace_seconds)

    def give_input(self, text: str) -> None:
        """Answer the open input_request. The request stays open until the answer is sent. A newline
        at the end is not part of the answer, as in a terminal.

        Raises Conflict if no request is open, InvalidArgument for a text that no frame holds.
        """
        if self._worker is None or self._input_request is None:
            raise Conflict("the cell has no open input_request; wait for the event input_request")
        try:
            answer = text.removesuffix("\n")
            self._worker.send({"type": "input", "id": self._number, "text": answer})
        except frames.FrameError:
            raise worker_messages.too_long("text") from None
        self._close_input_request()

    def _close_input_request(self) -> None:
        if self._input_request is not None:
            self._input_request = None
            self._session.resume()

    def signal(self, number: int) -> None:
        """SIGINT is an interrupt; any other signal goes to the worker alone."""
        assert self._worker is not None
        if number == signal.SIGINT:
            self.end(ExitReason.INTERRUPTED, self._config.interrupt_grace_seconds)
        else:
            self._worker.signal(number)

    async def write_stdin(self, data: bytes) -> None:
        """Answer the open input_request with the bytes, which are UTF-8."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise InvalidArgument(
                "body: the input of a cell is not UTF-8; send text", field="body"
            ) from None
        self.give_input(text)

    async def end_stdin(self) -> None:
        raise Conflict("the input of a cell has no end; interrupt the cell instead")

    def resize(self, cols: int, rows: int) -> None:
        raise Conflict(
            f"a cell has no terminal to be {cols} by {rows}; start a command with pty instead"
        )

    # Called by the execution.

    @property
    def is_running(self) -> bool:
        return self._worker is not None

    @property
    def tree_tag(self) -> int | None:
        return None if self._worker is None else self._worker.tag

    async def start(self, execution: Execution) -> Result | None:
        session, options = self._session, self._options
        frame: dict[str, Any] = {
            "type": "execute",
            "id": session.next_number(),
            "code": execution.command.program.display,
            "allow_input": options.allow_input,
            "store_history": True,
        }
        # Processes of user code are found by the marker.
        env = {name: value for name, value in execution.command.env.items() if name != MARKER}
        if env:
            frame["env"] = env
        self._refuse_other_generation(session.generation_of_next_cell)
        worker = await session.worker_for_cell()
        self._refuse_other_generation(session.generation)
        self._began = time.monotonic()
        frame["mark"] = worker.mark_of(frame["id"])
        try:
            worker.send(frame)
        except frames.FrameError:
            raise worker_messages.too_long("code") from None
        execution.requested()
        state_lost = session.begin_cell(self, execution.id)
        execution.cell = CellFacts(
            session_id=session.id,
            generation=session.generation,
            state_lost=state_lost,
            background=session.log.take_background(),
        )
        execution.pid = worker.pid
        self._execution, self._worker, self._number = execution, worker, frame["id"]
        worker.sink, worker.listener, worker.on_limit = (
            execution.append,
            self._receive,
            self._on_limit,
        )
        self._count_timer = self._loop.call_later(UNCOUNTED_SECONDS, self._begin_count)
        execution.started()
        return None

    def _refuse_other_generation(self, generation: int) -> None:
        if self._options.expect_generation not in (None, generation):
            current = self._session.generation
            raise PreconditionFailed(
                f"the session is in generation {current}, not {self._options.expect_generation}; "
                "make the state again, and send the present generation, or none",
                generation=current,
            )

    async def finish(self, execution: Execution) -> Result:
        worker = self._worker
        assert worker is not None
        try:
            worker.gone.add_done_callback(self._wake)
            execution.deadlines.overdue.add_done_callback(self._wake)
            await self._woken
            duration_seconds = round(time.monotonic() - self._began, 6)
            execution.deadlines.stop()
            was_told_to_end = execution.cause is not None
            await self._end_rest(execution)
            counted = await self._take_rest(worker, execution)
            if not was_told_to_end:
                await self._end_rest(execution)  # perhaps a limit was told with the figures
            if self._options.is_last and self._done.done() and not worker.is_ending:
                time_left = max(0.0, execution.deadlines.seconds_to_answer)
                note = await worker.end(min(END_SECONDS, time_left))
                if note is not None and (writing := execution.append("stderr", note)) is not None:
                    await writing
        finally:
            worker.gone.remove_done_callback(self._wake)
            execution.deadlines.overdue.remove_done_callback(self._wake)
            execution.finished()
            worker.sink = None
            self._close_input_request()
            if self._done.done() or worker.gone.done():
                self._release(worker)
            else:
                self._settling = asyncio.create_task(
                    self._settle(worker), name=f"settling-{execution.id}"
                )
        return self._judge(execution, worker, counted, duration_seconds)

    def _judge(
        self,
        execution: Execution,
        worker: SessionWorker,
        counted: asyncio.Future[Measured] | None,
        duration_seconds: float,
    ) -> Result:
        """Return the result, which the record of the cell and the log of the session also get."""
        done = _result(self._done)
        ended = _result(worker.gone)
        usage = usage_of_cell(
            sum(log.total_bytes for log in execution.output.streams.values()),
            _result(self._counting),
            _result(counted),
            ended,
        )
        end = CellEnd(
            execution.cause,
            done,
            worker.gone.done(),
            ended,
            worker.fault,
            worker.lost_threads,
            [killing.result() for killing in self._kills if killing.done()],
            duration_seconds,
        )
        result = decide(end, usage)
        is_success = (
            result.exit_reason is ExitReason.EXITED
            and done is not None
            and done.status == "success"
        )
        assert execution.cell is not None
        execution.cell = msgspec.structs.replace(
            execution.cell,
            status="success" if is_success else "error",
            execution_count=None if done is None else done.execution_count,
        )
        self._session.log.note(
            CellEnded(execution.id, result.exit_reason, execution.cell.status, self._session.state)
        )
        return result

    async def _take_rest(
        self, worker: SessionWorker, execution: Execution
    ) -> asyncio.Future[Measured] | None:
        """Take what the cell wrote before its end, and end the count. Return the count's answer, if
        the count had begun; the answer can still be missing."""
        assert self._count_timer is not None
        self._count_timer.cancel()
        self._count_timer = None
        counted = worker.start_usage_count() if self._counting is not None else None
        if self._done.done() and not worker.gone.done():
            await worker.drain_after_writes()
        if counted is not None:
            time_left = min(COUNT_SECONDS, execution.deadlines.seconds_to_answer)
            await asyncio.wait(
                (counted, worker.gone),
                timeout=max(LATE_COUNT_SECONDS, time_left),
                return_when=asyncio.FIRST_COMPLETED,
            )
        return counted

    async def _end_rest(self, execution: Execution) -> None:
        """End the processes of a cell that was told to end."""
        if execution.cause is None:
            return
        self._leave_ladder()
        self._kill_rest(self._kill_at - self._loop.time())
        await asyncio.wait(
            (self._kills[-1],),
            timeout=max(LATE_COUNT_SECONDS, execution.deadlines.seconds_to_answer),
        )

    def _kill_rest(self, grace_seconds: float) -> None:
        if self._worker is None:
            return  # a step of the ladder, after the worker's death: the warden ends the whole tree
        killing = self._worker.kill_cell(self._number, max(0.0, grace_seconds))
        if killing not in self._kills:
            self._kills.append(killing)

    def _leave_ladder(self) -> None:
        if self._done.done():
            for step in self._ladder:
                step.cancel()

    def _wake(self, _: object = None) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    def _begin_count(self) -> None:
        if self._worker is not None:
            self._counting = self._worker.start_usage_count(self._began)

    def _release(self, worker: SessionWorker) -> None:
        self._leave_ladder()
        self._worker = self._execution = worker.listener = None
        worker.on_limit = lambda _limit, _value: None
        self._session.end_cell(
            self, self._done.result().execution_count if self._done.done() else None
        )

    async def _settle(self, worker: SessionWorker) -> None:
        """The answer is given, and the worker still runs the cell. The ladder goes on, so the cell
        ends, or the worker does."""
        await asyncio.wait((self._done, worker.gone), return_when=asyncio.FIRST_COMPLETED)
        self._leave_ladder()
        self._kill_rest(0.0)
        await asyncio.wait((self._kills[-1],), timeout=SETTLE_SECONDS)
        self._release(worker)
        self._session.note_state()  # the answer was given while the session was busy
        self._session.give_turn(self.turn)

    def leave(self) -> None:
        if self._settling is None:
            self._session.give_turn(self.turn)

    def remains(self) -> None:
        """Nothing: what a cell left running belongs to the session, and ends with the session."""

    def sample(self) -> bool:
        """The warden reaps no cell, and a time that the cell reports would be user code's own
        claim. So a cell is done in time if its ``done`` frame had arrived by now."""
        if self._worker is not None:
            self._worker.read_now()
        return self._done.done()

    def terminate(self, grace_seconds: float, unless_ended_before: float) -> None:
        assert self._worker is not None
        assert self._execution is not None
        cause = self._execution.cause
        self._kill_at = min(self._kill_at, self._loop.time() + grace_seconds)
        if self._done.done():  # and what the cell has begun is being ended
            self._kill_rest(grace_seconds)
            return
        if grace_seconds <= 0 or cause is ExitReason.OUTPUT_LIMIT:
            self._worker.kill()
            return
        if cause is ExitReason.TIMEOUT:
            # The state of a session is worth more than the quarter of a second that a command gets.
            # The answer does not wait for the end of this grace.
            grace_seconds = max(grace_seconds, self._config.interrupt_grace_seconds)
        cell = (self._worker, self._number)
        self._session.interrupt(*cell)
        if not self._ladder:
            self._ladder = [
                self._loop.call_later(grace_seconds / 2, self._session.interrupt, *cell),
                self._loop.call_later(grace_seconds, self._worker.kill),
                self._loop.call_at(self._kill_at, self._kill_rest, 0.0),
            ]

    # Reports of the worker and of the warden.

    def _on_limit(self, limit: str, value: int) -> None:
        execution = self._execution
        if execution is None:
            return
        if limit in TREE_LIMITS:  # the warden is ending the tree already
            execution.exceed_limit(TREE_LIMITS[limit], value)
        elif execution.cause is None and self._counting is not None and self._counting.done():
            # Otherwise the warden speaks of what the cell before left behind, and has ended nothing
            # else. A cell that is done by now may be over because its program got KILL; the warden
            # sends this message before it sends the figures.
            execution.excess = value
            execution.end(ExitReason.CPU_LIMIT, self._config.interrupt_grace_seconds)

    def _receive(self, claim: worker_messages.Rich | worker_messages.Done, size_bytes: int) -> bool:
        """Take a frame. Return whether the frame was of use, or would have been before the answer;
        a worker may send few frames of no use."""
        execution = self._execution
        if execution is None or claim.id != self._number or self._done.done():
            return (
                False  # of an earlier cell: a thread that the cell left behind may show something
            )
        if isinstance(claim, worker_messages.Done):
            self._done.set_result(claim)
            self._wake()
            return True
        self._n_rich_events += 1
        self._rich_bytes += size_bytes
        if self._rich_bytes > MAX_RICH_BYTES or self._n_rich_events > MAX_RICH_EVENTS:
            execution.end(ExitReason.OUTPUT_LIMIT, 0.0)
            return False
        if self._settling is not None:
            return True
        if isinstance(claim, worker_messages.InputRequest):
            self._input_request = claim
            self._session.ask()
        fields = {name: getattr(claim, name) for name in claim.__struct_fields__ if name != "id"}
        if isinstance(claim, worker_messages.CellResult):
            fields["display_id"] = None  # a bundle has the same fields as of a display
        execution.output.append_rich(DisplayMessage(RICH_KINDS[type(claim)], fields), size_bytes)
        return True


def _result(future: asyncio.Future[T] | None) -> T | None:
    """Return what the future has by now."""
    return future.result() if future is not None and future.done() else None
