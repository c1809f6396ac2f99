"""The reset: the sandbox as in a checkpoint again, verified.

Processes. User code lives below the warden. The reset ends the warden, and starts another one after
the files are restored; between the two there is no user code, and nothing changes what a step has
done. The zygote and the image's own program begin after the verification, because both may write.

Tasks. Each reset has a task of its own, which goes on if the caller leaves. Resets run one after
another (``_turn``). The steps are those of ``reset_outcome.ResetStep``; ``reset_steps`` takes them.

Owners. ``Episodes`` owns the requests, ``Parts`` everything else; this module only tells them when.

Faults. The journal has the begin of a reset before the first process ends, and the end with the
answer, as one record that also forgets the former episode. A daemon that finds a begin without an
end runs the whole reset again before any request enters: every step may be repeated. A begin that a
full disk refuses is written when the logs are gone.

What can race.

* A request against the reset. A request that has entered the episode before ends with its execution
  or is cancelled, and the reset waits until it has left; a request that comes later is refused.
* A repeated reset against the first. With the first under way the second gets the same task; after
  the end the second gets the journal's answer, also from a later daemon.
* The loss of the warden against ``halt``. In both orders ``halt`` returns when the warden is gone.
* SIGTERM against the reset. ``close`` cancels the task; the next daemon finishes the reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import secrets
import time
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from execd.engine import surroundings
from execd.engine.reset_outcome import (
    EndedCounts,
    ResetReply,
    ResetRequest,
    ResetStep,
    StepDuration,
)
from execd.engine.reset_steps import ResetRun, ResetSteps, Shells
from execd.engine.store.journal import (
    MAX_RESET_ANSWERS,
    EpisodeRecorded,
    ResetBegun,
    ResetEnded,
    TracesRecorded,
)
from execd.errors import Conflict, IdempotencyMismatch, NotFound, Unavailable
from execd.proc import kernel_traces

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from execd.engine.assembly import Parts
    from execd.files.checkpoints.entries import Checkpoint

log = logging.getLogger(__name__)

CLOSED_WORDS = "execd is shutting down; repeat the request when execd is back"


class Resets:
    """Runs resets. ``start`` first, ``close`` last; all within the engine's loop."""

    def __init__(self, parts: Parts, shells: Shells) -> None:
        state, place = parts.store.journal.state, kernel_traces.place()
        around = parts.surroundings
        has_namespace = parts.warden.has_namespace
        process_place, former = kernel_traces.process_place(), state.traces
        here = (place, process_place)  # a later container may get the numbers of the namespaces
        if former is not None and (former.place, former.process_place) == here:
            # A former daemon's user code may have left something here.
            traces = former.traces
            if has_namespace and former.has_namespace:  # no user code reaches these
                now = around.traces
                traces = traces._replace(sockets=now.sockets, mounts=now.mounts)
            around = around._replace(traces=traces, keys=former.keys)
        if former is not None and former.process_place == process_place:
            is_sure = former.has_namespace or state.has_ended
            around = around._replace(may_have_strays=former.may_have_strays or not is_sure)
        parts.retention.note(
            TracesRecorded(
                place=place,
                traces=around.traces,
                keys=around.keys,
                process_place=process_place,
                has_namespace=has_namespace,
                may_have_strays=around.may_have_strays,
            )
        )
        self.steps = ResetSteps(parts, shells, around)
        self._parts = parts
        self._shells = shells
        self._episodes = parts.episodes
        self._turn = asyncio.Lock()
        self._running: dict[str, asyncio.Task[bytes]] = {}
        self._answers = dict(state.resets)
        self._unfinished = state.reset
        self._is_closed = False

    # Life.

    def start(self) -> None:
        """Begin the reset that a former daemon has begun, if there is one. No user code has run
        yet."""
        if self._unfinished is not None:
            extra = {"episode": self._episodes.current}
            log.warning("a former daemon died in a reset", extra=extra)
            self._episodes.close()
            self._begin(
                self._unfinished.key, functools.partial(self._finish_late, self._unfinished)
            )

    async def finished(self) -> None:
        """Wait until no reset is under way."""
        while self._running:
            await asyncio.wait(self._running.values())

    async def close(self) -> None:
        """Leave a reset that is under way to the next daemon. Idempotent."""
        self._is_closed = True
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    # Requests.

    async def reset(self, request: ResetRequest, key: str | None, expected: str | None) -> bytes:
        """Reset the sandbox, and return the JSON of a ``ResetReply``; of a repeated request with
        the same key the first answer. ``expected``: the caller's episode.

        Raises NotFound (no such checkpoint), Conflict (it cannot be read), EpisodeOver,
        IdempotencyMismatch, Unavailable.
        """
        digest = _sha256((key or secrets.token_hex(16)).encode())
        payload = _sha256(msgspec.json.encode(request))
        earlier = self._answers.get(digest)
        if earlier is not None:
            _check_payload(earlier.payload, payload)
            return bytes(earlier.answer)
        if self._is_closed:
            raise Unavailable(CLOSED_WORDS)
        task = self._running.get(digest)
        if task is None:
            self._episodes.check(expected)
            self._get_checkpoint(request.checkpoint)
            run = functools.partial(self._run_first, digest, payload, request, expected)
            task = self._begin(digest, run)
        try:
            answer = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise Unavailable(CLOSED_WORDS) from None
            raise
        if (ended := self._answers.get(digest)) is not None:
            _check_payload(ended.payload, payload)
        return answer

    def _begin(self, digest: str, work: Callable[[], Awaitable[bytes]]) -> asyncio.Task[bytes]:
        async def run() -> bytes:
            async with self._turn:
                try:
                    return await work()
                except Exception:
                    self._episodes.open()  # a fault must not leave a sandbox that serves nobody
                    self._parts.sessions.begin_again()
                    raise

        def forget(task: asyncio.Task[bytes]) -> None:
            self._running.pop(digest, None)
            if not task.cancelled():
                task.exception()  # the caller may have left

        task = self._running[digest] = asyncio.create_task(run(), name="reset")
        task.add_done_callback(forget)
        return task

    def _get_checkpoint(self, id: str) -> Checkpoint:
        try:
            return self._parts.checkpoints.get(id)
        except NotFound:
            raise NotFound(
                f"there is no checkpoint {id!r} to reset to; start execd with "
                "--checkpoint-at-start ROOT, or make a checkpoint first: POST /v1/checkpoints "
                f'with {{"id": "{id}"}}'
            ) from None

    # The run.

    async def _run_first(
        self, digest: str, payload: str, request: ResetRequest, expected: str | None
    ) -> bytes:
        self._episodes.check(expected)  # again: another reset may have come before
        checkpoint = self._get_checkpoint(request.checkpoint)
        self._episodes.close()
        parts, warden = self._parts, self._parts.warden.pid
        n_processes = await asyncio.to_thread(surroundings.count_below, warden)
        begun = ResetBegun(
            key=digest,
            payload=payload,
            checkpoint=request.checkpoint,
            verify=request.verify,
            keeps_records=request.keep_records,
            ended={
                "executions": len(parts.registry.live),
                "sessions": len(parts.sessions),
                "shells": self._shells.count_all(),
                "processes": n_processes,
            },
            warden=surroundings.identity(warden),
        )
        run = ResetRun(begun, checkpoint, is_late=False)
        run.is_journaled = await parts.store.write_journal(begun) is None
        return await self._run(run)

    async def _finish_late(self, begun: ResetBegun) -> bytes:
        checkpoint: Checkpoint | None = None
        with contextlib.suppress(NotFound, Conflict):
            checkpoint = self._get_checkpoint(begun.checkpoint)
        return await self._run(ResetRun(begun, checkpoint, is_late=True))

    async def _run(self, run: ResetRun) -> bytes:
        began = time.monotonic()
        for step in ResetStep:
            step_began = time.monotonic()
            log.debug("reset step", extra={"step": str(step)})
            try:
                await self.steps.take(step, run)
            except Exception as error:
                log.exception("a step of the reset failed", extra={"step": str(step)})
                words = str(error) or type(error).__name__
                run.differences.add("step", f"the step {step} failed: {words}")
            seconds = round(time.monotonic() - step_began, 6)
            run.durations.append(StepDuration(name=step, duration_seconds=seconds))
        ended = await self._finish(run)
        duration_seconds = time.monotonic() - began
        is_clean = run.differences.total == 0
        self._parts.counters.record_reset(is_clean=is_clean, duration_seconds=duration_seconds)
        fields = {
            "episode": self._episodes.current,
            "clean": is_clean,
            "differences": run.differences.total,
            "reset_seconds": round(duration_seconds, 3),
        }
        if is_clean:
            log.info("the sandbox was reset", extra=fields)
        else:
            log.warning("the sandbox was reset, and is not as before", extra=fields)
        try:
            await self.steps.go_on()
        except Exception:
            log.exception("what runs from the start did not start again")
        return bytes(ended.answer)

    async def _finish(self, run: ResetRun) -> ResetEnded:
        """Journal the end, and open the next episode."""
        store, former = self._parts.store, self._episodes.record
        record = EpisodeRecorded(former.state_id, former.number + 1)
        ended = self._end_record(run, record)
        if await store.write_journal(ended) is not None and await store.repair() is not None:
            run.differences.add(
                "journal", "the disk takes no record of the reset: the answer ends with the daemon"
            )
            ended = self._end_record(run, record)
            await store.write_journal(ended)
        self._answers.pop(ended.key, None)
        self._answers[ended.key] = ended
        for key in list(self._answers)[:-MAX_RESET_ANSWERS]:
            del self._answers[key]
        self._episodes.begin_next(record)
        return ended

    def _end_record(self, run: ResetRun, record: EpisodeRecorded) -> ResetEnded:
        begun = run.begun
        reply = ResetReply(
            clean=run.differences.total == 0,
            episode=record.text,
            verified_by=run.verified_by,
            ended=EndedCounts(**begun.ended),
            files=run.files,
            differences=run.differences,
            scope=self.steps.scope(run),
            steps=run.durations,
        )
        answer = Raw(msgspec.json.encode(reply))
        return ResetEnded(begun.key, begun.payload, record, begun.keeps_records, answer)


def _check_payload(first: str, second: str) -> None:
    if first != second:
        raise IdempotencyMismatch(
            "this key was used for another reset; repeat that request as it was, or use another key"
        )


def _sha256(data: bytes) -> str:
    import hashlib  # see lean_imports

    return hashlib.sha256(data).hexdigest()
