"""The dialect of E2B: one table for envd (port 49983) and the code interpreter (49999), so that an
SDK with a single URL finds everything on either port."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from aiohttp import web

from execd.api.wire_api import (
    V1_HTTP_STATUS,
    ErrorRenderers,
    HttpService,
    json_reply,
    replace_surrogates,
)
from execd.engine.engine_api import Unauthenticated, Unavailable
from execd_e2b import (
    code_interpreter,
    connect,
    envd_filesystem,
    envd_process,
    file_transfers,
    sandbox_routes,
)
from execd_e2b.sandbox import IS_CODE_PORT, share_sandbox

if TYPE_CHECKING:
    from execd.api.wire_api import Route
    from execd.engine.engine_api import ErrorCode, ExecdError
    from execd_e2b.settings import Settings

SERVICES = (envd_process.SERVICE, envd_filesystem.SERVICE)
STREAMS = (
    *(envd_process.SERVICE + name for name in ("Start", "Connect", "StreamInput")),
    envd_filesystem.SERVICE + "WatchDir",
)
CODE_ROUTES = ("/execute", "/contexts")
CONTEXTS = re.compile(r"/contexts(/[A-Za-z0-9][A-Za-z0-9_-]{0,127}(/restart)?)?")

# The SDK takes 507 for a full disk only.
REST_HTTP_STATUS: dict[ErrorCode, int] = {**V1_HTTP_STATUS, "READ_ONLY": 403}

SIGNED_URLS = (
    "; a signed URL cannot be checked: its signature is made of the token itself, and execd holds "
    "only the token's hash; send the token as X-Access-Token"
)
OPEN_CONTEXTS = (
    "; E2B's SDK sends no token to /contexts: let a proxy add the header X-Access-Token, or start "
    "execd with EXECD_E2B_OPEN_CONTEXTS=on"
)


def routes() -> tuple[Route, ...]:
    modules = (
        *(envd_process, envd_filesystem, file_transfers),
        *(sandbox_routes, code_interpreter),
    )
    return tuple(route for module in modules for route in module.ROUTES)


def runs_something(method: str, canonical: str) -> bool:
    """Return whether a half-close on this route means that the caller has left."""
    return method == "POST" and canonical in (*STREAMS, "/execute")


def is_context(path: str) -> bool:
    return CONTEXTS.fullmatch(path) is not None


def renderers(path: str) -> ErrorRenderers:
    """Return the error bodies of the route with this raw path: Connect, the code interpreter's
    text, or envd's JSON."""
    if path in STREAMS:
        return STREAM
    if path.startswith(SERVICES):
        return UNARY
    if path.startswith(CODE_ROUTES):
        return CONTEXT if path.startswith("/contexts") else CODE
    return FILES if path.startswith("/files") else REST


def _unary(error: ExecdError) -> web.Response:
    code = connect.code_of(error)
    return json_reply(
        connect.error_fields(code, error.message), connect.HTTP_STATUS[code], _headers(error)
    )


def _stream(error: ExecdError) -> web.Response:
    """Put the error in the last frame, where Connect has it. The HTTP statuses 401 and 503 stay:
    routers look for them, and clients read the same code from them."""
    if isinstance(error, Unauthenticated | Unavailable):
        return _unary(error)
    return web.Response(
        body=connect.end_frame(error), headers={"Content-Type": connect.STREAM_TYPE}
    )


def _http_unary(http_status: int, headers: dict[str, str]) -> web.Response:
    fields = connect.error_fields("unimplemented", "no call of this daemon has this path")
    return json_reply(fields, http_status, headers)


def _rest(error: ExecdError, hint: str = "") -> web.Response:
    return _rest_reply(REST_HTTP_STATUS[error.code], _hinted(error, hint), _headers(error))


def _rest_reply(http_status: int, message: str, headers: dict[str, str]) -> web.Response:
    body: dict[str, Any] = {"code": http_status, "message": message}
    return json_reply(body, http_status, headers)


def _http_rest(http_status: int, headers: dict[str, str]) -> web.Response:
    return _rest_reply(http_status, "no route of this daemon has this method and path", headers)


def _code(error: ExecdError, hint: str = "") -> web.Response:
    text = _hinted(error, hint)
    return web.Response(text=text, status=REST_HTTP_STATUS[error.code], headers=_headers(error))


def _http_code(http_status: int, headers: dict[str, str]) -> web.Response:
    text = "no route of this daemon has this method and path"
    return web.Response(text=text, status=http_status, headers=headers)


def _hinted(error: ExecdError, hint: str) -> str:
    """Return the message; for a wrong or missing token with the hint. A subclass has another
    reason."""
    text = error.message + (hint if type(error) is Unauthenticated else "")
    return replace_surrogates(text)


def _headers(error: ExecdError) -> dict[str, str]:
    # RFC 9110 §15.5.2: a 401 must carry a challenge
    is_refusal = isinstance(error, Unauthenticated)
    return {"WWW-Authenticate": 'Bearer realm="execd"'} if is_refusal else {}


UNARY = ErrorRenderers(_unary, _http_unary)
STREAM = ErrorRenderers(_stream, _http_unary)
REST = ErrorRenderers(_rest, _http_rest)
FILES = ErrorRenderers(lambda error: _rest(error, SIGNED_URLS), _http_rest)
CODE = ErrorRenderers(_code, _http_code)
CONTEXT = ErrorRenderers(lambda error: _code(error, OPEN_CONTEXTS), _http_code)


def make_service(settings: Settings, *, is_code_port: bool) -> HttpService:
    """``is_code_port``: the port is the code interpreter's, and not envd's."""

    def prepare(app: web.Application) -> None:
        app[IS_CODE_PORT] = is_code_port
        share_sandbox(app)

    return HttpService(
        dialect="e2b",
        routes=routes(),
        renderers=renderers,
        runs=runs_something,
        opens=is_context if settings.open_contexts == "on" else lambda _path: False,
        prepare=prepare,
    )
