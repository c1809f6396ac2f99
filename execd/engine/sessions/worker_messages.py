"""Messages of a worker, decoded for the daemon. Pure.

``kernel.frames`` has the bytes of a frame, and the other directions. The daemon decodes only the
fields that the daemon acts on. Bundles for clients stay JSON: checked, and passed on. User code can
send a bundle of 32 MiB, and a decoded bundle takes up to thirty times as much memory.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw

from execd.errors import InvalidArgument
from execd.kernel import frames

NO_ITEMS = Raw(b"[]")

Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A number within the bounds of ``kernel.frames``. A reply's JSON cannot hold a larger one."""


class WorkerReady(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ready"):
    """The first message of a branch. A worker forked from the zygote sends nothing before it is
    configured."""

    python: str
    ipython: str
    warnings: list[str]


class Configured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="configured"):
    pass


class Failed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="failed"):
    """In reply to "configure": the configuration is impossible, and the daemon may send another. At
    any other time: the worker ends with ``worker.FAULT_EXIT_CODE``."""

    message: str


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="reply"):
    id: Natural
    warnings: list[str] = []
    native_threads: list[str] = []
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

# Text of user code may hold lone surrogates. JSON can escape a lone surrogate; UTF-8 and most
# parsers have no form for a lone surrogate.
_LONE_SURROGATE = re.compile(
    rb"(?<!\\)((?:\\\\)*)"  # an escape with an unescaped backslash
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
"""First byte of each undecoded field: an object or an array."""


def decode(payload: bytes) -> Claim:
    """Decode one message. Raises FrameError if ``payload`` is no message of a worker."""
    try:
        if b"\\ud" in payload or b"\\uD" in payload:
            payload = _LONE_SURROGATE.sub(rb"\1\\ufffd", payload)
        claim = _decoder.decode(payload)
        if not payload.isascii():
            payload.decode()  # fields are passed on as they are, and JSON must be UTF-8
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise frames.FrameError(f"no claim of a worker's: {type(error).__name__}") from None
    for name, first in _OPENS.get(type(claim), ()):
        if bytes(memoryview(getattr(claim, name))[:1]) != first:
            raise frames.FrameError(f"{name} is malformed")
    return claim


def too_long(field: str) -> InvalidArgument:
    """Return the refusal of a request whose text does not fit into one message to a worker."""
    return InvalidArgument(
        f"{field}: a message to the interpreter holds {frames.FRAME_BYTES} bytes, and the text, "
        "as JSON, does not fit",
        field=field,
    )
