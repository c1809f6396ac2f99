"""Restores from a checkpoint: when to look for a restore, and what follows.

A platform freezes the processes, keeps a copy, and lets the copy go on elsewhere, perhaps days
later, perhaps several times. Only a gVisor of 2026 tells the daemon (``restore_detector``). The
daemon looks

    * when gVisor tells: a pod without callers notices at once;
    * each LOOK_SECONDS while something runs, so that the time of a freeze is known for deadlines;
    * at the beginning of each request;
    * before something irreversible: a deadline is judged, or a program ends because its caller is
      gone. Timers that became due during the freeze fire before gVisor's word is heard.

Then the subscribers act: the engine puts deadlines off, keeps programs whose callers are gone, and
reseeds; the server takes the restored pod's token; each HTTP server drops its connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
import secrets
import time
from typing import TYPE_CHECKING, Any

from execd.engine.restore_detector import SAME_SECONDS, Readings, Restore, RestoreDetector
from execd.proc.checkpoint_file import CheckpointFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Subscriber = Callable[[Restore, object], None]

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


def read_clocks() -> Readings:
    return Readings(time.time(), time.monotonic())


class Restores:
    """``start`` first, ``close`` last; all within the engine's loop."""

    def __init__(
        self,
        is_busy: Callable[[], bool],
        clocks: Callable[[], Readings],
        read_changes: Callable[[], Mapping[str, Any]],
    ) -> None:
        """``is_busy``: whether something runs that has a deadline. ``read_changes``: what a restore
        has changed in the settings."""
        self.instance_id = _new_instance_id()
        """A new id after each restore, so that clients notice the restore."""
        self.count = 0
        self.last_cause: str | None = None
        self.restored_at: float | None = None
        """The time of day of the last restore, in seconds; None: no restore."""
        self._restored_monotonic = 0.0
        self._is_busy = is_busy
        self._clocks = clocks
        self._read_changes = read_changes
        self._subscribers: list[Subscriber] = []
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._file: CheckpointFile | None = None
        with contextlib.suppress(OSError):
            self._file = CheckpointFile(self._on_told)
        asks_file = None if self._file is None else self._file.was_restored
        self._detector = RestoreDetector(clocks(), asks_file)

    def start(self) -> None:
        if self._file is not None:
            self._file.start()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._timer is not None:
            self._timer.cancel()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Have ``subscriber`` called at each restore, with the restore and with the connection
        that shows the restore, which must live on; None: no connection does. Return a function that
        ends the subscription."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def mark_busy(self) -> None:
        """Something with a deadline runs from now on."""
        if self._timer is None:
            self._detector.end_gap(self._clocks())
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look_again)

    def look(self, spared: object = None, *, was_told: bool = False) -> bool:
        """Look for a restore, and act. Return whether there was one since the last look.

        ``spared``: the connection that asks, whose caller is there. ``was_told``: the platform has
        just told.
        """
        restore = self._detector.look(self._clocks(), was_told=was_told)
        is_file = restore is not None and restore.cause == "file"
        if is_file and self.last_cause == "report" and self.was_restored_lately:
            return False  # gVisor tells of the restore that was reported
        return self._act_on(restore, spared)

    def settle(self) -> float:
        """Look for a restore, before something irreversible. Return for how many seconds gVisor
        may still be about to tell of a restore: so long the irreversible waits."""
        self.look()
        return self._detector.word_seconds(self._clocks())

    def look_at_clocks(self, spared: object) -> None:
        """As ``look``, for the clocks alone: cheap enough for each request."""
        restore = self._detector.look_at_clocks(self._clocks())
        if restore is not None:
            self._act_on(restore, spared)

    def report(self, spared: object) -> bool:
        """The platform reports a restore. Return whether there was a restore that nobody had
        noticed in the last SAME_SECONDS; act on that restore."""
        if self.look(spared, was_told=True):
            return True
        if self.was_restored_lately:
            return False
        return self._act_on(self._detector.reported(self._clocks()), spared)

    @property
    def was_restored_lately(self) -> bool:
        """Whether the last restore is at most SAME_SECONDS old."""
        if self.restored_at is None:
            return False
        return self._clocks().monotonic - self._restored_monotonic <= SAME_SECONDS

    def _on_told(self) -> None:
        """In the thread of the file."""
        self._loop.call_soon_threadsafe(functools.partial(self.look, was_told=True))

    def _look_again(self) -> None:
        self._timer = None
        self.look()
        if self._is_busy() and self._timer is None:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look_again)

    def _act_on(self, restore: Restore | None, spared: object = None) -> bool:
        if restore is None:
            return False
        restore = restore._replace(changes=self._read_changes())
        random.seed()
        self.instance_id = _new_instance_id()
        self.count += 1
        self.last_cause = restore.cause
        now = self._clocks()
        self.restored_at, self._restored_monotonic = now.wall, now.monotonic
        log.warning(
            "restored from a checkpoint",
            extra={
                "cause": restore.cause,
                "frozen_seconds": round(restore.frozen_seconds, 3),
                "instance_id": self.instance_id,
                "changes": sorted(restore.changes),
            },
        )
        for subscriber in self._subscribers:
            subscriber(restore, spared)
        return True


def _new_instance_id() -> str:
    """From the kernel: a generator of the process would repeat itself after each restore."""
    return secrets.token_hex(8)
