"""Make a worker for a session: take an unused worker, and send the session's configuration."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from execd.engine.sessions import worker_messages
from execd.engine.sessions.session_worker import (
    CONFIGURE_SECONDS,
    SessionWorker,
    WorkerLost,
    lasting_rlimits,
)
from execd.errors import InvalidArgument, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from execd.engine.executions.context import EngineContext
    from execd.model import Limits

log = logging.getLogger(__name__)

# Workers that may end on the way, one after the other, before the caller gets an error.
ATTEMPTS = 3


async def make_worker(
    take_worker: Callable[[Limits], Awaitable[SessionWorker]],
    close_soon: Callable[[SessionWorker], object],
    context: EngineContext,
    *,
    session_id: str,
    cwd: str | None,
    environment: Mapping[str, str],
    limits: Limits,
) -> SessionWorker:
    """Return a configured worker. ``cwd`` None: the base dir.

    ``take_worker`` returns an unused worker, ``close_soon`` closes a worker in the background. User
    code elsewhere may kill a worker on the way; then the next worker is tried. Raises Unavailable
    after ATTEMPTS workers, InvalidArgument, and the errors of ``take_worker``.
    """
    for attempt in range(ATTEMPTS):
        worker = await take_worker(limits)
        try:
            await _configure(worker, context, cwd, environment, limits)
        except WorkerLost:
            close_soon(worker)
            log.warning(
                "a worker ended before it was ready",
                extra={"session": session_id, "attempt": attempt},
            )
        except BaseException:
            close_soon(worker)
            raise
        else:
            return worker
    raise Unavailable("workers end before they are ready")


async def _configure(
    worker: SessionWorker,
    context: EngineContext,
    cwd: str | None,
    environment: Mapping[str, str],
    limits: Limits,
) -> None:
    """Send the configuration. Raises InvalidArgument if the cwd cannot be entered, WorkerLost."""
    env, _ = await context.build_environment(worker.marker_id, environment)
    if cwd is None:
        await context.ensure_base_dir()
    frame = {
        "type": "configure",
        "cwd": cwd or context.config.base_dir,
        "env": env,
        "limits": lasting_rlimits(limits, in_namespace=context.warden.has_namespace),
    }
    answer = await worker.request(frame, CONFIGURE_SECONDS)
    if not isinstance(answer, worker_messages.Configured):
        message = answer.message if isinstance(answer, worker_messages.Failed) else "refused"
        raise InvalidArgument(f"cwd, limits: {message}", field="cwd")
