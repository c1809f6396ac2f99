"""The body of POST /v1/executions. Pure: types and the rules of the wire; the engine checks the
rules of a command."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from execd.api.wire.fields import parse_json, without_defaults
from execd.config import MAX_ID
from execd.engine.executions.command import PYTHON, SHELL, argv_program, shell_program
from execd.errors import InvalidArgument
from execd.model import NO_ORIGIN, Command, Limits, TerminalSize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from execd.model import Origin

MAX_KEY_LENGTH = 255
ID_RULE = "a letter or a digit, then up to 127 letters, digits, `_` and `-`."

# setrlimit(2) takes 64 bits. Some kernels read the highest bit as a sign.
Count = Annotated[int, Meta(gt=0, le=2**63 - 1)]
Bytes = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Meta(gt=0, le=10**9)]
Language = Literal["python"]
"""The language of a text to run. Every route that runs a text takes the field."""


User = Annotated[
    str, Meta(pattern=r"^([0-9]{1,10}(:[0-9]{1,10})?|[A-Za-z_][A-Za-z0-9_.-]{0,254}\$?)$")
]
UserNumber = Annotated[int, Meta(ge=0, le=MAX_ID)]


class LimitsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits that are lower than the daemon's own. A null field stands for the daemon's limit."""

    cpu_seconds: Count | None = None
    """CPU time of each process: SIGXCPU, and SIGKILL a second later."""
    memory_bytes: Count | None = None
    """Memory of the whole tree: more ends the tree."""
    processes: Count | None = None
    """Processes and threads of the whole tree: one more ends the tree."""
    address_space_bytes: Count | None = None
    """Address space of each process: allocations fail."""
    file_size_bytes: Count | None = None
    """Size of a file that a process writes: SIGXFSZ."""
    open_files: Count | None = None
    """Open files of each process: new descriptors fail."""
    reply_bytes: Bytes | None = None
    """Output of each stream in one reply: the middle is left out."""
    log_bytes: Bytes | None = None
    """Output of each stream kept on disk: the middle is lost."""


class ExecutionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body. A null field equals an absent field."""

    id: Annotated[
        str | None,
        Meta(
            description=f"The caller's name for the execution; {ID_RULE} A repeated request with "
            "this name gets the reply of the first. Null: execd makes one."
        ),
    ] = None
    command: str | None = None
    """The text for a shell. Either `command` or `argv` is needed."""
    argv: tuple[str, ...] | None = None
    """The program and its arguments, without a shell."""
    shell: str | tuple[str, ...] | None = None
    """The shell for `command`: a program, which is called with `-c`, or all words before the
    command. Null: `/bin/sh`."""
    # None after ``parse``.
    language: Language | None = None
    """`command` is Python: short for the shell `python -c`."""
    cwd: str | None = None
    """The directory of the program: absolute, or relative to the base dir. Null: the base dir."""
    env: dict[str, str] | None = None
    """Variables on top of the environment."""
    clear_env: bool | None = None
    """Give the program the variables of `env` alone (and `EXECD_EXECUTION_ID`)."""
    merge_output: bool | None = None
    """Give the program one pipe for both outputs: all bytes are stdout, in the order of writing."""
    stdin: str | None = None
    """The standard input, as text. Null: no input."""
    stdin_base64: bytes | None = None
    """The standard input, as bytes in base64."""
    stdin_open: bool | None = None
    """Keep the standard input open for `POST …/stdin`, until a caller closes it."""
    # A size or None after ``parse``.
    pty: TerminalSize | bool | None = None
    """Run the program in a terminal of this size; true: 80 by 24."""
    session_id: str | None = None
    """The session whose directory and environment the program gets."""
    # A string after ``parse``.
    user: User | UserNumber | None = None
    """The user to run as: a UID, `UID:GID`, or a name of the passwd file. Needs a daemon of root.
    Null: the daemon's setting."""
    timeout_seconds: Seconds | None = None
    """Time from the start of the program to its forced end, at most the daemon's `--max-timeout`.
    Null: `--timeout`."""
    soft_timeout_seconds: Seconds | None = None
    """Time until the reply. A program that goes on then runs without readers, and the reply is 202.
    Null: the reply comes at the end."""
    no_output_timeout_seconds: Seconds | None = None
    """End a program that has written nothing for this time. Null: never."""
    limits: LimitsRequest | None = None
    """Limits lower than the daemon's own."""
    on_output_limit: Literal["drop", "kill"] | None = None
    """What happens at `log_bytes`: the middle of the stream is lost (null too), or the program
    ends."""
    on_disconnect: Literal["kill", "detach"] | None = None
    """What the program does when its last reader leaves: end, or go on. Null: the daemon's
    setting."""
    detach: bool | None = None
    """Reply at once, and let the program go on without readers."""


class InputBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Input for a command or a cell."""

    text: str
    """The input. A cell gets it without a newline at the end."""

    @property
    def encoded(self) -> bytes:
        """Raises InvalidArgument."""
        try:
            return self.text.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(
                "text: not encodable as UTF-8 (a lone surrogate)", field="text"
            ) from None


DECODER = msgspec.json.Decoder(ExecutionRequest)
INPUT = msgspec.json.Decoder(InputBody)


def parse(body: bytes) -> ExecutionRequest:
    """Decode a body and check the combinations of fields. Raises InvalidArgument."""
    asked = parse_json(body, DECODER)
    inputs = [name for name in ("stdin", "stdin_base64", "stdin_open") if getattr(asked, name)]
    # A terminal stays open after the first input, so that more can be typed.
    if asked.pty and inputs[-1:] == ["stdin_open"]:
        inputs.pop()
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
    if isinstance(asked.pty, bool):
        asked = msgspec.structs.replace(asked, pty=TerminalSize() if asked.pty else None)
    if isinstance(asked.user, int):
        asked = msgspec.structs.replace(asked, user=str(asked.user))
    if asked.language is None:
        return asked
    if asked.command is None or asked.shell is not None:
        raise InvalidArgument(
            "language: the language of command, so goes with command, and not with argv or shell",
            field="language",
        )
    return msgspec.structs.replace(asked, shell=PYTHON, language=None)


def to_command(
    asked: ExecutionRequest, trace: Mapping[str, str], origin: Origin = NO_ORIGIN
) -> Command:
    """The request as the engine's command. ``trace``: variables, which the request's own variables
    override. Raises InvalidArgument."""
    if (asked.command is None) == (asked.argv is None):
        raise InvalidArgument(
            "command, argv: exactly one of them is needed; send one, and leave out the other",
            field="command",
        )
    if asked.argv is not None:
        if asked.shell is not None:
            raise InvalidArgument("shell: goes with command, not with argv", field="shell")
        program = argv_program(asked.argv)
    else:
        assert asked.command is not None
        shell = (asked.shell, "-c") if isinstance(asked.shell, str) else asked.shell
        program = shell_program(asked.command, shell)
    assert not isinstance(asked.pty, bool), "parse() replaced true and false"
    assert not isinstance(asked.user, int), "parse() replaced numbers"
    env = asked.env or {}
    return Command(
        program=program,
        session_id=asked.session_id,
        cwd=asked.cwd,
        env=env if asked.clear_env else {**trace, **env},
        clears_env=bool(asked.clear_env),
        merges_output=bool(asked.merge_output),
        stdin=asked.stdin_base64 or (asked.stdin or "").encode(),
        stdin_open=bool(asked.stdin_open),
        terminal=asked.pty,
        timeout_seconds=math.inf if asked.timeout_seconds is None else asked.timeout_seconds,
        may_exceed_timeout=True,
        no_output_timeout_seconds=asked.no_output_timeout_seconds,
        limits=parse_limits(asked.limits),
        kill_on_output_limit=asked.on_output_limit == "kill",
        on_disconnect=asked.on_disconnect,
        detached=bool(asked.detach),
        user=asked.user,
        origin=origin,
    )


def parse_limits(asked: LimitsRequest | None) -> Limits:
    return Limits() if asked is None else Limits(**msgspec.structs.asdict(asked))


DEFAULTS = {
    "shell": SHELL,
    "env": {},
    "clear_env": False,
    "merge_output": False,
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
