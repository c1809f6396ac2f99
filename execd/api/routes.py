"""The route table of port 8888: the python-runtime routes, sandboxd's REST half, and /v1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from execd.api.docs import viewer
from execd.api.probes import probes
from execd.api.python_runtime import handlers
from execd.api.v1 import (
    archives,
    attach,
    checkpoint_routes,
    execution_control,
    executions,
    file_operations,
    files,
    reset_routes,
    restored,
    sessions,
    watch,
)
from execd.api.wire import errors
from execd.api.wire.port import ErrorRenderers, HttpService

if TYPE_CHECKING:
    from execd.api.wire.route import Route

RUNNING_ROUTES = ("/execute", "/v1/executions", "/v1/sessions", "/v1/code")
V1 = ErrorRenderers(errors.render_v1, errors.render_http_v1)
PYTHON_RUNTIME = ErrorRenderers(errors.render_python_runtime, errors.render_http_python_runtime)


def routes() -> tuple[Route, ...]:
    """Return all rows, in the order of the router."""
    modules = (
        *(probes, viewer, handlers),
        *(executions, execution_control, attach, sessions),
        *(files, file_operations, archives, watch, restored, checkpoint_routes, reset_routes),
    )
    return tuple(route for module in modules for route in module.ROUTES)


def runs_something(method: str, canonical: str) -> bool:
    """Return whether a half-close on this route means that the caller has left: the route runs a
    command or a cell, starts a worker, feeds a program, or watches files. ``canonical``: the
    pattern of the route."""
    if canonical.endswith("/attach") or canonical.startswith("/v1/watch"):
        return True
    return method == "POST" and canonical.startswith(RUNNING_ROUTES)


def renderers(path: str) -> ErrorRenderers:
    """Return the error bodies of the route with this raw path."""
    return V1 if path.startswith("/v1/") else PYTHON_RUNTIME


PORT_8888 = HttpService(routes=routes(), renderers=renderers, runs=runs_something)
