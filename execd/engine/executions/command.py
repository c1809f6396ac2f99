"""From what a caller wishes to what will be run, and what is shown of it: the rules of a
command."""

from __future__ import annotations

import functools
import math
import os
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

import msgspec

from execd.config import MAX_ID
from execd.errors import InvalidArgument
from execd.model import Command, Limits, TerminalSize

if TYPE_CHECKING:
    from collections.abc import Collection

    from execd.config import Config

SHELL = ("/bin/sh", "-c")
# MAX_ARG_STRLEN of Linux, 32 pages with the terminating NUL: execve(2). A longer script goes by
# descriptor.
MAX_ARGUMENT_BYTES = 131_071
# A quarter of the usual limit of a stack, which is what Linux lets arguments and environment take
# together, pointers included: execve(2). Millions of one-letter arguments would hold up the daemon
# and the warden, to be refused by the kernel.
MAX_ARGUMENTS_BYTES, POINTER_AND_NUL_BYTES = 2 * 1024 * 1024, 9
SCRIPT_FD = 3
# Those that read a script with ".", as POSIX has it.
SHELL_NAMES = frozenset(("sh", "ash", "bash", "dash", "ksh", "mksh", "zsh"))
SHELL_OPTION = re.compile(r"-[a-zA-Z]*c")
NO_LIMITS = Limits()
# Of a command, in the journal and in lists: enough to know it by.
MAX_SHOWN_BYTES = 4096
ELLIPSIS = "…"
# It names files, and stands in paths of the wire.
ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller asks for, types checked and nothing else. Exactly one of ``command`` and
    ``argv``."""

    nul_is_a_result: bool = False
    """A NUL in ``command`` is a program that cannot be started, as the python-runtime has it, and
    not the caller's mistake."""

    command: str | None = None
    argv: list[str] | None = None
    shell: list[str] | None = None
    """What runs ``command``, which becomes its last argument; ``None``: /bin/sh -c."""
    cwd: str | None = None
    """Relative to the base dir; ``None``: the base dir."""
    env: dict[str, str] = {}
    stdin: bytes = b""
    stdin_open: bool = False
    terminal: TerminalSize | None = None
    timeout_seconds: float | None = None
    no_output_timeout_seconds: float | None = None
    limits: Limits = Limits()
    kill_on_output_limit: bool = False
    on_disconnect: Literal["kill", "detach"] | None = None
    detached: bool = False
    user: str | None = None
    session_id: str | None = None
    """Whose cwd and environment it gets, under its own."""


def make(config: Config, wish: Wish) -> Command:
    """Check and complete it. The smaller of the caller's limits and the daemon's holds. Raises
    InvalidArgument."""
    argv, display, script = _program(wish)
    check_environment(wish.env)
    if wish.terminal is not None and wish.stdin:
        raise InvalidArgument(
            "stdin: a program with a pty gets its input through the terminal", field="stdin"
        )
    _check_user(config, wish.user)
    return Command(
        argv=argv,
        display=display,
        script=script,
        cwd=resolved_cwd(config, wish.cwd),
        env=wish.env,
        timeout_seconds=least(wish.timeout_seconds, config.timeout, "timeout_seconds"),
        queue_seconds=config.queue_wait_seconds,
        limits=narrower(wish.limits, own_limits(config)),
        stdin=wish.stdin,
        stdin_open=wish.stdin_open,
        terminal=wish.terminal,
        no_output_timeout_seconds=wish.no_output_timeout_seconds,
        kill_on_output_limit=wish.kill_on_output_limit,
        on_disconnect=wish.on_disconnect or config.on_disconnect,
        detached=wish.detached,
        user=wish.user,
    )


def _check_user(config: Config, user: str | None) -> None:
    """Raises InvalidArgument. ``run_as`` is there to hold: whoever may call, code in the sandbox
    for one, is not to undo it."""
    if user is None:
        return
    if config.run_as is not None and _ids(user) != _ids(config.run_as):
        raise InvalidArgument(
            f"user: this daemon runs everything as {config.run_as} (--run-as)", field="user"
        )
    if os.geteuid() != 0:
        raise InvalidArgument(
            "user: only a root daemon can run commands as somebody else", field="user"
        )
    if max(_ids(user)) > MAX_ID:
        raise InvalidArgument(f"user: the largest id is {MAX_ID}", field="user")


def _ids(user: str) -> tuple[int, int]:
    """Of UID[:GID]: without a group it is the one of the user's number."""
    uid, _, gid = user.partition(":")
    return int(uid), int(gid or uid)


def _program(wish: Wish) -> tuple[tuple[str, ...], str, str | None]:
    """The arguments, what to show for them, and the script that is too long for one."""
    if (wish.command is None) == (wish.argv is None):
        raise InvalidArgument("command, argv: exactly one of them is needed", field="command")
    if wish.argv is not None:
        if wish.shell is not None:
            raise InvalidArgument("shell: goes with command, not with argv", field="shell")
        if not wish.argv or not wish.argv[0]:
            raise InvalidArgument("argv: the program's name is missing", field="argv")
        _check_size(wish.argv, "argv")
        for position, argument in enumerate(wish.argv):
            if len(_encode(argument, f"argv[{position}]")) > MAX_ARGUMENT_BYTES:
                raise InvalidArgument(
                    f"argv[{position}]: longer than {MAX_ARGUMENT_BYTES} bytes, the kernel's "
                    "limit for one argument",
                    field=f"argv[{position}]",
                )
        return tuple(wish.argv), " ".join(wish.argv), None
    assert wish.command is not None
    shell = tuple(wish.shell) if wish.shell is not None else SHELL
    if not shell or not all(shell):
        raise InvalidArgument("shell: empty", field="shell")
    for part in shell:
        _encode(part, "shell")
    if wish.nul_is_a_result and "\0" in wish.command:
        return (*shell, wish.command), wish.command, None
    if len(_encode(wish.command, "command")) <= MAX_ARGUMENT_BYTES:
        return (*shell, wish.command), wish.command, None
    if os.path.basename(shell[0]) not in SHELL_NAMES or not SHELL_OPTION.fullmatch(shell[-1]):
        raise InvalidArgument(
            f"command: longer than {MAX_ARGUMENT_BYTES} bytes, the kernel's limit for one argument;"
            " only a shell with -c can be given more",
            field="command",
        )
    # Read with "." rather than named as the script, so that $0 is what it is with -c.
    return (*shell, f". /proc/self/fd/{SCRIPT_FD}"), wish.command, wish.command


def _encode(text: str, place: str, field: str | None = None) -> bytes:
    try:
        data = os.fsencode(text)
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"{place}: not encodable as UTF-8 (a lone surrogate)", field=field or place
        ) from None
    if b"\0" in data:
        raise InvalidArgument(f"{place}: has a NUL byte", field=field or place)
    return data


def check_environment(env: dict[str, str]) -> None:
    """Raises InvalidArgument."""
    _check_size(env.values(), "env")
    for name, value in env.items():
        if not name or "=" in name:
            raise InvalidArgument(
                f"env: {name!r} is no name of a variable: it is empty or has a '='", field="env"
            )
        _encode(name, "env")
        _encode(value, f"env.{name}", "env")


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
    """The path; None for the base dir, which is made again when it is gone, however it is spelled.
    Raises InvalidArgument."""
    if cwd is None:
        return None
    _encode(cwd, "cwd")
    path = os.path.join(config.base_dir, cwd)
    # Only what a kernel ignores in a path, too: "a/.." is elsewhere if "a" is a link.
    return None if PurePosixPath(path) == PurePosixPath(config.base_dir) else path


def least(asked: float | None, own: float, field: str) -> float:
    """The smaller one. Raises InvalidArgument for what is no time to wait."""
    if asked is None:
        return own
    if not math.isfinite(asked) or asked <= 0:
        raise InvalidArgument(f"{field}: must be a positive number of seconds", field=field)
    return min(asked, own)


@functools.cache
def own_limits(config: Config) -> Limits:
    """The daemon's own, which every command has."""
    return Limits(
        cpu_seconds=config.cpu_seconds,
        address_space_bytes=config.address_space_bytes,
        file_size_bytes=config.file_size_bytes,
        open_files=config.open_files,
        processes=config.processes,
        memory_bytes=config.memory_bytes,
        reply_bytes=config.reply_bytes,
        log_bytes=config.log_bytes,
    )


def narrower(asked: Limits, own: Limits) -> Limits:
    """Each limit the smaller of the two; None is no limit."""
    if asked == NO_LIMITS:
        return own
    narrowed = {}
    for name in Limits.__struct_fields__:
        values = [
            value for value in (getattr(asked, name), getattr(own, name)) if value is not None
        ]
        if values:
            narrowed[name] = min(values)
    return Limits(**narrowed)


def shortened(command: Command) -> Command:
    """The same with no more than MAX_SHOWN_BYTES of what is run: where it is cut, an ellipsis is in
    the place of the rest."""
    if not is_argv(command):
        return msgspec.structs.replace(command, display=_cut(command.display, MAX_SHOWN_BYTES))
    argv: list[str] = []
    left = MAX_SHOWN_BYTES
    for argument in command.argv:
        argv.append(_cut(argument, left))
        left -= len(os.fsencode(argv[-1])) + 1
        if left <= len(ELLIPSIS.encode()):
            break
    if len(argv) < len(command.argv) and not argv[-1].endswith(ELLIPSIS):
        argv.append(ELLIPSIS)
    return msgspec.structs.replace(command, argv=tuple(argv), display=" ".join(argv))


def _cut(text: str, max_bytes: int) -> str:
    start = os.fsencode(text[: max_bytes + 1])
    if len(start) <= max_bytes:
        return text
    return start[: max_bytes - len(ELLIPSIS.encode())].decode("utf-8", "ignore") + ELLIPSIS


def is_argv(command: Command) -> bool:
    """Whether it was put as an argv, and not as a command: a shell's own words come before that."""
    return not command.is_code and bool(command.argv) and command.display == " ".join(command.argv)
