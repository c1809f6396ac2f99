"""The events of an execution as streams show them."""

from __future__ import annotations

import base64
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from execd.api.v1 import execution_reply
from execd.api.wire.encoders import WireEvent
from execd.engine.output.follow import (
    DisplayEvent,
    Dropped,
    ExitedEvent,
    Heartbeat,
    Output,
    StartedEvent,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from execd.api.v1.execution_reply import Encoding
    from execd.config import Config
    from execd.engine.executions.execution import Execution
    from execd.engine.output.follow import FollowedEvent

STARTED_FIELDS = (
    "id",
    "session_id",
    "generation",
    "state_lost",
    "argv",
    "command",
    "code",
    "cwd",
    "pid",
    "started_at",
)


def render_events(
    execution: Execution, after: int, encoding: Encoding, config: Config
) -> AsyncGenerator[WireEvent | None, None]:
    """Yield the events with a number above ``after``, and None for a heartbeat. The last event is
    ``exited``.

    Raises Gone, at the call and not at the first event.
    """
    return _render(execution.follow(after, text=encoding == "text"), execution, encoding, config)


async def _render(
    followed: AsyncGenerator[FollowedEvent, None],
    execution: Execution,
    encoding: Encoding,
    config: Config,
) -> AsyncGenerator[WireEvent | None, None]:
    async with aclosing(followed):
        async for event in followed:
            match event:
                case StartedEvent():
                    yield WireEvent(event.sequence, "started", started_fields(execution, config))
                case Output():
                    yield WireEvent(event.sequence, event.stream, output_fields(event, encoding))
                case Dropped():
                    fields = {
                        "stream": event.stream,
                        "offset": event.offset,
                        "size_bytes": event.size_bytes,
                    }
                    yield WireEvent(event.sequence, "dropped", fields)
                case DisplayEvent():
                    yield WireEvent(event.sequence, event.rich.kind, event.rich.fields)
                case ExitedEvent():
                    yield WireEvent(
                        event.sequence,
                        "exited",
                        await execution_reply.full_reply(execution, config, encoding),
                    )
                case Heartbeat():
                    yield None


def started_fields(execution: Execution, config: Config) -> dict[str, Any]:
    """Return the fields that are known at the start: the same for every reader, however late."""
    summary = execution_reply.summary(execution, config)
    return {name: summary[name] for name in STARTED_FIELDS if name in summary}


def output_fields(event: Output, encoding: Encoding) -> dict[str, Any]:
    """Return the fields of output. ``offset`` and ``size_bytes`` count the program's bytes; the
    text may have replacement characters for some of them."""
    place = {"offset": event.offset, "size_bytes": len(event.data)}
    if encoding == "base64":
        return {**place, "base64": base64.b64encode(event.data).decode()}
    return {**place, "text": event.data.decode("utf-8", "replace")}
