"""The errors of the client: a class for each code of execd, and the client's own.

try:
    sandbox.files.read("missing.txt")
except execd_client.NotFound as error:
    print(error.code, error.message)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from execd_client.results import CellResult, Result


class ExecdError(Exception):
    """Any failure that the client reports. ``message`` says what happened."""

    code: ClassVar[str] = ""
    """The code of execd's table; empty for errors of the client itself."""

    def __init__(
        self,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        http_status: int | None = None,
        request_id: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details = dict(details or {})
        self.http_status = http_status
        self.request_id = request_id
        """The id under which execd's log has the request."""
        self.retry_after_seconds = retry_after_seconds


class ApiError(ExecdError):
    """execd, or a router before execd, has refused a request."""


class InvalidArgument(ApiError):
    """The request breaks a rule; the message names the field and the rule."""

    code = "INVALID_ARGUMENT"


class Unauthenticated(ApiError):
    """No token, or a wrong token."""

    code = "UNAUTHENTICATED"


class PermissionDenied(ApiError):
    """The sandbox does not allow the request, for example a path that leaves the root."""

    code = "PERMISSION_DENIED"


class NotFound(ApiError):
    """No execution, session, file or route has this name."""

    code = "NOT_FOUND"


class MethodNotAllowed(ApiError):
    """The path has no such method."""

    code = "METHOD_NOT_ALLOWED"


class RequestTimeout(ApiError):
    """The rest of the body did not come."""

    code = "REQUEST_TIMEOUT"


class Conflict(ApiError):
    """The state of the target does not allow the request."""

    code = "CONFLICT"


class SessionBusy(ApiError):
    """The session runs a cell, and the caller would not wait."""

    code = "SESSION_BUSY"


class Gone(ApiError):
    """The data existed, and was trimmed."""

    code = "GONE"


class PreconditionFailed(ApiError):
    """A condition of the request does not hold."""

    code = "PRECONDITION_FAILED"


class PayloadTooLarge(ApiError):
    """The body is over a limit."""

    code = "PAYLOAD_TOO_LARGE"


class RangeNotSatisfiable(ApiError):
    """The range begins behind the end."""

    code = "RANGE_NOT_SATISFIABLE"


class ExpectationFailed(ApiError):
    """An ``Expect`` header asks for anything but ``100-continue``."""

    code = "EXPECTATION_FAILED"


class IdempotencyMismatch(ApiError):
    """The same id with a different request."""

    code = "IDEMPOTENCY_MISMATCH"


class ResourceExhausted(ApiError):
    """All places are taken. The client has repeated the request for ``retry_seconds``."""

    code = "RESOURCE_EXHAUSTED"


class HeadersTooLarge(ApiError):
    """The request line, a header, or the number of headers is over a limit."""

    code = "HEADERS_TOO_LARGE"


class Internal(ApiError):
    """A fault of execd; the message has the id of the entry in execd's log."""

    code = "INTERNAL"


class NotSupported(ApiError):
    """This daemon, or this sandbox, cannot do the request."""

    code = "NOT_SUPPORTED"


class Unavailable(ApiError):
    """The daemon is draining, or cannot run commands at the moment."""

    code = "UNAVAILABLE"


class NoSpace(ApiError):
    """A file system is full."""

    code = "NO_SPACE"


class ReadOnly(ApiError):
    """A file system cannot be written."""

    code = "READ_ONLY"


class Unreachable(ExecdError):
    """No connection to execd, in ``retry_seconds`` of attempts. Nothing has run."""


class ConnectionLost(ExecdError):
    """The connection broke while execd had the request, and the request may not be sent twice.
    execd may have carried out the request."""


class DeadlineExceeded(ExecdError):
    """``deadline_seconds`` have passed."""


class TransferFailed(ExecdError):
    """The bytes of a file changed during the transfer, or their digest is not the announced one."""


class EpisodeEnded(ExecdError):
    """The sandbox was reset since this client's first reply, and the request has not run: make a
    new client for the new episode."""

    code = "CONFLICT"


class CommandFailed(ExecdError):
    """``Result.check()``: the exit code of the command is not 0."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result


class CellFailed(ExecdError):
    """``CellResult.check()``: the cell raised an error, or was ended."""

    def __init__(self, message: str, result: CellResult) -> None:
        super().__init__(message)
        self.result = result


def _classes(base: type[ApiError]) -> dict[str, type[ApiError]]:
    return {found.code: found for found in base.__subclasses__()}


BY_CODE = _classes(ApiError)
"""The class of each code."""
BY_HTTP_STATUS: dict[int, type[ApiError]] = {
    400: InvalidArgument,
    401: Unauthenticated,
    403: PermissionDenied,
    404: NotFound,
    409: Conflict,
    412: PreconditionFailed,
    416: RangeNotSatisfiable,
    503: Unavailable,
}
"""For replies to HEAD, which have no body."""


EPISODE, EXPECTED_EPISODE = "x-execd-episode", "x-execd-expect-episode"


def error_of(
    http_status: int, headers: Mapping[str, str], body: bytes, expected_episode: str | None = None
) -> ExecdError:
    """The error of a reply to a request with this ``X-Execd-Expect-Episode``. A reply that is not
    execd's, for example a router's page, becomes an ``ApiError`` with the status and the beginning
    of the text."""
    code, message, details = "", "", None
    by_default: type[ExecdError] = ApiError if body else BY_HTTP_STATUS.get(http_status, ApiError)
    try:
        said = msgspec.json.decode(body)
        code, details = str(said.get("code", "")), said.get("details")
        message = str(said["message"])
    except (msgspec.DecodeError, AttributeError, KeyError):
        message = f"HTTP status {http_status} {body[:200].decode('utf-8', 'replace')}".strip()
    details = details if isinstance(details, dict) else {}
    kind = BY_CODE.get(code, by_default)
    is_marked = str(details.get("field")).lower() == EXPECTED_EPISODE
    if http_status == 409 and (
        is_marked or (expected_episode and headers.get(EPISODE, "") not in ("", expected_episode))
    ):
        kind = EpisodeEnded
    return kind(
        message,
        details=details,
        http_status=http_status,
        request_id=headers.get("x-request-id"),
        retry_after_seconds=retry_after_seconds(headers),
    )


def not_execd(http_status: int, headers: Mapping[str, str], body: bytes = b"") -> ApiError:
    """The error of a reply that execd does not send, for example the page of a login."""
    kind, text = headers.get("content-type", ""), body[:200].decode("utf-8", "replace")
    said = f"this is not execd: HTTP status {http_status} {kind} {text}"
    return ApiError(said.strip(), http_status=http_status)


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """``Retry-After`` as seconds (RFC 9110, 10.2.3); None without the header, and for a date."""
    try:
        return max(0.0, float(headers["retry-after"]))
    except (KeyError, ValueError):
        return None
