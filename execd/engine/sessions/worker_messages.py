"""What a worker says, as the daemon takes it: values where it acts on them, bytes where it only
passes them on. Pure.

``frames`` has the form that both sides share. Decoded, a bundle of 32 MiB may become thirty times
as much in objects, and the daemon, which wants nothing of it but to hand it to a client, must not
be made to hold that by the code inside. So it stays JSON: checked, not built.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw

from execd.kernel import frames

NO_ITEMS = Raw(b"[]")

Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""As ``frames`` has them: what is larger could not be written into an answer."""


class WorkerReady(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ready"):
    python: str
    ipython: str
    warnings: list[str]


class Configured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="configured"):
    pass


class Failed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="failed"):
    message: str


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="reply"):
    id: Natural
    warnings: list[str] = []
    matches: Raw = NO_ITEMS
    cursor_start: Natural | None = None
    cursor_end: Natural | None = None
    variables: Raw = NO_ITEMS
    total: Natural | None = None
    error: str | None = None


class Display(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="display"):
    id: Natural
    data: Raw
    metadata: Raw
    display_id: str | None
    update: bool


class CellResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="result"):
    id: Natural
    execution_count: Natural
    data: Raw
    metadata: Raw


class CellError(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="error"):
    id: Natural
    name: str
    value: str
    traceback: Raw


class InputRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="input_request"):
    id: Natural
    prompt: str
    password: bool


class ClearOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="clear_output"):
    id: Natural
    wait: bool


class WorkerExit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    code: Annotated[int, Meta(ge=0, le=255)]


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="done"):
    id: Natural
    status: Literal["success", "error"]
    execution_count: Natural
    exit: WorkerExit | None


Answer = WorkerReady | Configured | Failed | Reply
Rich = Display | CellResult | CellError | InputRequest | ClearOutput
Claim = Answer | Rich | Done

# Text of user code may hold lone surrogates: JSON has an escape for them, UTF-8 and most parsers
# have nothing.
_LONE_SURROGATE = re.compile(
    rb"(?<!\\)((?:\\\\)*)"  # an escape, and not one that is escaped itself
    rb"(?:\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_decoder: msgspec.json.Decoder[Claim] = msgspec.json.Decoder(Claim)
_OPENS: dict[type[Claim], tuple[tuple[str, bytes], ...]] = {
    Display: (("data", b"{"), ("metadata", b"{")),
    CellResult: (("data", b"{"), ("metadata", b"{")),
    CellError: (("traceback", b"["),),
    Reply: (("matches", b"["), ("variables", b"[")),
}
"""How what is not decoded must begin."""


def decode(payload: bytes) -> Claim:
    """Raises FrameError for everything that is no claim of a worker's."""
    try:
        if b"\\ud" in payload or b"\\uD" in payload:
            payload = _LONE_SURROGATE.sub(rb"\1\\ufffd", payload)
        claim = _decoder.decode(payload)
        if not payload.isascii():
            payload.decode()  # what is passed on as it is must be what JSON may be
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise frames.FrameError(f"no claim of a worker's: {type(error).__name__}") from None
    for name, first in _OPENS.get(type(claim), ()):
        if bytes(memoryview(getattr(claim, name))[:1]) != first:
            raise frames.FrameError(f"{name} is malformed")
    return claim


class WorkerDecoder:
    """The claims of one worker, from bytes as they come. Useless after a FrameError."""

    def __init__(self) -> None:
        self._splitter = frames.Splitter()

    @property
    def missing_bytes(self) -> int:
        """As of ``frames.Splitter``."""
        return self._splitter.missing_bytes

    @property
    def held_bytes(self) -> int:
        """As of ``frames.Splitter``."""
        return self._splitter.held_bytes

    def feed(self, data: bytes | memoryview) -> list[Claim]:
        """All that are complete by now. Raises FrameError."""
        return [decode(payload) for payload in self._splitter.feed(data)]
