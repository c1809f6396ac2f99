"""An execution: one run of something, from the queue to its result. What is run is for subclasses
to say (``command_run``, ``cell_run``).

Each execution has one task, ``_live``: wait for a place, ``_run``, decide the result. Everything
else only tells it something: the deadline's timer and ``end`` say that it must go (the first cause
wins and becomes the reason), the warden's messages say what happened, readers say whether anybody
still listens.

Promises, and what keeps them.
  * The warden's clock decides: what ended before the deadline, or before anybody asked for its end,
    keeps its own reason, however late the daemon hears of it (``_cause_at``).
  * The answer comes within the deadline + 0.5 s: the end begins at the deadline, never earlier, and
    ``_overdue`` answers at the deadline + 0.45 s with what is known, even if what ran is still
    being taken down.
  * A place in the queue or among the running is given back exactly once: ``_live`` does it in its
    ``finally``.
  * An execution is ended when its last reader goes away undelivered, unless the policy is to
    detach.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self, TypeVar

import msgspec

from execd.engine.output.follow import follow
from execd.errors import (
    Conflict,
    ExecdError,
    Internal,
    RangeNotSatisfiable,
    ResourceExhausted,
    Unavailable,
)
from execd.model import ExitReason, Result, State

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable

    from execd.engine.executions.context import EngineContext
    from execd.engine.output.follow import FollowedEvent
    from execd.engine.output.log import Excerpt
    from execd.model import CellFacts, Command, Stream

log = logging.getLogger(__name__)

# The answer to a timeout: its grace (0.25 s by default) for TERM, the rest for KILL, within the
# promised 0.5 s.
TIMEOUT_ANSWER_SECONDS = 0.45
TIMEOUTS = (ExitReason.TIMEOUT, ExitReason.NO_OUTPUT_TIMEOUT)
# Any other end, after its grace: what the warden gives a kill before it names survivors, and a
# little for the way.
KILL_ANSWER_SECONDS = 3.0

T = TypeVar("T")


class Keeper(Protocol):
    """Who remembers executions (``retention``)."""

    async def begin(self, execution: Execution) -> None:
        """Journal that the execution was accepted."""

    async def finish(self, execution: Execution) -> None:
        """Journal how the execution ended, before anybody is told."""

    def ended(self, execution: Execution) -> None:
        """From now on the execution may be forgotten."""


class Attachment:
    """One reader of an execution, for as long as the block."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self.is_delivered = False

    def __enter__(self) -> Self:
        self._execution.reader_came()
        return self

    def __exit__(self, *_: object) -> None:
        self._execution.reader_left(is_delivered=self.is_delivered)

    def delivered(self) -> None:
        """The reply has been written in full."""
        self.is_delivered = self._execution.delivered = True

    def excuse(self) -> None:
        """The reader is sent away, for being too slow: that is not its leaving, and ends
        nothing."""
        self.is_delivered = True


class Execution:
    """See the module's text. Made by the engine, inside its loop; ``state`` and ``result`` are for
    reading.

    ``turn`` is done when it may run; the engine has counted it in already. ``None``: it ran under a
    former daemon, see ``records``.
    """

    def __init__(
        self,
        execution_id: str,
        command: Command,
        context: EngineContext,
        keeper: Keeper,
        turn: asyncio.Future[None] | None,
        *,
        key: str | None = None,
        payload: str = "",
        is_kept: bool = False,
    ) -> None:
        self.id = execution_id
        self.key = key
        """Digest of the idempotency key."""
        self.payload = payload
        """Digest of what was asked for."""
        self.is_kept = is_kept
        """It is journaled from its start on: it has a key, a name of the caller's, or is, or may
        be, detached."""
        self.is_journaled = False
        """The journal knows of it, or will before anything that is written from now on."""
        self._journaling: asyncio.Task[None] | None = None
        self.not_journaled: str | None = None
        """Why it is not, all the same: a restart of the daemon may forget it, and a repeated
        request run it again."""
        self.command = command
        self.cell: CellFacts | None = None
        """What it is besides, if it is a cell."""
        self.state = State.QUEUED
        self.result: Result | None = None
        self.error: ExecdError | None = None
        self.pid: int | None = None
        self.created_at = time.time()
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.ended_monotonic = 0.0
        self.delivered = False
        self.output = context.make_log(execution_id, command.limits)
        self._context = context
        self._keeper = keeper
        self._loop = asyncio.get_running_loop()
        self._arrived = time.monotonic()
        self._cause: ExitReason | None = None
        self._cause_at = -math.inf
        """When the cause arose, on the monotonic clock. What ended before that ended of itself;
        -inf: the cause needs no clock."""
        self._deadline = math.inf
        """On the monotonic clock, which is the warden's as well."""
        self._has_begun = False
        self.may_have_run = False
        self._waiting_end = (math.inf, ExitReason.CANCELED)
        self._is_over = turn is None
        self._readers = 0
        self._last_output = 0.0
        self._reattach: asyncio.TimerHandle | None = None
        self._left_queue = asyncio.Event()
        self._ended = asyncio.Event()
        self._overdue: asyncio.Future[None] = self._loop.create_future()
        self._answer_at = float("inf")
        self._timers: list[asyncio.TimerHandle] = []
        self._task: asyncio.Task[None] | None = None
        if turn is not None:
            if command.detached:  # its caller is told that it is accepted, and that may be now
                self._begin_journal()
            self._task = asyncio.create_task(self._live(turn), name=f"execution-{self.id}")

    # For dialects.

    def attach(self) -> Attachment:
        """Be a reader, in a ``with`` block. The last one to leave without having got the reply ends
        the program."""
        return Attachment(self)

    def reader_came(self) -> None:
        self._readers += 1
        if self._reattach is not None:
            self._reattach.cancel()

    def reader_left(self, *, is_delivered: bool) -> None:
        self._readers -= 1
        if not is_delivered and self._readers == 0:
            self._on_last_reader_gone()

    def _on_last_reader_gone(self) -> None:
        if (
            self.command.detached
            or self.command.on_disconnect == "detach"
            or self.state is State.EXITED
        ):
            return
        if self.key is None:
            self._abandon()
        else:  # the client of a keyed one is expected back
            self._reattach = self._loop.call_later(
                self._context.config.reattach_seconds, self._abandon
            )

    def _abandon(self) -> None:
        self.end(ExitReason.CLIENT_DISCONNECTED, self._context.config.cancel_grace_seconds)

    async def wait_started(self) -> None:
        """Until it runs or has ended. Raises ResourceExhausted if its wait was too long,
        Unavailable when draining."""
        await self._left_queue.wait()
        self.refuse_failed()

    async def wait(self) -> Result:
        """Until it has ended. Raises as ``wait_started`` does."""
        await self._ended.wait()
        self.refuse_failed()
        assert self.result is not None
        return self.result

    @property
    def has_failed(self) -> bool:
        """It has ended without having run: its name is free."""
        return self.error is not None and self.state is State.EXITED and not self.may_have_run

    def refuse_failed(self) -> None:
        """Raises what kept it from running."""
        if self.error is not None:
            # or it would grow with each time that it is raised
            raise self.error.with_traceback(None)

    async def journaled(self) -> None:
        """Until the journal has what a caller may be told: that it is accepted."""
        if self._journaling is not None:
            # which, unlike awaiting it, cancels it for nobody
            await asyncio.wait((self._journaling,))

    async def journal(self) -> None:
        """The same, and see to it."""
        self._begin_journal()
        await self.journaled()

    def _begin_journal(self) -> None:
        if self.is_kept and not self.is_journaled:
            self.is_journaled = True
            self._journaling = asyncio.create_task(
                self._keeper.begin(self), name=f"journaling-{self.id}"
            )

    async def excerpt(self, stream: Stream, limit_bytes: int) -> Excerpt:
        """What of a stream fits into a reply."""
        return await self.output.streams[stream].excerpt(limit_bytes)

    def end(self, cause: ExitReason, grace_seconds: float, *, at: float | None = None) -> None:
        """End it, and all that it started. The first cause becomes the reason; later calls can only
        hasten.

        ``at``: when the cause arose, on the monotonic clock; None: now. A program that had ended by
        then keeps its own reason.
        """
        if self._is_over:
            return
        first = self._cause is None
        at = time.monotonic() if at is None else at
        if first:
            self._cause, self._cause_at = cause, at
        if self._is_running:
            self._terminate(grace_seconds, at if cause in TIMEOUTS else 0.0)
            self._answer_within(
                TIMEOUT_ANSWER_SECONDS if cause in TIMEOUTS else grace_seconds + KILL_ANSWER_SECONDS
            )
        elif self.may_have_run:
            # The warden has been asked to spawn it: ``_run`` ends what comes of that, so that the
            # answer is true of the tree.
            self._waiting_end = min(self._waiting_end, (grace_seconds, cause))
        elif first and self._task is not None and self._has_begun:
            self._task.cancel()  # once: it cleans up from there

    def answer_now(self) -> None:
        """It was told to end: do not wait for the end any longer. The result is what is known."""
        if not self._is_over:
            self._give_answer()

    async def end_rest(self, grace_seconds: float) -> None:
        """It has ended: end what it left running. Returns when that is gone, or has survived even
        KILL."""

    def detach(self) -> None:
        """From now on it runs until it ends by itself, whoever reads or leaves."""
        self.command = msgspec.structs.replace(self.command, detached=True)
        # or it is too late to be kept: nothing would say how it ended
        if self.state is not State.EXITED:
            self.is_kept = True
            self._begin_journal()

    def follow(self, after: int, *, text: bool) -> AsyncGenerator[FollowedEvent, None]:
        """What happened after event number ``after``, and then what happens. Raises Gone."""
        return follow(
            self.output,
            after,
            text=text,
            heartbeat_seconds=self._context.config.stream_heartbeat_seconds,
        )

    @property
    def memory_bytes(self) -> int:
        """About what remembering it takes."""
        command = self.command
        words = {id(word): sys.getsizeof(word) for word in (command.display, *command.argv)}
        return self.output.memory_bytes + sum(words.values())

    @property
    def is_read(self) -> bool:
        """Whether anybody is attached."""
        return self._readers > 0

    def has_ended_at(self, sequence: int) -> bool:
        """Whether nothing comes after this event."""
        return self.state is State.EXITED and sequence == self.output.events.last_sequence

    def total_bytes(self, stream: Stream) -> int:
        return self.output.streams[stream].total_bytes

    async def look(self, stream: Stream) -> None:
        """Before the promise of a range: notice if the disk has lost some of it."""
        await self.output.streams[stream].look()

    async def read(self, stream: Stream, start: int, end: int) -> bytes:
        """Bytes of a stream. Raises RangeNotSatisfiable if some of them were not kept."""
        log = self.output.streams[stream]
        data = await log.read(start, end)
        if data is None:
            raise RangeNotSatisfiable(
                f"{stream}: bytes {log.head_end} to {log.memory.tail_start} were not kept",
                head_end=log.head_end,
                tail_start=log.memory.tail_start,
            )
        return data

    def signal(self, number: int) -> None:
        """Signal the program's process group. Raises Conflict if it is not running."""
        self._refuse(number)

    async def write_stdin(self, data: bytes) -> None:
        """Give the program input; returns when it (or the pipe) has taken it. Raises Conflict."""
        self._refuse(data)

    async def end_stdin(self) -> None:
        """Let the program read end of file, after what was written. On a terminal that is Ctrl-D.
        Raises Conflict."""
        self._refuse()

    def resize(self, cols: int, rows: int) -> None:
        """Raises Conflict if it has no terminal, or is not running."""
        self._refuse(cols, rows)

    def _refuse(self, *_: object) -> NoReturn:
        raise Conflict(f"the execution is {self.state}, not {State.RUNNING}")

    # Its life. What subclasses have to say.

    async def _run(self) -> Result:
        """Run it: call ``_has_started`` when it runs, and obey ``_terminate`` from then on."""
        raise NotImplementedError

    @property
    def _is_running(self) -> bool:
        return False

    def _terminate(self, grace_seconds: float, unless_ended_before: float) -> None:
        """It runs and must end, within the grace or by force; what it left running too, unless it
        had ended by itself before."""
        raise NotImplementedError

    def _give_place_back(self) -> None:
        """The last step of its task, however that ends: let another execution have its place in the
        queue or among the running."""

    # Its life. What all have in common.

    def _has_started(self, elapsed_seconds: float = 0.0) -> None:
        """It runs, since so long."""
        self.state = State.RUNNING
        self.started_at = time.time() - elapsed_seconds
        self.output.started()
        self._left_queue.set()
        self._start_clocks(elapsed_seconds)
        if self._cause is not None:  # since before it ran
            grace_seconds, cause = self._waiting_end
            self.end(cause, grace_seconds)

    async def _live(self, turn: asyncio.Future[None]) -> None:
        try:
            self._has_begun = True
            if self._cause is not None:
                # Ended before its first step. Cancelled then, a task would run no step, and nothing
                # below.
                raise asyncio.CancelledError
            await self._wait_turn(turn)
            await self.journal()
            self.result = await self._run()
        except asyncio.CancelledError:
            # Only ``end`` cancels, and only before there is a child.
            if (
                self._cause is ExitReason.SHUTDOWN
                and not self.may_have_run
                and not self.command.detached
            ):
                # "Come again later" is only for what has certainly not run, and whose caller is
                # there to hear it.
                self.error = Unavailable("execd is shutting down")
            else:
                self.result = Result(
                    exit_code=None, term_signal=None, exit_reason=self._cause or ExitReason.CANCELED
                )
        except ExecdError as error:
            self.error = error
        except Exception:
            # Our own fault. Whoever waits must hear of it all the same, and a repeated request must
            # not run it again.
            log.exception("an execution came to no result", extra={"execution_id": self.id})
            self.error = Internal(f"internal error in execution {self.id}")
        finally:
            try:
                await self._conclude()
            finally:
                self.state = State.EXITED
                self._left_queue.set()
                self._ended.set()
                self._give_place_back()
                self._keeper.ended(self)

    async def _conclude(self) -> None:
        self._stop_timers()
        if self._reattach is not None:
            self._reattach.cancel()
        self._is_over = True
        # What only running it needed. The body of a request may be in it, and there are as many as
        # are remembered.
        self.command = msgspec.structs.replace(self.command, stdin=b"", env={}, script=None)
        self.ended_at = time.time()
        self.ended_monotonic = self._loop.time()
        await self._keeper.finish(self)
        self.output.finish()
        self.state = State.EXITED  # before its readers see the last event, and ask how it ended
        self.output.exited()
        self.output.pack()

    def mark_ended(self, seconds_ago: float) -> None:
        """Let nobody wait: what there was to know is known."""
        self.ended_monotonic = self._loop.time() - seconds_ago
        self._left_queue.set()
        self._ended.set()

    def _seconds_left(self, own_limit: float) -> float:
        """How much of the limit remains of what waiting and running together may take."""
        if self.command.total_seconds is None:
            return own_limit
        return min(
            own_limit, max(0.0, self._arrived + self.command.total_seconds - time.monotonic())
        )

    async def _wait_turn(self, turn: asyncio.Future[None]) -> None:
        if turn.done():
            return
        limit = self._seconds_left(self.command.queue_seconds)
        try:
            async with asyncio.timeout(limit):
                await turn
        except TimeoutError:
            running = self._context.config.max_running
            raise ResourceExhausted(
                f"no turn came within {limit:g} s: {running} executions run, or others are being "
                "started",
                retry_after_seconds=1,
            ) from None

    def _append(self, stream: Stream, data: bytes) -> Awaitable[None] | None:
        self._last_output = time.monotonic()
        write = self.output.append(stream, data)
        limit_bytes = self.command.limits.log_bytes
        if (
            self.command.kill_on_output_limit
            and limit_bytes is not None
            and self.total_bytes(stream) > limit_bytes
        ):
            # it wrote too much before it ended, whenever that is read
            self.end(ExitReason.OUTPUT_LIMIT, 0.0, at=-math.inf)
        return write

    def _start_clocks(self, elapsed_seconds: float) -> None:
        self._deadline = time.monotonic() + self._seconds_left(
            self.command.timeout_seconds - elapsed_seconds
        )
        self._check_deadline()
        if self.command.no_output_timeout_seconds is not None:
            self._last_output = time.monotonic()
            self._check_silence(self.command.no_output_timeout_seconds)

    def _check_deadline(self) -> None:
        """Again at the deadline. A timer of the loop's can be early: its clock stands still within
        a turn."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            self._overran(ExitReason.TIMEOUT, self._deadline)
        else:
            self._timers.append(self._loop.call_later(left, self._check_deadline))

    def _check_silence(self, limit_seconds: float) -> None:
        """Looks when the limit could have passed, rather than at each byte."""
        if self._last_output + limit_seconds <= time.monotonic():
            self._read_output()
        left = self._last_output + limit_seconds - time.monotonic()
        if left <= 0:
            self._overran(ExitReason.NO_OUTPUT_TIMEOUT, self._last_output + limit_seconds)
        else:
            self._timers.append(self._loop.call_later(left, self._check_silence, limit_seconds))

    def _overran(self, cause: ExitReason, at: float) -> None:
        """One of its limits of time was over at ``at``, which may be long ago: the daemon was
        stopped, or had no CPU."""
        self.end(cause, self._context.config.timeout_grace_seconds, at=at)

    def _read_output(self) -> None:
        """Take what it has written by now, before its silence is judged."""

    def _stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _answer_within(self, seconds: float) -> None:
        answer_at = self._loop.time() + seconds
        if answer_at < self._answer_at:
            self._answer_at = answer_at
            self._timers.append(self._loop.call_at(answer_at, self._give_answer))

    def _give_answer(self) -> None:
        if not self._overdue.done():
            self._overdue.set_result(None)

    async def _unless_overdue(self, future: asyncio.Future[T]) -> T | None:
        """Its result, or None if the answer is due first."""
        await first_of(future, self._overdue)
        return future.result() if future.done() else None


async def first_of(*futures: asyncio.Future[Any]) -> None:
    """Until one of them is done. As asyncio.wait, which for a few futures takes three times as
    long, and cancels none of them either."""
    for future in futures:
        if future.done():
            return
    woken = asyncio.get_running_loop().create_future()

    def wake(_: object) -> None:
        if not woken.done():
            woken.set_result(None)

    for future in futures:
        future.add_done_callback(wake)
    try:
        await woken
    finally:
        for future in futures:
            future.remove_done_callback(wake)


def new_id() -> str:
    return secrets.token_hex(8)
