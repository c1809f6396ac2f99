"""The messages of ``process.Process``: requests as structs, and the events of a command. Pure.

The field names are those of ProtoJSON: defaults are left out, unknown fields are ignored, and bytes
are base64.
"""

from __future__ import annotations

import signal
from typing import Any

import msgspec

from execd.engine.engine_api import ExitReason, InvalidArgument, NotSupported, Result
from execd_e2b.connect import encode_bytes

SIGNALS: dict[str | int, int] = {
    "SIGNAL_SIGTERM": signal.SIGTERM,
    "SIGNAL_SIGKILL": signal.SIGKILL,
    15: signal.SIGTERM,
    9: signal.SIGKILL,
}
"""By the name and by the number of the enum."""
OWN_ENDS = (ExitReason.EXITED, ExitReason.SIGNALED)
MAX_SIZE = 65535


class ProcessConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The program to start."""

    cmd: str = ""
    args: list[str] | None = None
    envs: dict[str, str] | None = None
    cwd: str | None = None


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a terminal, in characters."""

    cols: int = 0
    rows: int = 0


class Pty(msgspec.Struct, frozen=True, kw_only=True):
    """A terminal."""

    size: Size | None = None


class StartRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of Start."""

    process: ProcessConfig = ProcessConfig()
    pty: Pty | None = None
    tag: str | None = None
    stdin: bool | None = None
    """None, of older clients: the standard input is open."""


class Selector(msgspec.Struct, frozen=True, kw_only=True):
    """Names a command by the pid or by the tag."""

    pid: int | str | None = None
    tag: str | None = None

    def names(self) -> tuple[int | None, str | None]:
        """Return the pid or the tag, and None for the other. Raises InvalidArgument."""
        if self.tag is not None:
            return None, self.tag
        try:
            return int(self.pid if self.pid is not None else ""), None
        except ValueError:
            raise InvalidArgument(
                "process: needs the pid or the tag of a command", field="process"
            ) from None


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes for the standard input, or for the terminal, as base64."""

    stdin: str | None = None
    pty: str | None = None


class ProcessRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of each call on a running command; a call reads its own fields."""

    process: Selector = Selector()
    input: Input = Input()
    signal: str | int = 0
    pty: Pty | None = None


class InputStart(msgspec.Struct, frozen=True, kw_only=True):
    """The first message of StreamInput."""

    process: Selector = Selector()


class InputData(msgspec.Struct, frozen=True, kw_only=True):
    """A later message of StreamInput."""

    input: Input = Input()


class StreamInputRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A message of StreamInput. Without either field: a keepalive."""

    start: InputStart | None = None
    data: InputData | None = None


START = msgspec.json.Decoder(StartRequest)
PROCESS = msgspec.json.Decoder(ProcessRequest)
STREAM_INPUT = msgspec.json.Decoder(StreamInputRequest)


def terminal_size(pty: Pty) -> tuple[int, int]:
    """Return the columns and rows; 0 where the client does not know. Raises InvalidArgument."""
    size = pty.size or Size()
    if not (0 <= size.cols <= MAX_SIZE and 0 <= size.rows <= MAX_SIZE):
        raise InvalidArgument(f"pty.size: cols and rows are 0 to {MAX_SIZE}", field="pty.size")
    return size.cols, size.rows


def signal_number(asked: str | int) -> int:
    """Return the number of a signal of the enum. Raises NotSupported."""
    number = SIGNALS.get(asked)
    if number is None:
        raise NotSupported(
            f"signal: {str(asked)[:32]!r} is not SIGNAL_SIGTERM or SIGNAL_SIGKILL", field="signal"
        )
    return number


def start_event(pid: int | None, execution_id: str) -> dict[str, Any]:
    """Return the first event. ``executionId`` is execd's own: the id for ``/v1/executions``."""
    start: dict[str, Any] = {"executionId": execution_id}
    if pid is not None:
        start["pid"] = pid
    return {"event": {"start": start}}


def data_event(kind: str, data: bytes) -> dict[str, Any]:
    """Return the event of some output. ``kind``: stdout, stderr or pty."""
    return {"event": {"data": {kind: encode_bytes(data)}}}


def dropped_event(kind: str, offset: int, size_bytes: int) -> dict[str, Any]:
    """Return execd's own event for output that the log has lost. The SDKs ignore unknown events."""
    return {"event": {"dropped": {"stream": kind, "offset": offset, "sizeBytes": size_bytes}}}


KEEPALIVE: dict[str, Any] = {"event": {"keepalive": {}}}


def end_event(result: Result) -> dict[str, Any]:
    """Return the last event, in the words of Go's ``os.ProcessState`` as envd sends them. If execd
    ended the program, or the program could not start, ``error`` has the reason too."""
    end: dict[str, Any] = {}
    if result.term_signal is not None:
        end["exitCode"] = -1
        status = f"signal: {_signal_words(result.term_signal)}"
    else:
        if result.any_exit_code:  # ProtoJSON leaves 0 out
            end["exitCode"] = result.any_exit_code
        end["exited"] = True
        status = f"exit status {result.any_exit_code}"
    end["status"] = status
    is_own_end = result.exit_reason in OWN_ENDS
    if "exitCode" in end or not is_own_end:
        end["error"] = status if is_own_end else f"{status} ({result.message})"
    end["exitReason"] = result.exit_reason
    return {"event": {"end": end}}


def _signal_words(number: int) -> str:
    return (signal.strsignal(number) or str(number)).lower()
