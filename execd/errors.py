"""The errors of execd, and the party to blame. Knows no HTTP status: each dialect maps codes to its
own wire.

Every error names its blame, because the caller's next step depends on the blame: fix the request
(CALLER), come back later (CAPACITY), or look at the sandbox (SANDBOX). A program that fails inside
the sandbox is never an error here, but a result.

The docstring of an error is its row in docs/reference/http.md: the meaning, and the remedy in the
last paragraph.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Literal

ErrorCode = Literal[
    "INVALID_ARGUMENT",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "NOT_FOUND",
    "REQUEST_TIMEOUT",
    "CONFLICT",
    "SESSION_BUSY",
    "GONE",
    "PRECONDITION_FAILED",
    "PAYLOAD_TOO_LARGE",
    "RANGE_NOT_SATISFIABLE",
    "EXPECTATION_FAILED",
    "IDEMPOTENCY_MISMATCH",
    "RESOURCE_EXHAUSTED",
    "HEADERS_TOO_LARGE",
    "INTERNAL",
    "NOT_SUPPORTED",
    "UNAVAILABLE",
    "NO_SPACE",
    "READ_ONLY",
]
"""The codes of all errors: one for each class below."""

ReplyCode = Literal[ErrorCode, "METHOD_NOT_ALLOWED"]
"""The codes of all replies with an error. An unknown method is refused by HTTP itself: no class."""


class Blame(StrEnum):
    """The party who must act before the same request can succeed."""

    CALLER = "caller"
    CAPACITY = "capacity"
    SANDBOX = "sandbox"


class ExecdError(Exception):
    """Base of all errors that a peer may see. ``details`` can be encoded as JSON and is safe to
    show."""

    code: ClassVar[ErrorCode]
    blame: ClassVar[Blame]

    def __init__(self, message: str, **details: Any) -> None:
        assert type(self) is not ExecdError, "a subclass names the code and the blame"
        super().__init__(message)
        self.message = message
        self.details = details


class InvalidArgument(ExecdError):
    """The request breaks a rule; the message names the field and the rule.

    Correct the field.
    """

    code, blame = "INVALID_ARGUMENT", Blame.CALLER


class Unauthenticated(ExecdError):
    """No token, or a wrong token.

    Send the token.
    """

    code, blame = "UNAUTHENTICATED", Blame.CALLER


class PermissionDenied(ExecdError):
    """The sandbox does not allow the request: for example a path that leaves its root, or the
    `Origin`, `Host` or `Sec-Fetch-Site` of another site.

    Use another path, or another user.
    """

    code, blame = "PERMISSION_DENIED", Blame.CALLER


class NotFound(ExecdError):
    """No execution, session, file or route has this name.

    Check the name; the record may have been forgotten.
    """

    code, blame = "NOT_FOUND", Blame.CALLER


class Conflict(ExecdError):
    """The state of the target does not allow the request.

    The message names the next step.
    """

    code: ClassVar[ErrorCode] = "CONFLICT"  # declared, because a subclass has another code
    blame = Blame.CALLER


class SessionBusy(Conflict):
    """The session runs a cell, and the caller would not wait.

    Wait, interrupt the cell, or use another session.
    """

    code = "SESSION_BUSY"


class Gone(ExecdError):
    """The data existed, and was trimmed.

    Read from a later place, or start anew.
    """

    code, blame = "GONE", Blame.CALLER


class PreconditionFailed(ExecdError):
    """A condition of the request does not hold, for example `If-Match`.

    Read the target again.
    """

    code, blame = "PRECONDITION_FAILED", Blame.CALLER


class PayloadTooLarge(ExecdError):
    """The body is over a limit.

    Send less, or raise the setting.
    """

    code, blame = "PAYLOAD_TOO_LARGE", Blame.CALLER


class RangeNotSatisfiable(ExecdError):
    """The range begins behind the end.

    `Content-Range` of the reply has the size.
    """

    code, blame = "RANGE_NOT_SATISFIABLE", Blame.CALLER


class RequestTimeout(ExecdError):
    """The rest of the body does not come.

    Repeat the request.
    """

    code, blame = "REQUEST_TIMEOUT", Blame.CALLER


class ExpectationFailed(ExecdError):
    """An `Expect` header asks for anything but `100-continue`.

    Leave the header out.
    """

    code, blame = "EXPECTATION_FAILED", Blame.CALLER


class HeadersTooLarge(ExecdError):
    """The request line, a header, or the number of headers is over a limit.

    Send less.
    """

    code, blame = "HEADERS_TOO_LARGE", Blame.CALLER


class IdempotencyMismatch(ExecdError):
    """The same key, or the same `id`, with a different request.

    Use a new key for a new request.
    """

    code, blame = "IDEMPOTENCY_MISMATCH", Blame.CALLER


class ResourceExhausted(ExecdError):
    """All places are taken, the queue is full, or the wait in the queue was too long; with
    `Retry-After`.

    Repeat the request later.
    """

    code, blame = "RESOURCE_EXHAUSTED", Blame.CAPACITY


class Unavailable(ExecdError):
    """The daemon is draining, or there is no warden at the moment; with `Retry-After`.

    Repeat the request later; while draining, use another sandbox.
    """

    code, blame = "UNAVAILABLE", Blame.CAPACITY


class NotSupported(ExecdError):
    """This daemon, or this sandbox, cannot do the request.

    Look at `GET /v1/capabilities`.
    """

    code, blame = "NOT_SUPPORTED", Blame.SANDBOX


class NoSpace(ExecdError):
    """A file system is full, or a directory holds what it may hold (`--base-dir-bytes`,
    `--tmp-dir-bytes`), or a checkpoint needs more than is left (`--checkpoint-bytes`).

    Remove files or checkpoints.
    """

    code, blame = "NO_SPACE", Blame.SANDBOX


class ReadOnly(ExecdError):
    """A file system cannot be written.

    Use another directory.
    """

    code, blame = "READ_ONLY", Blame.SANDBOX


class Internal(ExecdError):
    """A fault of execd: the message has an id, and the log has the traceback under this id.

    Report the line of the log.
    """

    code, blame = "INTERNAL", Blame.SANDBOX
