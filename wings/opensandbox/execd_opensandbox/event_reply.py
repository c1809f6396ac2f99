"""The reply of routes that run something: a stream of events, which ends with the program.

A program that waits for its turn is waited for in silence for ``PING_SECONDS``, so that a refusal
can be an HTTP error. After that the stream begins, with pings: routers cut a silent request, the
Go router after 30 s. From then on a refusal is an ``error`` event.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from execd.api.wire_api import WireEvent, send_events
from execd.engine.engine_api import (
    DisplayEvent,
    Dropped,
    ExecdError,
    ExitedEvent,
    Heartbeat,
    Output,
)
from execd_opensandbox.event_frames import (
    CONTENT_TYPE,
    PING_SECONDS,
    STREAM_HEADERS,
    EventFrames,
    complete_frame,
    end_frames,
    frame,
    ping_frame,
    refusal_error,
)
from execd_opensandbox.requests import SETTINGS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from aiohttp import web

    from execd.engine.engine_api import DisplayMessage, Execution

TEXT_MIME_TYPE, TEXT_KEY = "text/plain", "text"
"""OpenSandbox calls the plain text of a result ``text``, and other formats by their MIME types."""


class _Frames:
    """The encoder of this dialect: events arrive as bytes."""

    content_type = CONTENT_TYPE
    charset: str | None = None

    @property
    def heartbeat(self) -> bytes:
        return ping_frame(_now())

    def encode(self, event: WireEvent) -> bytes:
        assert isinstance(event.fields, bytes)
        return event.fields


def _now() -> int:
    return time.time_ns() // 1_000_000


async def send_execution(
    request: web.Request, execution: Execution, name: str
) -> web.StreamResponse:
    """Send the events of the execution until its end. ``name``: the id in the event ``init``.
    Raises ResourceExhausted, Unavailable before the first event."""
    with execution.attach() as attachment:
        await _has_started(execution)
        frames = _frames(execution, name, strips=request.app[SETTINGS].line_ends == "strip")
        response = await send_events(
            request,
            _Frames(),
            _as_wire_events(frames),
            on_stall=attachment.excuse,
            headers=STREAM_HEADERS,
        )
        attachment.delivered()
    return response


async def send_started(request: web.Request, execution: Execution) -> web.StreamResponse:
    """Send the events of a program in the background: the program has started. Raises
    ResourceExhausted, Unavailable before the first event."""
    await _has_started(execution)

    async def frames() -> AsyncGenerator[bytes | None, None]:
        yield frame("init", _now(), text=execution.id) + ping_frame(_now())
        try:
            while not await _has_started(execution):
                yield None
        except ExecdError as error:
            yield frame("error", _now(), error=refusal_error(error.message))
        else:
            yield frame("execution_complete", _now())

    return await send_events(
        request,
        _Frames(),
        _as_wire_events(frames()),
        headers=STREAM_HEADERS,
    )


async def _has_started(execution: Execution) -> bool:
    """Wait for the start, for at most the interval of pings. Raises ResourceExhausted,
    Unavailable."""
    with suppress(TimeoutError):
        async with asyncio.timeout(PING_SECONDS):
            await execution.wait_started()
            return True
    return False


async def _as_wire_events(
    frames: AsyncGenerator[bytes | None, None],
) -> AsyncGenerator[WireEvent | None, None]:
    async with aclosing(frames):
        async for data in frames:
            if data is None:
                yield None
            elif data:
                yield WireEvent(0, "frame", data)


async def _frames(
    execution: Execution, name: str, *, strips: bool
) -> AsyncGenerator[bytes | None, None]:
    """Yield the events, and None for a ping."""
    lines = EventFrames(strips=strips)
    yield frame("init", _now(), text=name) + ping_frame(_now())
    followed = execution.view.follow(0, text=False, heartbeat_seconds=PING_SECONDS)
    async with aclosing(followed):
        async for event in followed:
            match event:
                case Output():
                    yield lines.output(event.stream, event.data, _now())
                case Dropped():
                    marker = f"[execd: {event.size_bytes} bytes were not kept]\n".encode()
                    yield lines.output(event.stream, marker, _now())
                case DisplayEvent():
                    yield lines.rest(_now()) + b"".join(_display_frames(event.rich))
                case ExitedEvent():
                    yield lines.rest(_now()) + b"".join(_last_frames(execution))
                case Heartbeat():
                    yield None


def _last_frames(execution: Execution) -> Iterator[bytes]:
    result = execution.outcome
    if result is None:
        message = "execd lost the program, and cannot tell how it ended"
        yield frame("error", _now(), error=refusal_error(message))
    elif execution.cell is None:
        yield from end_frames(result, _now())
    else:
        has_told = any(item.kind == "error" for item in execution.output.rich)
        if execution.cell.status != "success" and not has_told:
            yield from cell_error_frames("CellError", result.message or result.exit_reason.value)
        yield complete_frame(result.duration_seconds, _now())


def cell_error_frames(name: str, value: str, traceback: list[str] | None = None) -> Iterator[bytes]:
    """Yield the events of an exception in a cell."""
    error = {"ename": name, "evalue": value, "traceback": traceback or [value]}
    yield frame("status", _now(), text="error")
    yield frame("error", _now(), error=error)


def _display_frames(item: DisplayMessage) -> Iterator[bytes]:
    """Yield the events of a display message. A display is a ``result`` without a number."""
    match item.kind:
        case "result":
            yield frame("execution_count", _now(), execution_count=item.fields["execution_count"])
            yield _result_frame(item)
        case "display":
            yield _result_frame(item)
        case "error":
            traceback = msgspec.json.decode(item.fields["traceback"])
            yield from cell_error_frames(item.fields["name"], item.fields["value"], traceback)
        case "input_request" | "clear_output":
            pass  # OpenSandbox has no such event; input() raises in these cells


def _result_frame(item: DisplayMessage) -> bytes:
    formats: dict[str, Any] = msgspec.json.decode(item.fields["data"])
    results = {
        TEXT_KEY if mime_type == TEXT_MIME_TYPE else mime_type: value
        for mime_type, value in formats.items()
    }
    return frame("result", _now(), results=results)
