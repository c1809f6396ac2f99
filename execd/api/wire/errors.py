"""Errors on the wire: one table and one renderer for each dialect, total over ``execd.errors``."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from execd.api.wire.replies import json_reply, replace_surrogates
from execd.errors import ReplyCode  # noqa: TC001  # msgspec reads the annotations at run time

if TYPE_CHECKING:
    from aiohttp import web

    from execd.errors import ErrorCode, ExecdError


class ErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """An error of /v1."""

    code: ReplyCode
    """Which rule was broken, or which part of the sandbox refused."""
    message: str
    """The reason in words, with the remedy where there is one."""
    details: dict[str, Any] | UnsetType = UNSET
    """Facts for programs, depending on the code: for example `field`, the part of the request that
    breaks a rule, or `retry_after_seconds`. Absent without facts."""


class MessageReply(msgspec.Struct, frozen=True, kw_only=True):
    """An error of the python-runtime routes."""

    message: str
    """The reason in words, with the remedy where there is one."""


class DetailReply(msgspec.Struct, frozen=True, kw_only=True):
    """An error of HTTP itself on the python-runtime routes."""

    detail: str
    """The phrase of the HTTP status."""


V1_HTTP_STATUS: dict[ErrorCode, int] = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "REQUEST_TIMEOUT": 408,
    "CONFLICT": 409,
    "SESSION_BUSY": 409,
    "GONE": 410,
    "PRECONDITION_FAILED": 412,
    "PAYLOAD_TOO_LARGE": 413,
    "RANGE_NOT_SATISFIABLE": 416,
    "EXPECTATION_FAILED": 417,
    "IDEMPOTENCY_MISMATCH": 422,
    "RESOURCE_EXHAUSTED": 429,
    "HEADERS_TOO_LARGE": 431,
    "INTERNAL": 500,
    "NOT_SUPPORTED": 501,
    "UNAVAILABLE": 503,
    "NO_SPACE": 507,
    "READ_ONLY": 507,
}

# Clients print the message and branch on the class of the status. Errors that the caller can fix
# are 4xx: the SDK repeats a GET six times after 500, 502, 503 or 504, and up to version 0.5.6 also
# a POST.
PYTHON_RUNTIME_HTTP_STATUS: dict[ErrorCode, int] = {
    **V1_HTTP_STATUS,
    "CONFLICT": 400,
    "READ_ONLY": 403,
}


def render_v1(error: ExecdError) -> web.Response:
    body = ErrorReply(
        code=error.code,
        message=replace_surrogates(error.message),
        details=error.details or UNSET,
    )
    return json_reply(body, V1_HTTP_STATUS[error.code], _headers(error))


def render_python_runtime(error: ExecdError) -> web.Response:
    return json_reply(
        MessageReply(message=replace_surrogates(error.message)),
        PYTHON_RUNTIME_HTTP_STATUS[error.code],
        _headers(error),
    )


def code_of_http(http_status: int) -> ReplyCode:
    """Return the code of a refusal by HTTP itself: an unknown route, or an unknown method."""
    assert http_status >= HTTPStatus.BAD_REQUEST, "aiohttp redirects nobody here"
    match http_status:
        case HTTPStatus.NOT_FOUND:
            return "NOT_FOUND"
        case HTTPStatus.METHOD_NOT_ALLOWED:
            return "METHOD_NOT_ALLOWED"
        case _:
            return "INVALID_ARGUMENT"


def render_http_v1(http_status: int, headers: dict[str, str]) -> web.Response:
    """Render a refusal by HTTP itself."""
    code = code_of_http(http_status)
    match code:
        case "NOT_FOUND":
            message = "path: no route of this daemon has this path"
        case "METHOD_NOT_ALLOWED":
            allowed = ", ".join(sorted(headers["Allow"].split(",")))
            message = f"method: this path allows {allowed}"
        case _:
            message = HTTPStatus(http_status).phrase
    return json_reply(ErrorReply(code=code, message=message), http_status, headers)


def render_http_python_runtime(http_status: int, headers: dict[str, str]) -> web.Response:
    return json_reply(DetailReply(detail=HTTPStatus(http_status).phrase), http_status, headers)


def _headers(error: ExecdError) -> dict[str, str]:
    match error.code:
        case "UNAUTHENTICATED":
            # RFC 9110 §15.5.2: a 401 must carry a challenge
            return {"WWW-Authenticate": 'Bearer realm="execd"'}
        case "RESOURCE_EXHAUSTED" | "UNAVAILABLE":
            seconds = error.details.get("retry_after_seconds", 1)
            return {"Retry-After": str(max(1, math.ceil(seconds)))}
        case "RANGE_NOT_SATISFIABLE" if "size_bytes" in error.details:
            return {"Content-Range": f"bytes */{error.details['size_bytes']}"}  # RFC 9110 §15.5.17
        case _:
            return {}
