"""The disk guard: looks at the guarded directories while something runs, and ends the tree that
fills one of them. ``disk_policy`` decides; ``volume`` reads.

One task for each directory. Nothing is read while no execution is live and the warden has no tree
of user code: the tasks rest until an execution runs. System calls on the directories run on the
guard's threads, because a disk may hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from execd.engine.disk.disk_policy import Candidate
from execd.model import DiskExcess

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from execd.engine.disk.volume import Volume
    from execd.engine.executions.execution import Execution
    from execd.proc.client import WardenClient
    from execd.proc.messages import Written

log = logging.getLogger(__name__)

# The pause after a look that failed.
TROUBLE_SECONDS = 1.0
# How long the guard waits for the end of a tree before the next walk. A tree that gets KILL ends
# sooner, unless its disk hangs.
END_SECONDS = 3.0

T = TypeVar("T")


class DiskGuard:
    """Watches ``volumes`` between ``start`` and ``close``."""

    def __init__(
        self,
        volumes: Collection[Volume],
        warden: WardenClient,
        live: Callable[[], list[Execution]],
    ) -> None:
        """``live``: the executions that have not ended."""
        self.volumes = volumes
        self._warden = warden
        self._live = live
        self._running = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._threads = ThreadPoolExecutor(max(2 * len(volumes), 1), thread_name_prefix="disk")

    def start(self) -> None:
        assert not self._tasks, "started twice"
        self._tasks = [
            asyncio.create_task(self._watch(volume), name=f"disk-guard-{volume.setting}")
            for volume in self.volumes
        ]

    async def close(self) -> None:
        for volume in self.volumes:
            volume.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown(wait=False)

    def mark_running(self) -> None:
        """User code begins to run."""
        self._running.set()

    async def _watch(self, volume: Volume) -> None:
        before: Mapping[int, Candidate] = {}
        while True:
            await self._running.wait()
            try:
                look = await self._in_thread(volume.look)
                if look.needs_walk:
                    await self._in_thread(functools.partial(volume.walk, is_urgent=True))
                if look.needs_walk or volume.is_over:
                    trees = _by_tag(await self._warden.read_written())
                    if volume.is_over:
                        await self._end_writer(volume, trees, before)
                    before = trees
                pause_seconds = look.pause_seconds
            except OSError:  # the directory is gone, or its disk is
                pause_seconds = TROUBLE_SECONDS
            except Exception:  # a fault of the guard must not leave the pod without a guard
                log.exception("the disk guard failed", extra={"path": volume.path})
                pause_seconds = TROUBLE_SECONDS
            await asyncio.sleep(pause_seconds)
            try:
                await self._rest_when_idle()
            except Exception:
                log.exception("the disk guard failed", extra={"path": volume.path})

    async def _rest_when_idle(self) -> None:
        if self._live() or _by_tag(await self._warden.read_written()):
            return
        # The second look at the executions: an execution that became live during the wait has set
        # the event already, and sets the event no more.
        if not self._live():
            self._running.clear()

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def _end_writer(
        self, volume: Volume, trees: Mapping[int, Candidate], before: Mapping[int, Candidate]
    ) -> None:
        """End the tree that filled the directory, and wait for its end."""
        now = time.monotonic()
        executions = {
            execution.tree_tag: execution
            for execution in self._live()
            if execution.tree_tag is not None
        }
        # Executions that are ending too: a program may write on until its KILL, a grace later.
        candidates = [
            _since(tree, before.get(tree.tag), executions.get(tree.tag)) for tree in trees.values()
        ]
        blame = volume.blame(now, candidates)
        excess = DiskExcess(
            volume.setting,
            volume.path,
            volume.walked_bytes,
            volume.limit_bytes,
            blame is not None and blame.is_guess,
        )
        execution = None if blame is None else executions.get(blame.tag)
        log.warning(
            "a guarded directory is nearly full",
            extra={
                "path": volume.path,
                "used_bytes": excess.used_bytes,
                "limit_bytes": excess.limit_bytes,
                "execution_id": None if execution is None else execution.id,
                "has_ended_tree": blame is not None,
                "is_guess": excess.is_guess,
            },
        )
        if blame is not None and execution is not None:
            execution.exceed_disk(excess)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await execution.ended()
        elif blame is not None:  # what an ended execution, or a session between cells, left running
            self._warden.end_tree(blame.tag)
            await asyncio.wait((self._warden.confirm_sent(),), timeout=END_SECONDS)
        volume.settle()


def _by_tag(written: Written | None) -> dict[int, Candidate]:
    if written is None:
        return {}
    return {
        tag: Candidate(tag, began_ms / 1000, write_bytes, wchar_bytes)
        for tag, began_ms, write_bytes, wchar_bytes in zip(
            written.tags,
            written.began_ms,
            written.write_bytes,
            written.wchar_bytes,
            strict=True,
        )
    }


def _since(tree: Candidate, before: Candidate | None, execution: Execution | None) -> Candidate:
    """The figures of a tree since the walk before. A cell began later than the worker that runs the
    cell."""
    began = tree.began
    if execution is not None and execution.started_at is not None:
        began = time.monotonic() - (time.time() - execution.started_at)
    if before is None:
        return tree._replace(began=began)
    return tree._replace(
        began=began,
        write_bytes=max(tree.write_bytes - before.write_bytes, 0),
        wchar_bytes=max(tree.wchar_bytes - before.wchar_bytes, 0),
    )
