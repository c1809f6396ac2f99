"""The request that starts an execution: who asked, and whose log line tells the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from execd.api.wire.keys import FACTS
from execd.api.wire.tracing import trace_id
from execd.model import Origin

if TYPE_CHECKING:
    from aiohttp import web

    from execd.engine.executions.execution import Execution
    from execd.model import DialectName


def origin_of(request: web.Request, dialect: DialectName) -> Origin:
    """Return who asks: the dialect, and the ids of the request, for the command of the request."""
    return Origin(dialect, request[FACTS].id, trace_id(request.headers.get("traceparent")))


def note_started(request: web.Request, execution: Execution, origin: Origin) -> None:
    """Have the log line of the request tell the end of ``execution``, if the request started the
    execution. A repeated request may have found an earlier execution. Call before the first
    await: the execution has not ended by then."""
    if execution.command.origin is origin:
        facts = request[FACTS]
        assert facts.execution is None, "a request starts one execution"
        facts.execution = execution
        execution.has_open_request = True
