"""The dialect: the routes of OpenSandbox's execd, the shape of its errors, and its token header."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from execd.api.wire_api import ErrorRenderers, HttpService
from execd_opensandbox import (
    bash_session_routes,
    code_routes,
    command_routes,
    daemon_routes,
    file_routes,
    port_proxy,
    pty_routes,
    runtime_init,
)
from execd_opensandbox.opensandbox_errors import FILE_ROUTES, render_error, render_http_error
from execd_opensandbox.requests import SETTINGS

if TYPE_CHECKING:
    from aiohttp import web

    from execd.api.wire_api import Route
    from execd_opensandbox.settings import Settings

RUNNING_ROUTES = frozenset(("/command", "/session/{id}/run", "/code", "/metrics/watch"))


def routes() -> tuple[Route, ...]:
    """Return all rows, in the order of the router."""
    modules = (
        *(command_routes, file_routes, bash_session_routes, code_routes),
        *(daemon_routes, runtime_init, pty_routes, port_proxy),
    )
    return tuple(route for module in modules for route in module.ROUTES)


def runs_something(method: str, canonical: str) -> bool:
    """Return whether a half-close on this route means that the caller has left. ``canonical``: the
    pattern of the route."""
    if canonical.startswith("/proxy/") or canonical.endswith("/ws"):
        return True
    return method != "DELETE" and canonical in RUNNING_ROUTES


def renderers(path: str) -> ErrorRenderers:
    """Return the error bodies of the route with this raw path."""
    of_files = path.startswith(FILE_ROUTES)
    return ErrorRenderers(partial(render_error, of_files=of_files), render_http_error)


def make_service(settings: Settings) -> HttpService:
    def prepare(app: web.Application) -> None:
        app[SETTINGS] = settings
        app[runtime_init.SANDBOX] = runtime_init.OwnedSandbox()

    return HttpService(
        dialect="opensandbox",
        routes=routes(),
        renderers=renderers,
        runs=runs_something,
        prepare=prepare,
    )
