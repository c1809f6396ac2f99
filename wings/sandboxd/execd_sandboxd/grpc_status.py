"""Errors as gRPC status codes, total over ``execd.errors``. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpclib.const import Status

if TYPE_CHECKING:
    from execd.engine.engine_api import ErrorCode

GRPC_STATUS: dict[ErrorCode, Status] = {
    "INVALID_ARGUMENT": Status.INVALID_ARGUMENT,
    "UNAUTHENTICATED": Status.UNAUTHENTICATED,
    "PERMISSION_DENIED": Status.PERMISSION_DENIED,
    "NOT_FOUND": Status.NOT_FOUND,
    "REQUEST_TIMEOUT": Status.ABORTED,
    "CONFLICT": Status.FAILED_PRECONDITION,
    "SESSION_BUSY": Status.FAILED_PRECONDITION,
    "GONE": Status.OUT_OF_RANGE,
    "PRECONDITION_FAILED": Status.FAILED_PRECONDITION,
    "PAYLOAD_TOO_LARGE": Status.RESOURCE_EXHAUSTED,
    "RANGE_NOT_SATISFIABLE": Status.OUT_OF_RANGE,
    "EXPECTATION_FAILED": Status.FAILED_PRECONDITION,
    "IDEMPOTENCY_MISMATCH": Status.FAILED_PRECONDITION,
    "RESOURCE_EXHAUSTED": Status.RESOURCE_EXHAUSTED,
    "HEADERS_TOO_LARGE": Status.INVALID_ARGUMENT,
    "INTERNAL": Status.INTERNAL,
    "NOT_SUPPORTED": Status.UNIMPLEMENTED,
    "UNAVAILABLE": Status.UNAVAILABLE,
    "NO_SPACE": Status.RESOURCE_EXHAUSTED,
    "READ_ONLY": Status.FAILED_PRECONDITION,
}
"""The codes follow https://grpc.io/docs/guides/status-codes/, and sandboxd where sandboxd has the
same error."""
