"""The bodies of /v1/sessions and /v1/code. Pure: types and the rules of the wire."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

# msgspec reads the annotations at run time.
from execd.api.v1.execution_request import (
    ID_RULE,
    Language,
    LimitsRequest,
    Seconds,
    parse_limits,
)
from execd.api.wire.fields import parse_json, without_defaults
from execd.engine.executions.command import code_program
from execd.engine.executions.submission import CellOptions
from execd.errors import InvalidArgument
from execd.model import NO_ORIGIN, Command

if TYPE_CHECKING:
    from execd.model import Origin

Count = Annotated[int, Meta(ge=0, le=2**62)]


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body. A null field equals an absent field."""

    id: Annotated[
        str | None, Meta(description=f"The name of the session; {ID_RULE} Null: execd makes one.")
    ] = None
    language: Language | None = None
    """The language of the code. There is one."""
    cwd: str | None = None
    """The directory of the session: absolute, or relative to the base dir. Null: the base dir."""
    env: dict[str, str] | None = None
    """Variables of the interpreter."""
    limits: LimitsRequest | None = None
    """Limits of the session and of each cell, at most the daemon's own."""


class CellRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields that both cell routes have. A null field equals an absent field."""

    code: str
    """Python, as in a cell of a notebook."""
    id: Annotated[
        str | None,
        Meta(
            description=f"The caller's name for the cell; {ID_RULE} A repeated request with this "
            "name gets the reply of the first. Null: execd makes one."
        ),
    ] = None
    # None after ``parse``.
    execution_id: str | None = None
    """Another word for `id`: replies have both."""
    language: Language | None = None
    """The language of the code. There is one."""
    env: dict[str, str] | None = None
    """Variables for this cell."""
    limits: LimitsRequest | None = None
    """Limits of a session that is made for the cell."""
    timeout_seconds: Seconds | None = None
    """Time from the start of the cell to its forced end. Null: the daemon's setting for the
    route."""
    on_busy: Literal["queue", "reject"] | None = None
    """Wait while the session runs another cell (null too), or be refused."""
    expect_generation: Count | None = None
    """Refuse the cell unless it runs in this generation of the session."""
    allow_input: bool | None = None
    """Let `input()` wait for an answer, instead of raising an error."""
    on_disconnect: Literal["kill", "detach"] | None = None
    """What the cell does when its last reader leaves: end, or go on. Null: the daemon's setting."""
    detach: bool | None = None
    """Reply at once, and let the cell go on without readers."""


class CodeRequest(CellRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``env`` is the environment of a session that is made for the code. In an existing session it
    is for this cell."""

    session_id: str | None = None
    """The session, made if it is missing. Null: a session for this code only."""
    keep: bool | None = None
    """Keep a session without a name after the code."""


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which branches to make: one without a name by default."""

    id: Annotated[str | None, Meta(description=f"The name of a single branch; {ID_RULE}")] = None
    count: Annotated[int, Meta(ge=1)] | None = None
    """The number of branches; null: 1."""


class CompleteRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Code with a place in it."""

    code: str
    """The code so far."""
    cursor: Count | None = None
    """The place to complete at, in characters; null: the end."""


SESSION = msgspec.json.Decoder(SessionRequest)
CELL = msgspec.json.Decoder(CellRequest)
CODE = msgspec.json.Decoder(CodeRequest)
FORK = msgspec.json.Decoder(ForkRequest)
COMPLETE = msgspec.json.Decoder(CompleteRequest)


C = TypeVar("C", bound=CellRequest)


def parse(body: bytes, decoder: msgspec.json.Decoder[C]) -> C:
    """Decode the body of a cell route, with the name of the execution as ``id``. Raises
    InvalidArgument."""
    asked = parse_json(body or b"{}", decoder)
    if asked.execution_id is None:
        return asked
    if asked.id not in (None, asked.execution_id):
        raise InvalidArgument(
            "execution_id: another word for id, and differs from id: leave one of them out",
            field="execution_id",
        )
    return msgspec.structs.replace(asked, id=asked.execution_id, execution_id=None)


def to_command(asked: CellRequest, origin: Origin = NO_ORIGIN) -> Command:
    """The request as the engine's command."""
    return Command(
        program=code_program(asked.code),
        env=asked.env or {},
        limits=parse_limits(asked.limits),
        timeout_seconds=math.inf if asked.timeout_seconds is None else asked.timeout_seconds,
        may_exceed_timeout=True,
        on_disconnect=asked.on_disconnect,
        detached=bool(asked.detach),
        origin=origin,
    )


def to_options(asked: CellRequest, **of_session: Any) -> CellOptions:
    """``of_session``: what the options say of the session."""
    return CellOptions(
        **of_session,
        on_busy=asked.on_busy or "queue",
        expect_generation=asked.expect_generation,
        allow_input=bool(asked.allow_input),
    )


DEFAULTS = {
    "language": "python",
    "env": {},
    "limits": LimitsRequest(),
    "on_busy": "queue",
    "allow_input": False,
    "detach": False,
}
"""The meaning of null in a CellRequest."""


CODE_DEFAULTS = {**DEFAULTS, "keep": False}
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
