"""Branches of a session: its worker forks, and each fork is a worker of its own.

The worker is asked once for all of them. What comes of that each branch says for itself: it greets
the warden, then the daemon. All or none: a branch that fails ends the others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from execd.engine.executions.environment import MARKER
from execd.engine.sessions import worker_messages
from execd.engine.sessions.session_worker import CONFIGURE_SECONDS, SessionWorker, WorkerLost
from execd.errors import Conflict, ResourceExhausted, Unavailable
from execd.proc.client import SpawnError, WardenLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.engine.executions.context import EngineContext
    from execd.engine.sessions.link_turns import LinkTurns
    from execd.engine.sessions.session import Session
    from execd.proc.client import WardenClient

READY_SECONDS = 10.0


async def fork(
    session: Session,
    names: list[str],
    context: EngineContext,
    turns: LinkTurns,
    close_soon: Callable[[SessionWorker], object],
) -> tuple[list[SessionWorker], list[str]]:
    """With the session's turn. Returns the branches' workers and what did not come along. Raises
    Conflict, ResourceExhausted.

    ``close_soon``: closes a worker in the background. Not to be cancelled: whoever begins a fork
    waits for its end.
    """
    original = session.worker
    if original is None or original.is_ending:
        raise Conflict(
            "the session cannot be branched: its state is lost"
        )  # a fresh one's branches would be empty, and not say so
    workers = await _prepare(session, len(names), context, turns)
    theirs = [fd for worker in workers for fd in worker.theirs]
    for worker in workers:
        worker.theirs = []
    pairs = zip(workers, names, strict=True)
    beginning = asyncio.gather(
        *(_begin(worker, name, context.warden) for worker, name in pairs), return_exceptions=True
    )
    await asyncio.sleep(0)
    # as for the zygote's: they are expected before they are there
    await asyncio.wait((context.warden.heard(),))
    try:
        answer = await session.ask({"type": "fork", "count": len(names)}, theirs, only=original)
        failure, warnings = answer.error, list(answer.warnings)
    except Conflict as error:
        failure, warnings = error.message, []
    for result in await beginning:
        if isinstance(result, BaseException):
            failure = failure or str(result)
        else:
            warnings += result
    if failure is not None:
        for worker in workers:
            close_soon(worker)
        raise Conflict(f"the session cannot be branched: {failure}")
    return workers, list(dict.fromkeys(warnings))


async def _prepare(
    session: Session, count: int, context: EngineContext, turns: LinkTurns
) -> list[SessionWorker]:
    workers: list[SessionWorker] = []
    try:
        while len(workers) < count:
            workers.append(
                SessionWorker(
                    session.limits, turns, drain_seconds=context.config.drain_grace_seconds
                )
            )
    except OSError as error:
        for worker in workers:
            await worker.close()
        raise ResourceExhausted(f"no descriptors for another session: {error.strerror}") from error
    return workers


async def _begin(worker: SessionWorker, name: str, warden: WardenClient) -> list[str]:
    """Until it is there and knows its name; the rest it has from where it came. Returns its
    warnings."""
    hearing = asyncio.ensure_future(worker.hear(READY_SECONDS))
    try:
        await worker.adopt(warden)
    except (SpawnError, WardenLost):
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
        raise
    try:
        ready = await hearing
        env = {MARKER: worker.marker_id, "EXECD_SESSION_ID": name}
        await worker.ask(
            {"type": "configure", "cwd": "", "env": env, "limits": []}, CONFIGURE_SECONDS
        )
    except WorkerLost:
        raise Unavailable("a branch ended before it was ready") from None
    return list(ready.warnings) if isinstance(ready, worker_messages.WorkerReady) else []
