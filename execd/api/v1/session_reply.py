"""The replies of /v1/sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

# msgspec reads the annotations at run time.
from execd.api.v1.execution_reply import limits_reply
from execd.api.v1.execution_types import LimitsReply  # noqa: TC001
from execd.api.wire.replies import replace_surrogates
from execd.engine.sessions.session_log import MAX_PROMPT_CHARACTERS
from execd.engine.sessions.session_state import SessionState  # noqa: TC001
from execd.model import Interpreter, rfc3339

if TYPE_CHECKING:
    from execd.config import Config
    from execd.engine.sessions.session import Session

ELLIPSIS = "…"


class SessionReply(msgspec.Struct, frozen=True, kw_only=True):
    """A session."""

    id: str
    """The name under `/v1/sessions`."""
    session_id: str
    """Another word for `id`."""
    state: SessionState
    """`STARTING`: an interpreter is being made; `DEAD`: there is none, and the next cell makes
    one."""
    prompt: Annotated[
        str | None,
        Meta(
            description=f"The question of `input()`, at most {MAX_PROMPT_CHARACTERS} characters "
            "and an ellipsis; null unless the state is `WAITING_INPUT`."
        ),
    ]
    password: bool | None
    """Whether the answer is a password; null unless the state is `WAITING_INPUT`."""
    generation: int
    """The number of the interpreter: 1, and one more after each loss of state; 0 before the
    first."""
    execution_count: int
    """The number of the last cell; 0 before the first cell of a generation."""
    created_at: str
    """RFC 3339 in UTC."""
    uptime_seconds: float
    """The age."""
    last_used_at: str
    """RFC 3339 in UTC."""
    cwd: str
    """The directory in which an interpreter starts."""
    limits: LimitsReply | None
    """The limits of the session and of each cell."""
    interpreter: Interpreter | None
    """The Python of the session; null: there is no interpreter."""
    pid: int | None
    """The interpreter, as user code sees its pid; null: there is none."""
    memory_bytes: int
    """The resident memory of the session's processes: an upper bound; 0 without an interpreter."""
    waiting: int
    """The number of cells that wait for their turn."""
    unclaimed_output_bytes: int
    """Output between cells that no reply has told."""


class SessionsReply(msgspec.Struct, frozen=True, kw_only=True):
    """A page of sessions."""

    items: list[SessionReply]
    """The sessions, oldest first."""
    next_cursor: str | None
    """The `cursor` of the next page; null: this page is the last."""


class InterruptReply(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of an interrupt."""

    interrupted: bool
    """Whether a cell ran."""


class ForkReply(msgspec.Struct, frozen=True, kw_only=True):
    """The branches of a session."""

    sessions: list[SessionReply]
    """The branches."""
    warnings: list[str]
    """The parts of the state that the branches do not have."""


class CompleteReply(msgspec.Struct, frozen=True, kw_only=True):
    """Completions of code."""

    matches: list[str]
    """Texts for the place from `cursor_start` to `cursor_end`."""
    cursor_start: int
    """A place in the code, in characters."""
    cursor_end: int
    """A place in the code, in characters."""


class VariableReply(msgspec.Struct, frozen=True, kw_only=True):
    """A variable, as the code in the session shows it."""

    name: str
    """The name; a long one is cut."""
    type: str
    """The name of the type; empty: not looked at."""
    repr: str
    """The value as text; a long one is cut."""
    length: int | UnsetType = UNSET
    """The length of a string or a container; else absent."""
    shape: list[int] | UnsetType = UNSET
    """The shape of an array, a tensor or a table; else absent."""


class VariablesReply(msgspec.Struct, frozen=True, kw_only=True):
    """The user's variables."""

    variables: list[VariableReply]
    """The variables, the oldest first, as many as asked for."""
    total: int | None
    """The number of all variables."""


async def session_reply(session: Session, config: Config) -> SessionReply:
    memory_bytes = await session.memory_bytes()  # the other fields are of one moment
    question = session.open_input_request
    return SessionReply(
        id=session.id,
        session_id=session.id,
        state=session.state,
        prompt=None if question is None else _shortened(question.prompt),
        password=None if question is None else question.password,
        generation=session.generation,
        execution_count=session.execution_count,
        created_at=rfc3339(session.created_at),
        uptime_seconds=round(session.uptime_seconds, 3),
        last_used_at=rfc3339(session.last_used_at),
        cwd=replace_surrogates(session.cwd or config.base_dir),
        limits=limits_reply(session.limits, config.timeout),
        interpreter=_interpreter(session),
        pid=session.pid,
        memory_bytes=memory_bytes,
        waiting=session.n_waiting,
        unclaimed_output_bytes=session.unclaimed_output_bytes,
    )


def _interpreter(session: Session) -> Interpreter | None:
    found = session.interpreter
    if found is None:
        return None
    return msgspec.structs.replace(
        found, path=replace_surrogates(found.path), reason=replace_surrogates(found.reason)
    )


def _shortened(prompt: str) -> str:
    """Bound the prompt, since a list has many. The event ``input_request`` has the whole."""
    cut = prompt[:MAX_PROMPT_CHARACTERS]
    return cut if cut == prompt else cut + ELLIPSIS
