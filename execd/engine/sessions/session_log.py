"""The log of a session: changes of state, starts and ends of cells, and the output between cells.

Threads and children that a cell leaves behind write when no cell runs. Nobody waits for this
output: the next cell's reply has it as ``background``, and readers of the session's stream see it
at once.

Numbers. Each event has a number, one above the number of the event before. The numbers of a log
begin at the milliseconds since 1970, so that a session made anew under the same id, by this daemon
or a later one, does not give the numbers of the former session again.

Memory. A log keeps its newest events, SESSION_BYTES together, and all logs together keep the
bytes of one ``LogBudget``. Over the budget the largest log loses its older half. Lost output is a
``DroppedOutput`` for readers, and counted in the reply.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Literal

import msgspec

from execd.engine.output.event_index import PIECE_BYTES
from execd.engine.output.head_tail import incomplete_tail_bytes
from execd.engine.sessions.session_state import SessionState  # noqa: TC001  # msgspec reads these
from execd.errors import Gone, InvalidArgument
from execd.model import STREAMS, BackgroundOutput, ExitReason, Stream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

SESSION_BYTES = 128 * 1024
"""More than one read of a pipe."""
ALL_SESSIONS_BYTES = 16 * 1024 * 1024
EVENT_BYTES = 128
"""About the memory of an event, besides its text."""
EVENTS_PER_READ = 64
MAX_PROMPT_CHARACTERS = 1024


class StateChanged(msgspec.Struct, frozen=True):
    """The session has another state. Starts and ends of cells are events of their own."""

    state: SessionState
    generation: int
    prompt: str | None = None
    """The question that the session waits for."""
    password: bool | None = None


class CellStarted(msgspec.Struct, frozen=True):
    id: str
    generation: int
    state_lost: bool


class CellEnded(msgspec.Struct, frozen=True):
    id: str
    exit_reason: ExitReason
    status: Literal["success", "error"] | None
    state: SessionState
    """The session's state now: BUSY while a cell runs on past its answer."""


class WrittenOutput(msgspec.Struct, frozen=True):
    """Output while no cell ran. ``offset`` counts the session's output of this kind."""

    stream: Stream
    offset: int
    data: bytes


class DroppedOutput(msgspec.Struct, frozen=True):
    """Output that is not kept any more."""

    stream: Stream
    offset: int
    size_bytes: int


class Deleted(msgspec.Struct, frozen=True):
    """The session is deleted. The last event."""


LoggedEvent = StateChanged | CellStarted | CellEnded | WrittenOutput | Deleted
FollowedEvent = LoggedEvent | DroppedOutput


class LogBudget:
    """The memory of all logs together."""

    def __init__(self, max_bytes: int = ALL_SESSIONS_BYTES) -> None:
        self.used_bytes = 0
        self._max_bytes = max_bytes
        self._logs: set[SessionLog] = set()

    def join(self, log: SessionLog) -> None:
        self._logs.add(log)

    def leave(self, log: SessionLog) -> None:
        if log in self._logs:
            self._logs.discard(log)
            self.used_bytes -= log.kept_bytes
        assert self.used_bytes >= 0

    def count(self, change_bytes: int) -> None:
        """Count the change of a log. Over the budget, the largest log loses its older half."""
        self.used_bytes += change_bytes
        while self.used_bytes > self._max_bytes:
            largest = max(self._logs, key=lambda log: log.kept_bytes)
            before = largest.kept_bytes
            self.used_bytes -= before - largest.shrink(before // 2)
        assert self.used_bytes >= 0


class SessionLog:
    """See the module's text."""

    def __init__(self, budget: LogBudget) -> None:
        self.kept_bytes = 0
        self._budget = budget
        self._events: deque[LoggedEvent] = deque()
        self._trimmed = int(time.time() * 1000)
        """The number of the event before the first kept event."""
        self._written: dict[Stream, int] = dict.fromkeys(STREAMS, 0)
        """Size of the output so far."""
        self._told: dict[Stream, int] = dict.fromkeys(STREAMS, 0)
        """Size of the output that replies have told."""
        self._has_news = False
        """Whether there is output that no reply has told."""
        self._unfinished: dict[Stream, bytes] = dict.fromkeys(STREAMS, b"")
        """The beginning of a character, whose rest is still to come."""
        self._is_closed = False
        self._changed: asyncio.Future[None] | None = None
        budget.join(self)

    @property
    def newest(self) -> int:
        """The number of the newest event."""
        return self._trimmed + len(self._events)

    @property
    def untold_bytes(self) -> int:
        """Size of the output that no reply has told, with what is not kept any more."""
        unfinished = sum(map(len, self._unfinished.values()))
        return sum(self._written.values()) - sum(self._told.values()) + unfinished

    # Writing.

    def note(self, event: LoggedEvent) -> None:
        """Append an event. A closed log takes no more."""
        if self._is_closed:
            return
        before = self.kept_bytes
        self._events.append(event)
        self.kept_bytes += _size_bytes(event)
        self.shrink(SESSION_BYTES)
        self._budget.count(self.kept_bytes - before)
        self._wake()

    def take_output(self, stream: Stream, data: bytes) -> None:
        """Append output. A character is not cut, unless the stream goes on with another one."""
        data = self._unfinished[stream] + data
        while size_bytes := len(data[:PIECE_BYTES]) - incomplete_tail_bytes(data[:PIECE_BYTES]):
            offset = self._written[stream]
            self._written[stream] += size_bytes
            self._has_news = True
            self.note(WrittenOutput(stream, offset, data[:size_bytes]))
            data = data[size_bytes:]
        self._unfinished[stream] = data

    def finish_output(self) -> None:
        """The writing process has ended: half a character stays half a character."""
        for stream, data in self._unfinished.items():
            if data:
                self._unfinished[stream] = b""
                self._has_news = True
                self._written[stream] += len(data)
                self.note(WrittenOutput(stream, self._written[stream] - len(data), data))

    def shrink(self, max_bytes: int) -> int:
        """Drop the oldest events until at most ``max_bytes`` are kept. Return the kept bytes."""
        while self.kept_bytes > max_bytes:
            self.kept_bytes -= _size_bytes(self._events.popleft())
            self._trimmed += 1
        assert self.kept_bytes >= 0
        return self.kept_bytes

    def close(self, *, is_deleted: bool) -> None:
        """End the streams of all readers. Idempotent."""
        if is_deleted:
            self.note(Deleted())
        self._is_closed = True
        self._budget.leave(self)
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set_result(None)
            self._changed = None

    # Reading.

    def take_background(self) -> BackgroundOutput | None:
        """Return the output that no reply has told yet; None: there is none."""
        if not self._has_news:
            return None
        self._has_news = False
        kept: dict[Stream, list[bytes]] = {stream: [] for stream in STREAMS}
        for event in self._events:
            if isinstance(event, WrittenOutput) and event.offset >= self._told[event.stream]:
                kept[event.stream].append(event.data)
        found = {stream: b"".join(pieces) for stream, pieces in kept.items()}
        omitted = {
            stream: self._written[stream] - self._told[stream] - len(found[stream])
            for stream in STREAMS
        }
        assert min(omitted.values()) >= 0
        self._told = dict(self._written)
        return BackgroundOutput(
            stdout=found["stdout"],
            stderr=found["stderr"],
            stdout_omitted_bytes=omitted["stdout"],
            stderr_omitted_bytes=omitted["stderr"],
        )

    def follow(
        self, after: int, heartbeat_seconds: float
    ) -> AsyncGenerator[tuple[int, FollowedEvent] | None, None]:
        """Return the events with a number above ``after``, with their numbers, and None for a
        heartbeat. 0: from the oldest kept event on.

        Raises in this call Gone for a number that was trimmed, InvalidArgument for a number that
        no event has had yet.
        """
        if after > self.newest:
            raise InvalidArgument(
                f"after: there is no event {after} yet, the newest event is {self.newest}: give "
                "the number of the last event read, or 0",
                field="after",
                newest_event=self.newest,
            )
        if after and after < self._trimmed:
            raise Gone(
                f"event {after} cannot be resumed at any more: it was trimmed, or belongs to an "
                "earlier session of this id; read from after=0"
            )
        reached = dict.fromkeys(STREAMS, 0)
        if after:
            reached = dict(self._written)
            later = list(islice(self._events, after - self._trimmed, None))
            for event in reversed(later):
                if isinstance(event, WrittenOutput):
                    reached[event.stream] = event.offset
        return self._follow(after, reached, heartbeat_seconds or None)

    async def _follow(
        self, sequence: int, reached: dict[Stream, int], heartbeat_seconds: float | None
    ) -> AsyncGenerator[tuple[int, FollowedEvent] | None, None]:
        """``reached``: the size of each stream up to the event ``sequence``."""
        while True:
            begin = max(0, sequence - self._trimmed)
            events = list(islice(self._events, begin, begin + EVENTS_PER_READ))
            if not events:
                if self._is_closed:
                    return
                if self._changed is None:
                    self._changed = asyncio.get_running_loop().create_future()
                done, _ = await asyncio.wait((self._changed,), timeout=heartbeat_seconds)
                if not done:
                    yield None
                continue
            sequence = self._trimmed + begin
            for event in events:
                if isinstance(event, WrittenOutput):
                    start = reached[event.stream]
                    if start < event.offset:
                        gap = DroppedOutput(event.stream, start, event.offset - start)
                        yield sequence, gap
                    reached[event.stream] = event.offset + len(event.data)
                sequence += 1
                yield sequence, event


def _size_bytes(event: LoggedEvent) -> int:
    size_bytes = EVENT_BYTES
    if isinstance(event, WrittenOutput):
        size_bytes += len(event.data)
    elif isinstance(event, StateChanged) and event.prompt is not None:
        size_bytes += 4 * len(event.prompt)
    return size_bytes
