"""The bodies of /v1/sessions and /v1/code. Pure: types and the rules of the wire."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

# msgspec reads the annotations at run time.
from execd.api.v1.execution_request import LimitsRequest, Seconds  # noqa: TC001
from execd.api.wire.fields import without_defaults
from execd.engine.executions.command import code_program
from execd.engine.sessions.cell_run import CellOptions
from execd.model import Command, Limits

Count = Annotated[int, Meta(ge=0, le=2**62)]


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body. A null field equals an absent field."""

    id: str | None = None
    cwd: str | None = None
    env: dict[str, str] | None = None
    limits: LimitsRequest | None = None


class CellRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    code: str
    id: str | None = None
    """The caller's name for the execution."""
    timeout_seconds: Seconds | None = None
    on_busy: Literal["queue", "reject"] | None = None
    expect_generation: Count | None = None
    allow_input: bool | None = None
    on_disconnect: Literal["kill", "detach"] | None = None
    detach: bool | None = None


class CodeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    code: str
    session_id: str | None = None
    env: dict[str, str] | None = None
    """Environment of a session that is made for the code."""
    timeout_seconds: Seconds | None = None
    keep: bool | None = None
    """Keep a session without a name after the code."""


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str | None = None
    count: Annotated[int, Meta(ge=1)] | None = None


class InputBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: str


class CompleteRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    code: str
    cursor: Count | None = None
    """Position in characters; null: the end."""


SESSION = msgspec.json.Decoder(SessionRequest)
CELL = msgspec.json.Decoder(CellRequest)
CODE = msgspec.json.Decoder(CodeRequest)
FORK = msgspec.json.Decoder(ForkRequest)
INPUT = msgspec.json.Decoder(InputBody)
COMPLETE = msgspec.json.Decoder(CompleteRequest)


def to_command(asked: CellRequest) -> Command:
    """The request as the engine's command."""
    return Command(
        program=code_program(asked.code),
        timeout_seconds=math.inf if asked.timeout_seconds is None else asked.timeout_seconds,
        on_disconnect=asked.on_disconnect,
        detached=bool(asked.detach),
    )


def to_options(asked: CellRequest) -> CellOptions:
    return CellOptions(
        on_busy=asked.on_busy or "queue",
        expect_generation=asked.expect_generation,
        allow_input=bool(asked.allow_input),
    )


def parse_limits(asked: LimitsRequest | None) -> Limits:
    return Limits() if asked is None else Limits(**msgspec.structs.asdict(asked))


DEFAULTS = {"on_busy": "queue", "allow_input": False, "detach": False}
"""The meaning of null in a CellRequest."""


CODE_DEFAULTS = {"keep": False, "env": {}}
"""The meaning of null in a CodeRequest."""


def payload(asked: CellRequest, session_id: str) -> bytes:
    """Return bytes that are equal for requests with equal meaning."""
    return (
        session_id.encode()
        + b"\0"
        + msgspec.json.encode(without_defaults(asked, DEFAULTS), order="sorted")
    )


def code_payload(asked: CodeRequest) -> bytes:
    """The same for /v1/code, whose session may have no name."""
    return b"code\0" + msgspec.json.encode(without_defaults(asked, CODE_DEFAULTS), order="sorted")
