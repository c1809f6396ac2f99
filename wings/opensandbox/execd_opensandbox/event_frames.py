"""The event stream of OpenSandbox: each event is a JSON object and a blank line. Pure.

There is no ``data:`` before the object and no name of the event; every event has a timestamp in
milliseconds, without which the SDK drops the event. The JSON is ASCII: the SDK's code client ends a
line at U+0085 and U+2028.

An event of output is a line. The text of an event keeps its line end (LF, CR LF, or CR), so that
the texts of a stream together are the output; or has none (``strips``), as clients of OpenSandbox
1.0 expect, for whom a blank line is the text "LF".
"""

from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING, Any

from execd.engine.engine_api import ExitReason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from execd.engine.engine_api import Result, Stream

CONTENT_TYPE = "text/event-stream"
STREAM_HEADERS = {
    "Content-Type": CONTENT_TYPE,
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
PING_SECONDS = 3.0
"""Interval of pings on a silent stream. A client may give up after 10 s without an event."""
MAX_LINE_BYTES = 64 * 1024
"""A longer line comes in several events."""
LINE_END = re.compile(rb"\r\n|\n|\r")
MAX_CHARACTER_BYTES = 4

COMMAND_FAILED = "CommandExecError"
NO_EXIT_CODE = -1
"""The exit code of a program that a signal ended: Go's."""


class EventFrames:
    """Makes the frames of one stream. ``strips``: without line ends."""

    def __init__(self, *, strips: bool = False) -> None:
        self._strips = strips
        self._rests: dict[Stream, bytes] = {"stdout": b"", "stderr": b""}
        """The beginning of a line whose end has not come."""

    def output(self, stream: Stream, data: bytes, timestamp: int) -> bytes:
        """Return the events of the lines that ``data`` completes."""
        buffered = self._rests[stream] + data
        frames, start = [], 0
        for match in LINE_END.finditer(buffered):
            if match[0] == b"\r" and match.end() == len(buffered):
                break  # perhaps the first half of "\r\n"
            frames.append(self._line(stream, buffered[start : match.end()], timestamp))
            start = match.end()
        while len(buffered) - start > MAX_LINE_BYTES:
            end = _character_border(buffered, start + MAX_LINE_BYTES)
            frames.append(_text_frame(stream, buffered[start:end], timestamp))
            start = end
        self._rests[stream] = buffered[start:]
        return b"".join(frames)

    def rest(self, timestamp: int) -> bytes:
        """Return the events of the last lines, which have no line end."""
        frames = [
            self._line(stream, rest, timestamp) for stream, rest in self._rests.items() if rest
        ]
        self._rests = {"stdout": b"", "stderr": b""}
        return b"".join(frames)

    def _line(self, stream: Stream, line: bytes, timestamp: int) -> bytes:
        if self._strips:
            line = line.rstrip(b"\r\n") or b"\n"
        return _text_frame(stream, line, timestamp)


BEFORE_TIMESTAMP = ("text", "execution_count", "execution_time")
"""The fields in front of the timestamp. OpenSandbox leaves out an empty text and a zero."""


def frame(kind: str, timestamp: int, **fields: Any) -> bytes:
    """Return an event. ``timestamp``: milliseconds since the epoch."""
    first = {name: fields.pop(name, None) for name in BEFORE_TIMESTAMP}
    kept = {name: value for name, value in first.items() if value}
    event: dict[str, Any] = {"type": kind, **kept, "timestamp": timestamp, **fields}
    return json.dumps(event, ensure_ascii=True, separators=(",", ":")).encode() + b"\n\n"


def ping_frame(timestamp: int) -> bytes:
    return frame("ping", timestamp, text="pong")


def _text_frame(stream: Stream, data: bytes, timestamp: int) -> bytes:
    text = json.dumps(data.decode("utf-8", "replace")).encode()
    return b'{"type":"%b","text":%b,"timestamp":%d}\n\n' % (stream.encode(), text, timestamp)


def _character_border(data: bytes, end: int) -> int:
    """Return the last border between characters at or before ``end``."""
    for start in range(end, max(0, end - MAX_CHARACTER_BYTES), -1):
        if data[start] & 0xC0 != 0x80:
            return start
    return end


def end_frames(result: Result, timestamp: int) -> Iterator[bytes]:
    """Yield the last event of a command: ``execution_complete``, or an error."""
    if result.exit_code == 0 and result.exit_reason is ExitReason.EXITED:
        yield complete_frame(result.duration_seconds, timestamp)
    else:
        yield frame("error", timestamp, error=command_error(result))


def complete_frame(duration_seconds: float, timestamp: int) -> bytes:
    return frame("execution_complete", timestamp, execution_time=round(duration_seconds * 1000))


def opensandbox_exit_code(result: Result) -> int:
    """Return the exit code as Go has it: -1 after a signal."""
    return NO_EXIT_CODE if result.term_signal is not None else result.any_exit_code


def command_error(result: Result) -> dict[str, Any]:
    """Return the error of a command that failed.

    ``evalue`` is the exit code, which the SDK reads. ``ename`` is CommandExecError if the program
    ended by itself, and otherwise the reason why execd ended the program, such as CommandTimeout.
    """
    exit_code = opensandbox_exit_code(result)
    by_itself = (ExitReason.EXITED, ExitReason.SIGNALED, ExitReason.SPAWN_FAILED)
    name = COMMAND_FAILED
    if result.exit_reason not in by_itself:
        if result.exit_code is not None:
            exit_code = NO_EXIT_CODE  # the program has caught the signal
        name = "Command" + result.exit_reason.value.title().replace("_", "")
    traceback = []
    if result.term_signal is not None:
        words = signal.strsignal(result.term_signal) or str(result.term_signal)
        traceback.append(f"signal: {words.lower()}")
    elif result.exit_code is not None:
        traceback.append(f"exit status {result.exit_code}")
    if result.message:
        traceback.append(result.message)
    return {"ename": name, "evalue": str(exit_code), "traceback": traceback or [name]}


def refusal_error(message: str) -> dict[str, Any]:
    """Return the error of a command that could not run."""
    return {"ename": COMMAND_FAILED, "evalue": "125", "traceback": [message]}
