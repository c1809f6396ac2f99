"""The errors of execd, and the party to blame. Knows no HTTP status: each dialect maps codes to its
own wire.

Every error names its blame, because the caller's next step depends on the blame: fix the request
(CALLER), come back later (CAPACITY), or look at the sandbox (SANDBOX). A program that fails inside
the sandbox is never an error here, but a result.

    ExecdError
      InvalidArgument       caller    the request breaks a rule; the message names the field and the
                                      rule
      Unauthenticated       caller
      PermissionDenied      caller    also: a path that leaves its root
      NotFound              caller
      Conflict              caller    the target's state does not allow the request
      SessionBusy           caller    the session runs a cell, and the caller would not wait
      Gone                  caller    the target existed, and was trimmed
      PreconditionFailed    caller    an If-Match that does not match
      PayloadTooLarge       caller
      RangeNotSatisfiable   caller
      RequestTimeout        caller    the rest of the request's body does not come
      IdempotencyMismatch   caller    same key, different payload
      ResourceExhausted     capacity  all places taken, the queue full, or the wait in it too long
      Unavailable           capacity  draining, or no warden at the moment
      NotSupported          sandbox   this daemon, or this sandbox, cannot do the request
      NoSpace               sandbox   a file system is full
      ReadOnly              sandbox   a file system cannot be written
      Internal              sandbox   a bug in execd: the log has everything, the peer gets an id
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar


class Blame(StrEnum):
    """The party who must act before the same request can succeed."""

    CALLER = "caller"
    CAPACITY = "capacity"
    SANDBOX = "sandbox"


class ExecdError(Exception):
    """Base of all errors that a peer may see. ``details`` can be encoded as JSON and is safe to
    show."""

    code: ClassVar[str]
    blame: ClassVar[Blame]

    def __init__(self, message: str, **details: Any) -> None:
        assert type(self) is not ExecdError, "a subclass names the code and the blame"
        super().__init__(message)
        self.message = message
        self.details = details


class InvalidArgument(ExecdError):
    code, blame = "INVALID_ARGUMENT", Blame.CALLER


class Unauthenticated(ExecdError):
    code, blame = "UNAUTHENTICATED", Blame.CALLER


class PermissionDenied(ExecdError):
    code, blame = "PERMISSION_DENIED", Blame.CALLER


class NotFound(ExecdError):
    code, blame = "NOT_FOUND", Blame.CALLER


class Conflict(ExecdError):
    code, blame = "CONFLICT", Blame.CALLER


class SessionBusy(Conflict):
    code = "SESSION_BUSY"


class Gone(ExecdError):
    code, blame = "GONE", Blame.CALLER


class PreconditionFailed(ExecdError):
    code, blame = "PRECONDITION_FAILED", Blame.CALLER


class PayloadTooLarge(ExecdError):
    code, blame = "PAYLOAD_TOO_LARGE", Blame.CALLER


class RangeNotSatisfiable(ExecdError):
    code, blame = "RANGE_NOT_SATISFIABLE", Blame.CALLER


class RequestTimeout(ExecdError):
    code, blame = "REQUEST_TIMEOUT", Blame.CALLER


class IdempotencyMismatch(ExecdError):
    code, blame = "IDEMPOTENCY_MISMATCH", Blame.CALLER


class ResourceExhausted(ExecdError):
    """``details`` may carry ``retry_after_seconds``."""

    code, blame = "RESOURCE_EXHAUSTED", Blame.CAPACITY


class Unavailable(ExecdError):
    code, blame = "UNAVAILABLE", Blame.CAPACITY


class NotSupported(ExecdError):
    code, blame = "NOT_SUPPORTED", Blame.SANDBOX


class NoSpace(ExecdError):
    code, blame = "NO_SPACE", Blame.SANDBOX


class ReadOnly(ExecdError):
    code, blame = "READ_ONLY", Blame.SANDBOX


class Internal(ExecdError):
    code, blame = "INTERNAL", Blame.SANDBOX
