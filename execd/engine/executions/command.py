"""The rules of a command: how a caller's request becomes a program, what the daemon's settings add,
and how much of a command is shown."""

from __future__ import annotations

import math
import os
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from execd.config import MAX_ID
from execd.engine.executions.limits import least, narrower, own_limits
from execd.errors import InvalidArgument
from execd.model import Program
from execd.proc.program_block import FILE_SYSTEM_CODEC
from execd.proc.spawn import KEEP_IDENTITY, Identity

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from execd.config import Config
    from execd.model import Command

SHELL = ("/bin/sh", "-c")
PYTHON = ("python3", "-c")
"""The "shell" of a command in Python. PATH of user code always has this name; an image of its own
may have no ``python``."""
# MAX_ARG_STRLEN of Linux, 32 pages with the terminating NUL: execve(2). A longer script goes by
# descriptor.
MAX_ARGUMENT_BYTES = 131_071
# Linux lets arguments and environment together, pointers included, take a quarter of the stack's
# limit (execve(2)); this is a quarter of the usual limit. Millions of one-letter arguments would
# hold up daemon and warden before the kernel refuses them.
MAX_ARGUMENTS_BYTES, POINTER_AND_NUL_BYTES = 2 * 1024 * 1024, 9
MAX_SESSION_VARIABLES = 4096
"""Variables in ``env`` of a session, or of a cell. More are 400.

setenv(3) looks through all variables, so n variables take n² steps: 4,096 take 0.05 s to set and to
remove, 20,000 seconds, in which the interpreter answers nothing and is taken for dead."""
MAX_SHOWN_NAME = 64
"""Characters of a variable's name in a message."""
SCRIPT_FD = 3
# Shells with the "." command of POSIX.
SHELL_NAMES = frozenset(("sh", "ash", "bash", "dash", "ksh", "mksh", "zsh"))
OPTION_SIGNS = ("-", "+")
SHELL_OPTION = re.compile(r"-[a-zA-Z]*c")
# How much of a command the journal and lists show: enough to recognise the command.
MAX_SHOWN_BYTES = 4096
ELLIPSIS = "…"
# Ids name files, and are parts of URLs.
ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


def shell_program(
    text: str, shell: Sequence[str] | None = None, *, nul_is_a_result: bool = False
) -> Program:
    """The program that runs a command line: ``shell`` (/bin/sh -c) with the text as its last
    argument. Raises InvalidArgument.

    ``nul_is_a_result``: a NUL in the text is a program that cannot be started, as in the
    python-runtime, and not the caller's mistake.
    """
    if shell is None:
        shell = SHELL
    else:
        shell = tuple(shell)
        if not shell or not all(shell):
            raise InvalidArgument("shell: empty", field="shell")
        for part in shell:
            _encode(part, "shell")
    line = text
    if text[:1] in OPTION_SIGNS and any(os.path.basename(part) in SHELL_NAMES for part in shell):
        line = line_argument(text)
    if (nul_is_a_result and "\0" in text) or len(_encode(line, "command")) <= MAX_ARGUMENT_BYTES:
        return Program(argv=(*shell, line), display=text)
    if shell in (PYTHON, ("python", "-c")):
        text_of_script = f"open({SCRIPT_FD}, encoding='utf-8').read()"
        loader = f"exec(compile({text_of_script}, '<string>', 'exec'))"
        return Program(argv=(*shell, loader), display=text, script=text)
    if os.path.basename(shell[0]) not in SHELL_NAMES or not SHELL_OPTION.fullmatch(shell[-1]):
        raise InvalidArgument(
            f"command: longer than {MAX_ARGUMENT_BYTES} bytes, the kernel's limit for one argument;"
            " only a shell with -c can be given more",
            field="command",
        )
    # The shell reads the script with ".", because $0 would differ from -c if the script were the
    # shell's argument. By the script's first line the shell has opened the script once more, and
    # no child needs the descriptor.
    argv = (*shell, f". /proc/self/fd/{SCRIPT_FD}")
    return Program(argv=argv, display=text, script=f"exec {SCRIPT_FD}<&-; {text}")


def line_argument(text: str) -> str:
    """Return the text as a shell's argument behind -c. Shells take an argument that begins with "-"
    or "+" for options; the blank means nothing to them."""
    return f" {text}" if text.startswith(OPTION_SIGNS) else text


def line_program(argv: Sequence[str]) -> Program:
    """The program of an argument vector that may be a command line, which a client has put behind a
    shell's -c. Raises InvalidArgument."""
    if len(argv) > 2 and os.path.basename(argv[0]) in SHELL_NAMES:
        *options, text = argv[1:]
        if SHELL_OPTION.fullmatch(options[-1]) and all(word.startswith("-") for word in options):
            argv = (argv[0], *options, line_argument(text))
    return argv_program(argv)


def argv_program(argv: Sequence[str]) -> Program:
    """The program of an argument vector. Raises InvalidArgument."""
    if not argv or not argv[0]:
        raise InvalidArgument("argv: the program's name is missing", field="argv")
    _check_size(argv, "argv")
    for position, argument in enumerate(argv):
        if len(_encode(argument, f"argv[{position}]")) > MAX_ARGUMENT_BYTES:
            raise InvalidArgument(
                f"argv[{position}]: longer than {MAX_ARGUMENT_BYTES} bytes, the kernel's "
                "limit for one argument",
                field=f"argv[{position}]",
            )
    return Program(argv=tuple(argv), display=" ".join(argv))


def code_program(code: str) -> Program:
    """The program of a cell, for a session's worker."""
    return Program(argv=(), display=code, is_code=True)


def complete(config: Config, command: Command) -> Command:
    """Check the command, and complete the command with the daemon's settings. The smaller of the
    caller's limits and the daemon's holds. Raises InvalidArgument, naming the field and the rule.
    """
    if command.env:
        check_environment(command.env)
    if command.user is not None:
        _check_user(config, command.user)
    return msgspec.structs.replace(
        command,
        cwd=resolved_cwd(config, command.cwd),
        timeout_seconds=run_seconds(config, command),
        queue_seconds=min(command.queue_seconds, config.queue_wait_seconds),
        limits=narrower(command.limits, own_limits(config)),
        on_disconnect=command.on_disconnect or config.on_disconnect,
    )


def run_seconds(config: Config, command: Command) -> float:
    """Return the command's hard limit under the daemon's settings. Raises InvalidArgument."""
    asked = command.timeout_seconds
    if not command.may_exceed_timeout or math.isinf(asked):
        return least(asked, config.timeout, "timeout_seconds")
    if asked > config.max_timeout:
        raise InvalidArgument(
            f"timeout_seconds: {asked:g} is more than {config.max_timeout:g}, the largest that "
            "this daemon takes (--max-timeout)",
            field="timeout_seconds",
        )
    return asked


def _check_user(config: Config, user: str) -> None:
    """Raises InvalidArgument. ``run_as`` holds against every caller: code in the sandbox may call
    too."""
    identity = parse_identity(user)
    if config.run_as is not None and identity != parse_identity(config.run_as):
        raise InvalidArgument(
            f"user: this daemon runs everything as {config.run_as} (--run-as)", field="user"
        )
    if os.geteuid() != 0:
        raise InvalidArgument(
            "user: only a root daemon can run commands as somebody else", field="user"
        )
    if max(identity.uid or 0, identity.gid or 0) > MAX_ID:
        raise InvalidArgument(f"user: the largest id is {MAX_ID}", field="user")


def parse_identity(user: str | None) -> Identity:
    """Parse UID[:GID]; without GID the group has the user's number. None is the daemon's own
    identity. The program gets no supplementary groups: the daemon's groups are not the program's.
    """
    if user is None:
        return KEEP_IDENTITY
    uid, _, gid = user.partition(":")
    return Identity(int(uid), int(gid or uid), ())


def _encode(text: str, field: str, subject: str | None = None) -> bytes:
    """``subject``: the text in the words of the error. Raises InvalidArgument for a text that no
    program can be given."""
    try:
        data = text.encode(*FILE_SYSTEM_CODEC)
    except UnicodeEncodeError:
        fault = "not encodable as UTF-8 (a lone surrogate); send text"
    else:
        if b"\0" not in data:
            return data
        fault = "has a NUL byte, which no program can be given; leave it out"
    raise InvalidArgument(f"{subject or field}: {fault}", field=field)


def check_environment(env: dict[str, str]) -> None:
    """Raises InvalidArgument."""
    _check_size(env.values(), "env")
    for name, value in env.items():
        if not name or "=" in name:
            raise InvalidArgument(
                f"env: {name[:MAX_SHOWN_NAME]!r} is no name of a variable: a name is not empty and "
                "has no '='",
                field="env",
            )
        _encode(name, "env", f"env: the name {name[:MAX_SHOWN_NAME]!r}")
        _encode(value, "env", f"env.{name[:MAX_SHOWN_NAME]}")


def check_session_environment(env: dict[str, str]) -> None:
    """Check the variables that a session's interpreter sets. Raises InvalidArgument."""
    if len(env) > MAX_SESSION_VARIABLES:
        raise InvalidArgument(
            f"env: {len(env)} variables, and an interpreter sets at most {MAX_SESSION_VARIABLES} "
            "at once; send fewer, or many values in one variable",
            field="env",
        )
    check_environment(env)


def _check_size(strings: Collection[str], field: str) -> None:
    size = POINTER_AND_NUL_BYTES * len(strings)
    if size <= MAX_ARGUMENTS_BYTES:
        size += sum(map(len, strings))
    if size > MAX_ARGUMENTS_BYTES:
        raise InvalidArgument(
            f"{field}: longer than {MAX_ARGUMENTS_BYTES} bytes with 9 for each entry, the "
            "kernel's limit for all together",
            field=field,
        )


def resolved_cwd(config: Config, cwd: str | None) -> str | None:
    """Return the absolute path; None for the base dir in every spelling, because a missing base dir
    is made again. Raises InvalidArgument."""
    if cwd is None:
        return None
    _encode(cwd, "cwd")
    path = os.path.join(config.base_dir, cwd)
    # PurePosixPath removes only the parts that the kernel ignores: "a/.." is elsewhere if "a" is a
    # link.
    return None if PurePosixPath(path) == PurePosixPath(config.base_dir) else path


def shortened(program: Program) -> Program:
    """Return the same program with at most MAX_SHOWN_BYTES of text. An ellipsis stands for the rest
    where the text is cut."""
    if not is_argv(program):
        return msgspec.structs.replace(program, display=_cut(program.display, MAX_SHOWN_BYTES))
    argv: list[str] = []
    left = MAX_SHOWN_BYTES
    for argument in program.argv:
        argv.append(_cut(argument, left))
        left -= len(os.fsencode(argv[-1])) + 1
        if left <= len(ELLIPSIS.encode()):
            break
    if len(argv) < len(program.argv) and not argv[-1].endswith(ELLIPSIS):
        argv.append(ELLIPSIS)
    return msgspec.structs.replace(program, argv=tuple(argv), display=" ".join(argv))


def _cut(text: str, max_bytes: int) -> str:
    start = os.fsencode(text[: max_bytes + 1])
    if len(start) <= max_bytes:
        return text
    return start[: max_bytes - len(ELLIPSIS.encode())].decode("utf-8", "ignore") + ELLIPSIS


def is_argv(program: Program) -> bool:
    """Whether the caller gave an argument vector: with a command line, the words of the shell come
    before the line."""
    if len(program.argv) > 1 and program.display is program.argv[-1]:
        return False  # a line; without this test the usual line would be copied to find that out
    return not program.is_code and bool(program.argv) and program.display == " ".join(program.argv)
