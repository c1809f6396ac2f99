"""The events of an execution as streams show them."""

from __future__ import annotations

import base64
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from execd.api.v1 import cell_reply, execution_reply

# msgspec reads the annotations at run time.
from execd.api.v1.execution_types import (
    AppliedLimits,
    Arguments,
    Code,
    CommandText,
    ExecutionName,
    ExecutionReply,
    Generation,
    SessionName,
    StateLost,
    WorkingDirectory,
)
from execd.api.wire.encoders import WireEvent
from execd.engine.output.event_index import PIECE_BYTES
from execd.engine.output.follow import (
    DisplayEvent,
    Dropped,
    ExitedEvent,
    Heartbeat,
    Output,
    ProgramStarted,
)
from execd.model import Stream  # noqa: TC001

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from execd.api.v1.execution_types import Encoding
    from execd.config import Config
    from execd.engine.executions.execution import Execution
    from execd.engine.output.follow import FollowedEvent


class StartedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The program has started. The first event."""

    id: ExecutionName
    session_id: SessionName = UNSET
    generation: Generation = UNSET
    state_lost: StateLost = UNSET
    command: CommandText = UNSET
    argv: Arguments = UNSET
    code: Code = UNSET
    cwd: WorkingDirectory
    limits: AppliedLimits
    pid: int | None
    """The process, as user code sees its pid; null: the program could not start."""
    started_at: str | None
    """The start, RFC 3339 in UTC; null: the program could not start."""


class OutputEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Output."""

    offset: int
    """The place in the bytes that the program wrote to this stream."""
    size_bytes: int
    """The number of the program's bytes. The text may have replacement characters for some of
    them."""
    text: str | UnsetType = UNSET
    """The output, cut between characters. Absent with `encoding=base64`."""
    base64: str | UnsetType = UNSET
    """The output with `encoding=base64`, else absent."""


class DroppedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Output that is not kept any more."""

    stream: Stream
    """The stream that lost bytes."""
    offset: int
    """The place of the first lost byte."""
    size_bytes: int
    """The number of lost bytes."""


class PartEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a long event, with `parts=true`. Only the last part has the event's number; the
    parts before have the number of the event before."""

    of: str
    """The name of the event."""
    offset: int
    """The place in the bytes of the event's JSON."""
    size_bytes: int
    """The size of the event's JSON."""
    base64: str
    """Bytes of the event's JSON."""


EVENTS: dict[str, type] = {
    "started": StartedEvent,
    "stdout": OutputEvent,
    "stderr": OutputEvent,
    "dropped": DroppedEvent,
    **cell_reply.EVENTS,
    "exited": ExecutionReply,
}


def render_events(
    execution: Execution, after: int, encoding: Encoding, config: Config
) -> AsyncGenerator[WireEvent | None, None]:
    """Yield the events with a number above ``after``, and None for a heartbeat. The last event is
    ``exited``.

    Raises Gone, at the call and not at the first event.
    """
    return _render(
        execution.view.follow(after, text=encoding == "text"), execution, encoding, config
    )


async def in_parts(
    events: AsyncGenerator[WireEvent | None, None], after: int, offset: int
) -> AsyncGenerator[WireEvent | None, None]:
    """Yield the events, those of over PIECE_BYTES in parts. ``offset``: where the part of the first
    event begins. Output comes in pieces already."""
    async with aclosing(events):
        async for event in events:
            if event is None:
                yield event
                continue
            is_output = isinstance(event.fields, OutputEvent | DroppedEvent)
            data = b"" if is_output else msgspec.json.encode(event.fields)
            if len(data) <= PIECE_BYTES:
                yield event
            else:
                for start in range(min(offset, len(data) - 1), len(data), PIECE_BYTES):
                    piece = data[start : start + PIECE_BYTES]
                    part = PartEvent(
                        of=event.kind,
                        offset=start,
                        size_bytes=len(data),
                        base64=base64.b64encode(piece).decode(),
                    )
                    is_last = start + len(piece) == len(data)
                    yield WireEvent(event.sequence if is_last else after, "part", part)
            after, offset = event.sequence, 0


async def _render(
    followed: AsyncGenerator[FollowedEvent, None],
    execution: Execution,
    encoding: Encoding,
    config: Config,
) -> AsyncGenerator[WireEvent | None, None]:
    async with aclosing(followed):
        async for event in followed:
            match event:
                case ProgramStarted():
                    yield WireEvent(event.sequence, "started", started_event(execution, config))
                case Output():
                    yield WireEvent(event.sequence, event.stream, output_event(event, encoding))
                case Dropped():
                    dropped = DroppedEvent(
                        stream=event.stream, offset=event.offset, size_bytes=event.size_bytes
                    )
                    yield WireEvent(event.sequence, "dropped", dropped)
                case DisplayEvent():
                    yield WireEvent(
                        event.sequence, event.rich.kind, cell_reply.display_event(event.rich)
                    )
                case ExitedEvent():
                    yield WireEvent(
                        event.sequence,
                        "exited",
                        await execution_reply.full_reply(execution, config, encoding),
                    )
                case Heartbeat():
                    yield None


def started_event(execution: Execution, config: Config) -> StartedEvent:
    """Return the fields that are known at the start: the same for every reader, however late."""
    summary = execution_reply.summary(execution, config)
    names = StartedEvent.__struct_fields__
    return StartedEvent(**{name: summary[name] for name in names if name in summary})


def output_event(event: Output, encoding: Encoding) -> OutputEvent:
    size_bytes = len(event.data)
    if encoding == "base64":
        data = base64.b64encode(event.data).decode()
        return OutputEvent(offset=event.offset, size_bytes=size_bytes, base64=data)
    text = event.data.decode("utf-8", "replace")
    return OutputEvent(offset=event.offset, size_bytes=size_bytes, text=text)
