"""The events of a session's log as streams show them."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Literal

import msgspec

from execd.api.v1.execution_events import DroppedEvent, OutputEvent, output_event
from execd.api.wire.encoders import WireEvent
from execd.engine.output.follow import Output
from execd.engine.sessions import session_log

# msgspec reads the annotations at run time.
from execd.engine.sessions.session_state import SessionState  # noqa: TC001
from execd.model import ExitReason  # noqa: TC001

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from execd.api.v1.execution_types import Encoding
    from execd.engine.sessions.session import Session
    from execd.engine.sessions.session_log import FollowedEvent


class SessionStateEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The session has another state. Starts and ends of cells are events of their own."""

    state: SessionState
    """The state now."""
    generation: int
    """The number of the interpreter."""
    prompt: str | None
    """The question of `input()`; null unless the state is `WAITING_INPUT`."""
    password: bool | None
    """Whether the answer is a password; null unless the state is `WAITING_INPUT`."""


class CellStartedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A cell has started."""

    id: str
    """The cell, under `/v1/executions`."""
    generation: int
    """The number of the interpreter."""
    state_lost: bool
    """Whether the cell is the first to find the state gone."""


class CellEndedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A cell has ended."""

    id: str
    """The cell, under `/v1/executions`."""
    exit_reason: ExitReason
    """How the cell ended."""
    status: Literal["success", "error"] | None
    """The outcome; null: the cell ended before it ran."""
    state: SessionState
    """The state of the session now: `BUSY` if the cell runs on past its answer."""


class SessionDeletedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The session is deleted. The last event."""


EVENTS: dict[str, type] = {
    "stdout": OutputEvent,
    "stderr": OutputEvent,
    "dropped": DroppedEvent,
    "state": SessionStateEvent,
    "cell_started": CellStartedEvent,
    "cell_ended": CellEndedEvent,
    "deleted": SessionDeletedEvent,
}
KINDS: dict[type[FollowedEvent], str] = {
    session_log.StateChanged: "state",
    session_log.CellStarted: "cell_started",
    session_log.CellEnded: "cell_ended",
    session_log.DroppedOutput: "dropped",
    session_log.Deleted: "deleted",
}


def render_events(
    session: Session, after: int, encoding: Encoding, heartbeat_seconds: float
) -> AsyncGenerator[WireEvent | None, None]:
    """Yield the events with a number above ``after``, and None for a heartbeat.

    Raises Gone and InvalidArgument, at the call and not at the first event.
    """
    return _render(session.log.follow(after, heartbeat_seconds), encoding)


async def _render(
    followed: AsyncGenerator[tuple[int, FollowedEvent] | None, None], encoding: Encoding
) -> AsyncGenerator[WireEvent | None, None]:
    async with aclosing(followed):
        async for item in followed:
            yield None if item is None else _wire_event(*item, encoding)


def _wire_event(sequence: int, event: FollowedEvent, encoding: Encoding) -> WireEvent:
    if isinstance(event, session_log.WrittenOutput):
        output = Output(sequence, event.stream, event.offset, event.data)
        return WireEvent(sequence, event.stream, output_event(output, encoding))
    kind = KINDS[type(event)]
    # The engine's event has the fields of the event on the wire.
    return WireEvent(sequence, kind, EVENTS[kind](**msgspec.structs.asdict(event)))
