"""The steps of a reset, each of which may be run again by a later daemon. ``reset`` has the theory.

A step notes in ``ResetRun.differences`` what did not become as before, as far as the step sees.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from execd.engine.reset_outcome import (
    ResetDifference,
    ResetDifferences,
    ResetFiles,
    ResetScope,
    ResetStep,
    StepDuration,
    without_surrogates,
)
from execd.engine.surroundings import NOBODY
from execd.model import ExitReason, rfc3339

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from execd.engine.assembly import Parts
    from execd.engine.entrypoint import Entrypoint
    from execd.engine.executions.execution import Execution
    from execd.engine.store.journal import ResetBegun
    from execd.engine.surroundings import Surroundings
    from execd.files.checkpoints.entries import Checkpoint
    from execd.files.checkpoints.restore import Restored

# How long executions may take to end after KILL, replies to be sent after that, and cancelled
# requests and threads to leave.
END_SECONDS, REPLY_SECONDS, LEAVE_SECONDS = 3.0, 0.25, 5.0


class Shells(NamedTuple):
    """Bash sessions and named terminals."""

    count_all: Callable[[], int]
    end_all: Callable[[float], Awaitable[bool]]
    """Returns whether all have ended within these seconds."""


class ResetRun:
    """One reset under way."""

    def __init__(self, begun: ResetBegun, checkpoint: Checkpoint | None, *, is_late: bool) -> None:
        """``is_late``: a former daemon began the reset. Without a checkpoint the step RESTORE
        fails, and says why."""
        self.begun = begun
        self.checkpoint = checkpoint
        self.is_late = is_late
        self.is_journaled = is_late
        self.differences = ResetDifferences(items=[], total=0)
        self.restored: Restored | None = None
        self.files = ResetFiles(restored=0, removed=0, unchanged=0)
        self.verified_by = ""
        self.living: set[int] = set()
        """Processes of user code that could not be ended."""
        self.durations: list[StepDuration] = []


class ResetSteps:
    """Carries the steps out on the parts of the engine."""

    def __init__(self, parts: Parts, shells: Shells, surroundings: Surroundings) -> None:
        self.hooks: list[Callable[[], Awaitable[None]]] = []
        """Called in each reset, for what dialects remember of the episode."""
        self.entrypoint: Entrypoint | None = None
        self._parts = parts
        self._shells = shells
        self._surroundings = surroundings
        self._acts = {
            ResetStep.END: self._end,
            ResetStep.HALT: self._halt,
            ResetStep.RESTORE: self._restore,
            ResetStep.FORGET: self._forget,
            ResetStep.START: self._start,
            ResetStep.VERIFY: self._verify,
        }

    async def take(self, step: ResetStep, run: ResetRun) -> None:
        """Any exception means that the step failed."""
        await self._acts[step](run)

    async def go_on(self) -> None:
        """Begin what user code has from the start: after the verification, because both may write.
        The interpreter starts while the caller reads the answer."""
        self._parts.sessions.begin_again()
        if self.entrypoint is not None:
            await self.entrypoint.start_again()

    def scope(self, run: ResetRun) -> ResetScope:
        facts = run.checkpoint
        return ResetScope(
            processes="namespace" if self._parts.warden.has_namespace else "sweep",
            checkpoint=run.begun.checkpoint,
            checkpoint_created_at=None if facts is None else rfc3339(facts.created_at),
            roots=[] if facts is None else [without_surrogates(r.path) for r in facts.roots],
            watched=[] if facts is None else [without_surrogates(r.path) for r in facts.watched],
        )

    async def _end(self, run: ResetRun) -> None:
        parts, add = self._parts, run.differences.add
        if self.entrypoint is not None:
            self.entrypoint.let_go()
        live = parts.registry.live
        for execution in live:
            execution.end(ExitReason.RESET, 0.0)
        parts.sessions.drain()
        parts.sessions.refuse_all()
        parts.sessions.end_streams()
        parts.tree_files.end_watch_streams()
        await _wait_ended(live)
        for execution in live:
            execution.answer_now()
        if n_inside := await parts.episodes.empty(REPLY_SECONDS, LEAVE_SECONDS):
            add("request", f"{n_inside} requests of the former episode go on")
        if not await self._shells.end_all(LEAVE_SECONDS):
            add("session", "a bash session or a terminal has not ended")
        if not await parts.files.settle(LEAVE_SECONDS):
            add("request", "a file operation of the former episode goes on")
        for hook in self.hooks:
            await hook()

    async def _halt(self, run: ResetRun) -> None:
        is_in_namespace = self._parts.warden.has_namespace
        run.living.update(await self._parts.warden.halt())
        former = run.begun.warden if run.is_late else NOBODY
        run.living.update(
            await asyncio.to_thread(
                self._surroundings.wait_gone, former, is_in_namespace=is_in_namespace
            )
        )
        if self._surroundings.may_have_strays:
            message = "processes of a daemon that died cannot be told apart: restart the container"
            run.differences.add("process", message)
        for pid in sorted(run.living):
            run.differences.add("process", f"the process {pid} lives on", pid=pid)
        await _wait_ended(self._parts.registry.live)
        for execution in self._parts.registry.live:
            run.differences.add("execution", f"the execution {execution.id} has not ended")

    async def _restore(self, run: ResetRun) -> None:
        if not run.is_journaled:  # the disk was full, perhaps with logs
            self._parts.retention.end_episode(keeps_records=run.begun.keeps_records)
            run.is_journaled = await self._parts.store.write_journal(run.begun) is None
        self._parts.checkpoints.stop_others()
        if run.checkpoint is not None:  # before the files, which may need the room
            for id, why in (await self._parts.checkpoints.delete_later(run.checkpoint)).items():
                message = f"the later checkpoint {id!r} cannot be removed: {why}"
                run.differences.add("step", message)
        found = await self._parts.checkpoints.restore(run.begun.checkpoint, run.begun.verify)
        run.restored = found
        run.files = ResetFiles(
            restored=found.restored, removed=found.removed, unchanged=found.unchanged
        )
        await self._parts.ensure_base_dir()

    async def _forget(self, run: ResetRun) -> None:
        parts = self._parts
        await parts.held_pipes.close_all(END_SECONDS)
        if not await parts.sessions.end_episode(LEAVE_SECONDS):
            run.differences.add("session", "a session has not ended")
        parts.retention.end_episode(keeps_records=run.begun.keeps_records)

    async def _start(self, run: ResetRun) -> None:
        try:
            await self._parts.warden.resume()
        except (OSError, TimeoutError) as error:
            run.differences.add("warden", f"no warden could be started yet: {error}")

    async def _verify(self, run: ResetRun) -> None:
        for trace in await asyncio.to_thread(self._compare, run):
            run.differences.append(trace)
        if self.entrypoint is not None and (
            why := await self._parts.files.run(self.entrypoint.obstacle)
        ):
            message = f"the image's program cannot start again: {why}"
            run.differences.add("entrypoint", message)
        # Where anything is amiss, a process may have lived beside the restore.
        after = run.restored if not run.differences.total else None
        found = await self._parts.checkpoints.verify(run.begun.checkpoint, run.begun.verify, after)
        run.verified_by = found.verified_by
        troubles = [] if run.restored is None else run.restored.troubles
        reasons = {trouble.path: trouble.message for trouble in troubles}
        for difference in found.differences:
            message, reason = difference.message, reasons.pop(difference.path, "")
            message = f"{message}; {reason}" if reason else message
            run.differences.add("file", message, path=difference.path)
        run.differences.total += found.n_differences - len(found.differences)
        for path, message in reasons.items():
            run.differences.add("file", message, path=path)

    def _compare(self, run: ResetRun) -> list[ResetDifference]:
        """Blocking."""
        identity, roots = self._parts.identity, self.scope(run).roots
        found = self._surroundings.compare(identity, run.living, self._parts.warden)
        return [
            difference
            for difference in (*found, *self._surroundings.compare_keys(identity))
            # A root in /dev/shm is compared file by file.
            if difference.kind != "shm" or not {"/dev/shm", difference.path} & set(roots)
        ]


async def _wait_ended(executions: Sequence[Execution]) -> None:
    """Wait until all have ended, at most END_SECONDS."""
    waits = [asyncio.ensure_future(execution.ended()) for execution in executions]
    if waits:
        _, late = await asyncio.wait(waits, timeout=END_SECONDS)
        for wait in late:
            wait.cancel()
