"""The body of POST /v1/executions. Pure: types and the rules of the wire; the engine checks the
rules of a command."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from execd.api.wire.fields import parse_json, without_defaults
from execd.config import UserId  # noqa: TC001  # msgspec reads the annotations at run time
from execd.engine.executions.command import SHELL, argv_program, shell_program
from execd.errors import InvalidArgument
from execd.model import Command, Limits, TerminalSize

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_KEY_LENGTH = 255

# setrlimit(2) takes 64 bits. Some kernels read the highest bit as a sign.
Count = Annotated[int, Meta(gt=0, le=2**63 - 1)]
Bytes = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Meta(gt=0, le=10**9)]


class LimitsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of ``model.Limits`` that callers may set."""

    cpu_seconds: Count | None = None
    memory_bytes: Count | None = None
    processes: Count | None = None
    address_space_bytes: Count | None = None
    file_size_bytes: Count | None = None
    open_files: Count | None = None
    reply_bytes: Bytes | None = None
    log_bytes: Bytes | None = None


class ExecutionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body. A null field equals an absent field."""

    id: str | None = None
    command: str | None = None
    argv: tuple[str, ...] | None = None
    shell: str | tuple[str, ...] | None = None
    """The shell for ``command``: a program, called with -c, or all words before the command."""
    cwd: str | None = None
    env: dict[str, str] | None = None
    stdin: str | None = None
    stdin_base64: bytes | None = None
    stdin_open: bool | None = None
    pty: TerminalSize | None = None
    session_id: str | None = None
    """The session whose cwd and environment the command gets."""
    user: UserId | None = None
    timeout_seconds: Seconds | None = None
    soft_timeout_seconds: Seconds | None = None
    no_output_timeout_seconds: Seconds | None = None
    limits: LimitsRequest | None = None
    on_output_limit: Literal["drop", "kill"] | None = None
    on_disconnect: Literal["kill", "detach"] | None = None
    detach: bool | None = None


DECODER = msgspec.json.Decoder(ExecutionRequest)


def parse(body: bytes) -> ExecutionRequest:
    """Decode a body and check the combinations of fields. Raises InvalidArgument."""
    asked = parse_json(body, DECODER)
    inputs = [name for name in ("stdin", "stdin_base64", "stdin_open") if getattr(asked, name)]
    if len(inputs) > 1:
        raise InvalidArgument(
            f"{inputs[1]}: does not go with {inputs[0]}; the program has one standard input",
            field=inputs[1],
        )
    if asked.detach and asked.soft_timeout_seconds is not None:
        raise InvalidArgument(
            "soft_timeout_seconds: does not go with detach, which answers at once",
            field="soft_timeout_seconds",
        )
    return asked


def to_command(asked: ExecutionRequest, trace: Mapping[str, str]) -> Command:
    """The request as the engine's command. ``trace``: variables, which the request's own variables
    override. Raises InvalidArgument."""
    if (asked.command is None) == (asked.argv is None):
        raise InvalidArgument("command, argv: exactly one of them is needed", field="command")
    if asked.argv is not None:
        if asked.shell is not None:
            raise InvalidArgument("shell: goes with command, not with argv", field="shell")
        program = argv_program(asked.argv)
    else:
        assert asked.command is not None
        shell = (asked.shell, "-c") if isinstance(asked.shell, str) else asked.shell
        program = shell_program(asked.command, shell)
    return Command(
        program=program,
        session_id=asked.session_id,
        cwd=asked.cwd,
        env={**trace, **(asked.env or {})},
        stdin=asked.stdin_base64 or (asked.stdin or "").encode(),
        stdin_open=bool(asked.stdin_open),
        terminal=asked.pty,
        timeout_seconds=math.inf if asked.timeout_seconds is None else asked.timeout_seconds,
        no_output_timeout_seconds=asked.no_output_timeout_seconds,
        limits=Limits() if asked.limits is None else Limits(**msgspec.structs.asdict(asked.limits)),
        kill_on_output_limit=asked.on_output_limit == "kill",
        on_disconnect=asked.on_disconnect,
        detached=bool(asked.detach),
        user=asked.user,
    )


DEFAULTS = {
    "shell": SHELL,
    "env": {},
    "stdin_base64": b"",
    "stdin_open": False,
    "limits": LimitsRequest(),
    "on_output_limit": "drop",
    "detach": False,
}
"""The meaning of null. ``on_disconnect`` is absent, since its default is a setting."""


def payload(asked: ExecutionRequest) -> bytes:
    """Return bytes that are equal for requests with equal meaning, however their JSON was written.
    The bytes are such a JSON themselves."""
    if isinstance(asked.shell, str):
        asked = msgspec.structs.replace(asked, shell=(asked.shell, "-c"))
    assert not (asked.stdin and asked.stdin_base64), "parse() refused both"
    if asked.stdin is not None:
        asked = msgspec.structs.replace(
            asked, stdin=None, stdin_base64=asked.stdin_base64 or asked.stdin.encode()
        )
    return msgspec.json.encode(without_defaults(asked, DEFAULTS), order="sorted")


def idempotency_key(header: str | None) -> str | None:
    """Check the Idempotency-Key header. Raises InvalidArgument."""
    if header is None:
        return None
    key = header.strip()
    if not key or len(key) > MAX_KEY_LENGTH or not key.isascii() or not key.isprintable():
        raise InvalidArgument(
            f"Idempotency-Key: 1 to {MAX_KEY_LENGTH} printable ASCII characters",
            field="Idempotency-Key",
        )
    return key
