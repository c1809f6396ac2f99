"""The messages of a terminal's WebSocket. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

# msgspec reads the annotations at run time.
from execd.engine.engine_api import TerminalColumns, TerminalRows  # noqa: TC001

if TYPE_CHECKING:
    from execd.engine.engine_api import Stream

OUTPUT: dict[Stream, bytes] = {"stdout": b"\x01", "stderr": b"\x02"}
REPLAY = b"\x03"
OFFSET_BYTES = 8


class PtyInput(msgspec.Struct, frozen=True, kw_only=True, tag="stdin"):
    """Input for the shell."""

    data: str


class PtySignal(msgspec.Struct, frozen=True, kw_only=True, tag="signal"):
    """A signal for the program in the foreground (SIGINT, SIGQUIT), or for the shell."""

    signal: Literal["SIGINT", "SIGTERM", "SIGKILL", "SIGQUIT", "SIGHUP"]


class PtyResize(msgspec.Struct, frozen=True, kw_only=True, tag="resize"):
    """The terminal has another size."""

    cols: TerminalColumns
    rows: TerminalRows


class PtyPing(msgspec.Struct, frozen=True, kw_only=True, tag="ping"):
    """The viewer wants a ``pong``."""


MESSAGE: msgspec.json.Decoder[PtyInput | PtySignal | PtyResize | PtyPing] = msgspec.json.Decoder(
    PtyInput | PtySignal | PtyResize | PtyPing
)


def output_message(stream: Stream, data: bytes) -> bytes:
    return OUTPUT[stream] + data


def replay_message(offset: int, data: bytes) -> bytes:
    """``offset``: of the first byte, in the bytes of the whole output."""
    return REPLAY + offset.to_bytes(OFFSET_BYTES, "big") + data
