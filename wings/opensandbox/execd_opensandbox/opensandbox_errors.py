"""Errors in the words of OpenSandbox's execd: ``code`` and ``message``, both always there, since
the SDK's generated client requires both. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from execd.api.wire_api import V1_HTTP_STATUS, code_of_http, json_reply, replace_surrogates

if TYPE_CHECKING:
    from aiohttp import web

    from execd.engine.engine_api import ErrorCode, ExecdError

TOKEN_HEADER = "X-EXECD-ACCESS-TOKEN"
FILE_ROUTES = ("/files", "/directories", "/v1/filesystem/")

OPENSANDBOX_CODES: dict[ErrorCode, str] = {
    "INVALID_ARGUMENT": "INVALID_REQUEST_BODY",
    "UNAUTHENTICATED": "UNAUTHENTICATED",
    "PERMISSION_DENIED": "PERMISSION_DENIED",
    "NOT_FOUND": "CONTEXT_NOT_FOUND",
    "REQUEST_TIMEOUT": "INVALID_REQUEST_BODY",
    "CONFLICT": "RUNTIME_ERROR",
    "SESSION_BUSY": "RUNTIME_ERROR",
    "GONE": "RUNTIME_ERROR",
    "PRECONDITION_FAILED": "RUNTIME_ERROR",
    "PAYLOAD_TOO_LARGE": "INVALID_FILE_CONTENT",
    "RANGE_NOT_SATISFIABLE": "UNKNOWN",
    "EXPECTATION_FAILED": "INVALID_REQUEST_BODY",
    "IDEMPOTENCY_MISMATCH": "INVALID_REQUEST_BODY",
    "RESOURCE_EXHAUSTED": "RUNTIME_ERROR",
    "HEADERS_TOO_LARGE": "INVALID_REQUEST_BODY",
    "INTERNAL": "RUNTIME_ERROR",
    "NOT_SUPPORTED": "NOT_SUPPORTED",
    "UNAVAILABLE": "RUNTIME_ERROR",
    "NO_SPACE": "RUNTIME_ERROR",
    "READ_ONLY": "RUNTIME_ERROR",
}
"""OpenSandbox's codes for the errors of execd. ``opensandbox_code`` in the details of an error
comes before the table."""


class OpenSandboxError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error of this dialect."""

    error: str = ""
    """Only with 401: the field that OpenSandbox's own 401 has."""
    code: str
    message: str


def render_error(error: ExecdError, *, of_files: bool) -> web.Response:
    """Render an error of a route. ``of_files``: the route is about files."""
    http_status = V1_HTTP_STATUS[error.code]
    message = replace_surrogates(error.message)
    if error.code == "UNAUTHENTICATED":
        text = f"Unauthorized: invalid or missing header {TOKEN_HEADER}"
        body = OpenSandboxError(error=text, code="UNAUTHENTICATED", message=message)
        return json_reply(body, http_status, {"WWW-Authenticate": 'Bearer realm="execd"'})
    code = error.details.get("opensandbox_code", OPENSANDBOX_CODES[error.code])
    if error.code == "NOT_FOUND" and of_files:
        code = "FILE_NOT_FOUND"
    return json_reply(OpenSandboxError(code=code, message=message), http_status, _headers(error))


def render_http_error(http_status: int, headers: dict[str, str]) -> web.Response:
    """Render a refusal by HTTP itself: an unknown route or method."""
    code = code_of_http(http_status)
    words = {
        "NOT_FOUND": "path: no route of this port has this path",
        "METHOD_NOT_ALLOWED": f"method: this path allows {headers.get('Allow', '')}",
    }
    message = words.get(code, "the request breaks a rule of HTTP")
    return json_reply(OpenSandboxError(code=code, message=message), http_status, headers)


def _headers(error: ExecdError) -> dict[str, str]:
    match error.code:
        case "RESOURCE_EXHAUSTED" | "UNAVAILABLE":
            seconds = error.details.get("retry_after_seconds", 1)
            return {"Retry-After": str(max(1, math.ceil(seconds)))}
        case "RANGE_NOT_SATISFIABLE" if "size_bytes" in error.details:
            return {"Content-Range": f"bytes */{error.details['size_bytes']}"}  # RFC 9110 §15.5.17
        case _:
            return {}
