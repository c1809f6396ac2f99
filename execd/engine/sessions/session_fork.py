"""Branches of a session: the session's worker forks, and each child becomes the worker of a branch.

Steps. The daemon makes ``SessionWorker`` objects for all branches and tells the warden to expect
them. One request asks the original worker for all forks. Each child then greets the warden, and
sends ``ready`` to the daemon.

Race: a child may greet the warden before the warden expects the child. So ``fork`` waits for the
warden's Pong, which comes after the warden has read all requests to adopt, before the original
worker gets its request.

All or none: if a branch fails, all branches are closed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from execd.engine.executions.environment import MARKER
from execd.engine.sessions import worker_messages
from execd.engine.sessions.session_worker import (
    CONFIGURE_SECONDS,
    SessionWorker,
    WorkerLost,
    open_worker,
)
from execd.errors import Conflict, ResourceExhausted, Unavailable
from execd.proc.client import SpawnError, WardenLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.engine.executions.context import EngineContext
    from execd.engine.sessions.link import LinkTurns
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
    """Fork the session's worker once for each id in ``names``. The caller holds the session's turn.

    Return the branches' workers, and warnings about state missing in the branches. ``close_soon``
    closes a worker in the background. Raises Conflict, ResourceExhausted. Must not be cancelled:
    the processes of a half-made fork would have no owner.
    """
    assert names
    original = session.worker
    if original is None or original.is_ending:
        # The branches of a fresh worker would be empty, and would not say so.
        raise Conflict(
            "the session cannot be branched: its state is lost; make the state again by a cell"
        )
    workers = await _prepare(session, len(names), context, turns)
    child_ends = [fd for worker in workers for fd in worker.child_ends]
    for worker in workers:
        worker.child_ends = []
        worker.interpreter = original.interpreter
    pairs = zip(workers, names, strict=True)
    beginning = asyncio.gather(
        *(_begin(worker, name, context.warden) for worker, name in pairs), return_exceptions=True
    )
    await asyncio.sleep(0)
    # Each task has sent a request to adopt; see the module's text.
    await asyncio.wait((context.warden.confirm_sent(),))
    try:
        answer = await session.request(
            {"type": "fork", "count": len(names)}, child_ends, only=original
        )
        failure = answer.error
        lost_threads = dict.fromkeys((*original.lost_threads, *answer.native_threads))
        warnings = [*answer.warnings, *lost_threads]
        for worker in workers:
            worker.lost_threads = tuple(lost_threads)
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
        raise Conflict(
            f"the session cannot be branched: {failure}; end that part of the state, or branch "
            "later"
        )
    return workers, list(dict.fromkeys(warnings))


async def _prepare(
    session: Session, count: int, context: EngineContext, turns: LinkTurns
) -> list[SessionWorker]:
    workers: list[SessionWorker] = []
    try:
        while len(workers) < count:
            workers.append(open_worker(session.limits, turns, context))
    except ResourceExhausted:
        for worker in workers:
            await worker.close()
        raise
    return workers


async def _begin(worker: SessionWorker, name: str, warden: WardenClient) -> list[str]:
    """Adopt one branch and give the branch its id. Return the branch's warnings.

    The branch has cwd and limits from the original worker.
    """
    receiving = asyncio.ensure_future(worker.receive(READY_SECONDS))
    try:
        await worker.adopt(warden)
    except (SpawnError, WardenLost):
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        raise
    try:
        ready = await receiving
        env = {MARKER: worker.marker_id, "EXECD_SESSION_ID": name}
        await worker.request(
            {"type": "configure", "cwd": "", "env": env, "limits": []}, CONFIGURE_SECONDS
        )
    except WorkerLost:
        raise Unavailable("a branch ended before it was ready; repeat the request") from None
    return list(ready.warnings) if isinstance(ready, worker_messages.WorkerReady) else []
