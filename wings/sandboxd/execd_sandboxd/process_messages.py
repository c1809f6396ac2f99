"""Messages of ProcessService: requests as commands, results as replies. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from execd.engine.engine_api import (
    NOT_EXECUTABLE_EXIT_CODE,
    NOT_FOUND_EXIT_CODE,
    Command,
    ExitReason,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    TerminalSize,
    line_program,
)
from execd_sandboxd import process_pb2

if TYPE_CHECKING:
    from execd.engine.engine_api import Excerpt, ExecdError, Origin, Result

MAX_COLUMNS = 65535
"""Of a terminal, and of its rows: struct winsize of ioctl_tty(2) has 16 bits for each."""
SIGNAL_EXIT_CODE = -1
"""Of a program that a signal ended: sandboxd reports Go's ``ExitCode()``."""
# gRPC clients refuse a message over 4 MiB (grpc's default of max_receive_message_length). The rest
# is for the reply's other fields and the lines about omitted bytes.
CLIENT_MESSAGE_BYTES = 4 << 20
MAX_OUTPUT_BYTES = CLIENT_MESSAGE_BYTES - 4096


def to_command(
    config: process_pb2.ProcessConfig, cwd: str | None, origin: Origin, seconds: float | None
) -> Command:
    """Return the command of a request. Raises InvalidArgument.

    ``cwd``: relative to the base dir. ``seconds``: from now to the deadline of the call; None: no
    deadline.
    """
    if not config.command:
        raise InvalidArgument("config.command: the program's name is missing", field="command")
    return Command(
        program=line_program(tuple(config.command)),
        cwd=cwd,
        env=dict(config.env_vars),
        timeout_seconds=math.inf if seconds is None else seconds,
        total_seconds=seconds,
        origin=origin,
    )


def terminal_size(cols: int, rows: int) -> TerminalSize:
    """Return the size; 0 stands for the default of 80 by 24. Raises InvalidArgument."""
    default = TerminalSize()
    for name, count in (("cols", cols), ("rows", rows)):
        if count > MAX_COLUMNS:
            raise InvalidArgument(f"{name}: a terminal has at most {MAX_COLUMNS}", field=name)
    return TerminalSize(cols=cols or default.cols, rows=rows or default.rows)


def signal_number(signal: process_pb2.Signal) -> int:
    """Raises InvalidArgument for a number without a name in the contract."""
    if signal == process_pb2.SIGNAL_UNSPECIFIED:
        raise InvalidArgument("signal: no signal is given", field="signal")
    if signal not in process_pb2.Signal.values():
        raise InvalidArgument(
            f"signal: {signal} is none of SIGINT (2), SIGKILL (9) and SIGTERM (15)", field="signal"
        )
    return signal


def failed_start(result: Result) -> ExecdError | None:
    """Return the error of a program that could not be started; None: the program has run."""
    if result.exit_reason is not ExitReason.SPAWN_FAILED:
        return None
    match result.any_exit_code:
        case code if code == NOT_FOUND_EXIT_CODE:
            return NotFound(result.message)
        case code if code == NOT_EXECUTABLE_EXIT_CODE:
            return PermissionDenied(result.message)
        case _:
            return InvalidArgument(result.message)


def exit_code(result: Result) -> int:
    """Return the program's exit code, or -1 for any other end, as sandboxd does."""
    return SIGNAL_EXIT_CODE if result.exit_code is None else result.exit_code


def end_line(result: Result) -> bytes:
    """Return a line for stderr with the reason, where execd ended the program; else nothing. The
    reply has no other field for the reason."""
    if result.exit_reason in (ExitReason.EXITED, ExitReason.SIGNALED):
        return b""
    message = f" ({result.message})" if result.message else ""
    return f"[execd: {result.exit_reason}{message}]\n".encode("utf-8", "replace")


def output_limits(stdout_bytes: int, stderr_bytes: int) -> tuple[int, int]:
    """Divide the room of a reply between the streams with so many bytes. A short stream leaves
    room to the other."""
    half = MAX_OUTPUT_BYTES // 2
    if stdout_bytes <= half:
        return stdout_bytes, min(stderr_bytes, MAX_OUTPUT_BYTES - stdout_bytes)
    if stderr_bytes <= half:
        return min(stdout_bytes, MAX_OUTPUT_BYTES - stderr_bytes), stderr_bytes
    return half, half


def output_bytes(excerpt: Excerpt) -> bytes:
    """Return the bytes of a stream; where bytes are omitted, a line says how many."""
    if excerpt.truncation is None:
        return excerpt.head
    line = f"[execd: {excerpt.truncation.omitted_bytes} bytes omitted]\n".encode()
    gap = b"" if excerpt.head.endswith(b"\n") or not excerpt.head else b"\n"
    return excerpt.head + gap + line + excerpt.tail
