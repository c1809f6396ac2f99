"""Errors on the wire: one table and one renderer for each dialect, total over ``execd.errors``."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import TYPE_CHECKING

from execd.api.wire.replies import json_reply, replace_surrogates

if TYPE_CHECKING:
    from aiohttp import web

    from execd.errors import ExecdError

V1_HTTP_STATUS = {
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
    "IDEMPOTENCY_MISMATCH": 422,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "NOT_SUPPORTED": 501,
    "UNAVAILABLE": 503,
    "NO_SPACE": 507,
    "READ_ONLY": 403,
}

# Clients print the message and branch on the class of the status. Errors that the caller can fix
# are 4xx: the SDK repeats a GET six times after 500, 502, 503 or 504, and up to version 0.5.6 also
# a POST.
PYTHON_RUNTIME_HTTP_STATUS = V1_HTTP_STATUS | {"CONFLICT": 400}


def render_v1(error: ExecdError) -> web.Response:
    body: dict[str, object] = {"code": error.code, "message": replace_surrogates(error.message)}
    if error.details:
        body["details"] = error.details
    return json_reply(body, V1_HTTP_STATUS[error.code], _headers(error))


def render_python_runtime(error: ExecdError) -> web.Response:
    return json_reply(
        {"message": replace_surrogates(error.message)},
        PYTHON_RUNTIME_HTTP_STATUS[error.code],
        _headers(error),
    )


def render_http_v1(http_status: int, headers: dict[str, str]) -> web.Response:
    """Render a refusal by HTTP itself: an unknown route, or an unknown method."""
    status = HTTPStatus(http_status)
    assert http_status >= HTTPStatus.BAD_REQUEST, "aiohttp redirects nobody here"
    code = (
        status.name
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)
        else "INVALID_ARGUMENT"
    )
    return json_reply({"code": code, "message": status.phrase}, http_status, headers)


def render_http_python_runtime(http_status: int, headers: dict[str, str]) -> web.Response:
    return json_reply({"detail": HTTPStatus(http_status).phrase}, http_status, headers)


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
