"""The route table of the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from execd.api.docs import description, viewer
from execd.api.probes import metrics, probes
from execd.api.python_runtime import handlers
from execd.api.v1 import (
    archives,
    execution_control,
    executions,
    file_operations,
    files,
    sessions,
    watch,
)

if TYPE_CHECKING:
    from execd.api.wire.route import Route


def routes() -> tuple[Route, ...]:
    """Return all rows, in the order of the router."""
    modules = (
        *(probes, metrics, description, viewer, handlers),
        *(executions, execution_control, sessions),
        *(files, file_operations, archives, watch),
    )
    return tuple(route for module in modules for route in module.routes())
