"""Make a worker for a session: take an unused worker, and send the session's configuration."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from execd.engine.sessions import worker_messages
from execd.engine.sessions.session_worker import (
    CONFIGURE_SECONDS,
    SessionWorker,
    WorkerLost,
    lasting_rlimits,
)
from execd.errors import InvalidArgument, Unavailable
from execd.kernel import frames

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
        worker = None
        try:
            worker = await take_worker(limits)
            await _configure(worker, context, cwd, environment)
        except BaseException as error:
            if worker is not None:
                close_soon(worker)
            if not isinstance(error, WorkerLost):
                raise
            log.warning(
                "a worker ended before it was ready",
                extra={"session": session_id, "attempt": attempt, "reason": str(error)},
            )
        else:
            return worker
    raise Unavailable(
        "workers end before they are ready; read the log of execd, and repeat the request"
    )


async def configuration(
    worker: SessionWorker, context: EngineContext, cwd: str | None, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return the frame with the configuration. ``cwd`` None: the base dir."""
    env, _ = await context.build_environment(worker.marker_id, environment)
    return {
        "type": "configure",
        "cwd": cwd or context.config.base_dir,
        "env": env,
        "limits": lasting_rlimits(worker.limits, in_namespace=context.warden.has_namespace),
    }


async def _configure(
    worker: SessionWorker, context: EngineContext, cwd: str | None, environment: Mapping[str, str]
) -> None:
    """Send the configuration. Raises InvalidArgument if the cwd cannot be entered, WorkerLost."""
    frame = await configuration(worker, context, cwd, environment)
    if cwd is None:
        await context.ensure_base_dir()
    try:
        answer = await worker.request(frame, CONFIGURE_SECONDS)
    except frames.FrameError:
        # An environment alone fits: the check of ``env`` bounds its characters.
        raise worker_messages.too_long("env" if cwd is None else "cwd") from None
    if not isinstance(answer, worker_messages.Configured):
        refusal = "cwd, limits: refused by the worker"
        message = answer.message if isinstance(answer, worker_messages.Failed) else refusal
        raise InvalidArgument(message, field="cwd" if message.startswith("cwd") else "limits")
