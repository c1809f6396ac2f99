"""The client of execd: commands, Python sessions and files of a sandbox.

    from execd_client import Execd

    with Execd("http://127.0.0.1:8888") as sandbox:
        print(sandbox.run("echo hello").stdout)

``Execd`` blocks, ``AsyncExecd`` has the same methods to await, described at ``Execd``.
"""

from execd_client import prepared_types  # noqa: F401  # before any thread decodes a reply
from execd_client.aio import AsyncExecd, AsyncFiles, AsyncHandle, AsyncSession, AsyncSessions
from execd_client.blocking import Execd, Files, Handle, Session, Sessions
from execd_client.errors import (
    ApiError,
    CellFailed,
    CommandFailed,
    Conflict,
    ConnectionLost,
    DeadlineExceeded,
    EpisodeEnded,
    ExecdError,
    ExpectationFailed,
    Gone,
    HeadersTooLarge,
    IdempotencyMismatch,
    Internal,
    InvalidArgument,
    MethodNotAllowed,
    NoSpace,
    NotFound,
    NotSupported,
    PayloadTooLarge,
    PermissionDenied,
    PreconditionFailed,
    RangeNotSatisfiable,
    ReadOnly,
    RequestTimeout,
    ResourceExhausted,
    SessionBusy,
    TransferFailed,
    Unauthenticated,
    Unavailable,
    Unreachable,
)
from execd_client.events import Event
from execd_client.results import Bundle, CellResult, Result
from execd_client.terminal_async import AsyncTerminal
from execd_client.terminal_blocking import Terminal
from execd_client.version import __version__

for _blocking in (Execd, Handle, Sessions, Session, Files, Terminal):
    _awaited = globals()[f"Async{_blocking.__name__}"]
    _awaited.__doc__ = _blocking.__doc__
    for _name, _made in vars(_awaited).items():
        if _name[0] != "_":
            getattr(_made, "__func__", _made).__doc__ = getattr(_blocking, _name).__doc__

__all__ = [
    "__version__",
    # clients
    "Execd", "Handle", "Sessions", "Session", "Files", "Terminal",
    "AsyncExecd", "AsyncHandle", "AsyncSessions", "AsyncSession", "AsyncFiles", "AsyncTerminal",
    # what they return
    "Result", "CellResult", "Bundle", "Event",
    # errors of the client
    "ExecdError", "Unreachable", "ConnectionLost", "DeadlineExceeded", "TransferFailed",
    "EpisodeEnded", "CommandFailed", "CellFailed",
    # errors of execd
    "ApiError", "InvalidArgument", "Unauthenticated", "PermissionDenied", "NotFound",
    "MethodNotAllowed", "RequestTimeout", "Conflict", "SessionBusy", "Gone", "PreconditionFailed",
    "PayloadTooLarge", "RangeNotSatisfiable", "ExpectationFailed", "IdempotencyMismatch",
    "ResourceExhausted", "HeadersTooLarge", "Internal", "NotSupported", "Unavailable", "NoSpace",
    "ReadOnly",
]  # fmt: skip
