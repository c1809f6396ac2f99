"""The options of commands and cells, and the bodies of their requests. No I/O here."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

Argv = Sequence[str]
LIMITS = (
    *("cpu_seconds", "memory_bytes", "processes", "address_space_bytes", "file_size_bytes"),
    *("open_files", "reply_bytes", "log_bytes"),
)


class Limits(TypedDict, total=False):
    """Limits lower than the daemon's own."""

    cpu_seconds: int
    memory_bytes: int
    """Of the whole tree of processes."""
    processes: int
    address_space_bytes: int
    file_size_bytes: int
    open_files: int
    reply_bytes: int
    """Output in the result, per stream."""
    log_bytes: int
    """Output that execd keeps, per stream."""


class StreamOptions(Limits, total=False):
    """Options of ``run``, ``stream`` and ``start``."""

    cwd: str
    """The directory: absolute, or relative to the base dir."""
    env: dict[str, str]
    """Variables on top of the environment."""
    clear_env: bool
    """Give the program the variables of ``env`` alone."""
    merge_output: bool
    """Give the program one pipe for both outputs: all bytes are stdout, in the order of writing."""
    stdin: str | bytes
    """The whole standard input."""
    stdin_open: bool
    """Keep the standard input open for ``Handle.stdin``."""
    pty: bool | tuple[int, int]
    """Run in a terminal; a tuple has columns and rows."""
    shell: str | list[str]
    """The shell of a command that is a string, instead of ``/bin/sh``."""
    session_id: str
    """The session whose directory and environment the command gets."""
    user: str | int
    """The user to run as; needs a daemon of root."""
    timeout_seconds: float
    """Time from the start of the program to its forced end."""
    no_output_timeout_seconds: float
    """End a program that has written nothing for this time."""
    on_output_limit: Literal["drop", "kill"]
    on_disconnect: Literal["kill", "detach"]
    """What the command does when the client has gone for good."""
    id: str
    """Your own name for the run. The same request under the same name never runs twice."""
    deadline_seconds: float
    """Time for the whole call, repeated requests included. Raises DeadlineExceeded."""


class RunOptions(StreamOptions, total=False):
    """Options of ``run`` alone."""

    soft_timeout_seconds: float
    """Time until the result: a program that goes on then has the state RUNNING. Not with
    ``on_event``."""


class CellOptions(TypedDict, total=False):
    """Options of a session's ``run`` and ``stream``."""

    env: dict[str, str]
    """Variables for this cell."""
    timeout_seconds: float
    """Time from the start of the cell to its forced end."""
    on_busy: Literal["queue", "reject"]
    """Wait for the running cell, or raise SessionBusy."""
    expect_generation: int
    """Raise PreconditionFailed unless the cell runs in this generation of the session."""
    allow_input: bool
    """Let ``input()`` wait for ``Session.input``."""
    on_disconnect: Literal["kill", "detach"]
    id: str
    deadline_seconds: float


class SessionOptions(Limits, total=False):
    """Options of ``sessions.create``."""

    cwd: str
    env: dict[str, str]


def new_id(kind: str) -> str:
    """A name that no other run has: with it a repeated request finds the first run."""
    return f"{kind}-{uuid.uuid4().hex}"


def run_body(
    command: str | Argv, options: StreamOptions, kind: type = StreamOptions
) -> dict[str, Any]:
    """The body of ``POST /v1/executions``."""
    _check_names(options, kind)
    body: dict[str, Any] = {"id": new_id("run"), **_with_limits(dict(options))}
    body["command" if isinstance(command, str) else "argv"] = (
        command if isinstance(command, str) else list(command)
    )
    given = body.pop("stdin", None)
    if isinstance(given, bytes):
        body["stdin_base64"] = base64.b64encode(given).decode()
    elif given is not None:
        body["stdin"] = given
    if isinstance(size := body.get("pty"), tuple):
        body["pty"] = {"cols": size[0], "rows": size[1]}
    return body


def cell_body(code: str, options: CellOptions) -> dict[str, Any]:
    """The body of ``POST /v1/sessions/{id}/execute``."""
    _check_names(options, CellOptions)
    return {"id": new_id("cell"), **options, "code": code}


def session_body(session_id: str | None, options: SessionOptions) -> dict[str, Any]:
    """The body of ``POST /v1/sessions``."""
    _check_names(options, SessionOptions)
    return {**_with_limits(dict(options)), "id": session_id or new_id("session")}


def _with_limits(options: dict[str, Any]) -> dict[str, Any]:
    limits = {name: options.pop(name) for name in LIMITS if options.get(name) is not None}
    return {**options, "limits": limits} if limits else options


def _check_names(options: Mapping[str, Any], kind: type) -> None:
    """Raises TypeError, as Python does for a parameter that a function does not have. execd's own
    error would name the fields of a request."""
    known = kind.__annotations__.keys()
    if unknown := options.keys() - known:
        names = ", ".join(sorted(unknown))
        raise TypeError(f"no such option: {names}; the options are {', '.join(sorted(known))}")
