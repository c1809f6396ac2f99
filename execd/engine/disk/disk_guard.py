"""The disk guard: looks at the guarded directories while something runs, and ends the tree that
fills one of them. ``disk_policy`` decides; ``volume`` reads.

One task for each directory. Nothing is read while no execution is live and the warden has no tree
of user code: the tasks rest until an execution runs. System calls on the directories run on the
guard's threads, because a disk may hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from execd.engine.disk.disk_policy import Candidate
from execd.model import DiskExcess

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from execd.engine.disk.disk_policy import NextLook
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
        walk: asyncio.Future[None] | None = None
        tally = _Tally()
        try:
            while True:
                await self._running.wait()
                try:
                    look = await self._in_thread(volume.look)
                    pause_seconds = look.pause_seconds
                    begins_walk = walk is None and look.needs_walk
                    if (
                        begins_walk
                        or walk is not None
                        or (look.is_near and tally.used_bytes != volume.policy.used_bytes)
                        or volume.policy.is_over
                    ):
                        tally.used_bytes = volume.policy.used_bytes
                        tally.add(await self._warden.read_written(is_urgent=look.is_near))
                    if begins_walk:
                        tally.begin_walk()
                        walk = self._in_thread(volume.walk)
                    if walk is not None:
                        # The looks go on beside a long walk.
                        await asyncio.wait((walk,), timeout=pause_seconds)
                        if walk.done():
                            ended, walk = walk, None
                            tally.end_walk()
                            ended.result()
                        else:
                            pause_seconds = 0.0
                    volume.judge_estimate(tally.since_walk_bytes)
                    await self._judge(volume, tally, look)
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
        finally:
            if walk is not None:
                walk.cancel()

    async def _judge(self, volume: Volume, tally: _Tally, look: NextLook) -> None:
        before = tally.before if volume.policy.is_over else None
        if before is not None:
            # The trees were read before the walk, and the walk finds what they wrote meanwhile.
            tally.add(await self._warden.read_written(is_urgent=True))
            await self._end_writer(volume, tally.trees, before)
        # The figures count from the crossing on as long as nobody is known to have filled the
        # directory, and as long as a walk is to tell whether there was a crossing. After an end
        # they count anew.
        begins_anew = before is not None or tally.before is None or not look.is_due
        if not volume.policy.is_unsolved and begins_anew:
            is_near = look.is_near or volume.policy.is_over
            tally.before = _Snapshot(volume.policy.used_bytes, tally.trees) if is_near else None

    async def _rest_when_idle(self) -> None:
        if self._live():
            return
        written = await self._warden.read_written()
        if written is not None and written.tags:
            return
        # The second look at the executions: an execution that became live during the wait has set
        # the event already, and sets the event no more.
        if not self._live():
            self._running.clear()

    def _in_thread(self, call: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def _end_writer(
        self, volume: Volume, trees: Mapping[int, Candidate], before: _Snapshot
    ) -> None:
        """End the tree that fills the directory, and wait for its end."""
        executions = {
            execution.tree_tag: execution
            for execution in self._live()
            if execution.tree_tag is not None
        }
        # Executions that are ending too: a program may write on until its KILL, a grace later.
        blame = volume.blame(
            [_since(tree, before.trees.get(tree.tag)) for tree in trees.values()],
            before.used_bytes,
        )
        excess = DiskExcess(
            volume.setting,
            volume.path,
            volume.policy.found_bytes,
            volume.policy.limit_bytes,
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
        volume.settle(is_solved=blame is not None)


class _Snapshot(NamedTuple):
    """The state at the check before a crossing."""

    used_bytes: int
    """The used bytes of the file system."""
    trees: Mapping[int, Candidate]


class _Tally:
    """The bytes that each tree has written, from the reports of the warden."""

    def __init__(self) -> None:
        self.trees: Mapping[int, Candidate] = {}
        """The totals of the living trees, by tag."""
        self.used_bytes = -1
        """Of the file system, when the trees were read: without a change nobody has written."""
        self.before: _Snapshot | None = None
        """The figures of a decision count from there; None: the look before was far from one."""
        self._written = self._at_walk = self._at_walk_under_way = 0

    def add(self, written: Written | None) -> None:
        trees = (
            {}
            if written is None
            else {figures[0]: Candidate(*figures) for figures in zip(*written[1:], strict=True)}
        )
        gained = [_since(tree, self.trees.get(tree.tag)) for tree in trees.values()]
        self._written += sum(max(each.write_bytes, each.wchar_bytes) for each in gained)
        self.trees = trees

    def begin_walk(self) -> None:
        self._at_walk_under_way = self._written

    def end_walk(self) -> None:
        self._at_walk = self._at_walk_under_way

    @property
    def since_walk_bytes(self) -> int:
        """Written by all trees since the beginning of the last walk that has ended."""
        return self._written - self._at_walk


def _since(tree: Candidate, before: Candidate | None) -> Candidate:
    """The figures of a tree since ``before``."""
    if before is None:
        return tree
    return Candidate(
        tree.tag, *(now - then for now, then in zip(tree[1:], before[1:], strict=True))
    )
