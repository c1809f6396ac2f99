"""A guarded directory: the look, the walk, and the room for uploads. The calls block, and so run on
threads; the guard's own threads and the threads of files share the figures.

No lock is held during a system call on the directory, because a disk may hang.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Literal

from execd.engine.disk.disk_policy import DiskPolicy, FileSystem, NextLook
from execd.errors import NoSpace
from execd.files import disk_usage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from execd.engine.disk.disk_policy import BlamedTree, Candidate
    from execd.files.root import Room

Setting = Literal["base_dir_bytes", "tmp_dir_bytes"]
# The pause after each slice of a walk.
REST_SECONDS = 0.005
# An upload relies on a look that is no older.
FRESH_SECONDS = 1.0
# How long an upload waits for a walk. A tree that takes longer to count gets the estimate.
UPLOAD_WALK_SECONDS = 5.0


class Volume:
    """A directory that may hold ``limit_bytes``. Implements ``files.root.Room``."""

    def __init__(self, setting: Setting, path: str, limit_bytes: int) -> None:
        self.setting = setting
        self.path = path
        self.policy = DiskPolicy(limit_bytes)
        """Changed under the lock. A single figure may be read without the lock."""
        self._lock = threading.Lock()
        """Held for arithmetic only."""
        self._walking = threading.Lock()
        self._looked_at = self._walked_at = self._walk_seconds = 0.0
        self._is_closed = threading.Event()

    def close(self) -> None:
        """Cut walks short."""
        self._is_closed.set()

    def facts(self) -> dict[str, int | None]:
        """Of the limit, the reserve, and the bytes as estimated: None before the first walk."""
        with self._lock:
            policy = self.policy
            return {
                "limit_bytes": policy.limit_bytes,
                "reserve_bytes": policy.limit_bytes - policy.threshold_bytes,
                "used_bytes": policy.estimated_bytes if policy.is_known else None,
            }

    def look(self) -> NextLook:
        """Read the file system. Raises OSError."""
        return self._record_look(self._read())

    def _read(self) -> FileSystem:
        return FileSystem(*disk_usage.file_system_bytes(self.path))

    def _record_look(self, found: FileSystem) -> NextLook:
        with self._lock:
            self._looked_at = time.monotonic()
            return self.policy.record_look(self._looked_at, found)

    def walk(self) -> None:
        """Count the files, or take the file system's own figure. Raises OSError."""
        with self._walking:
            self._walk(self._is_closed.is_set)

    def _walk(self, stop: Callable[[], bool]) -> None:
        before = self._read()
        if self.policy.is_own(before):
            walked = disk_usage.DiskUsage(before.used_bytes, 0, 0, 0.0)
        else:
            walked = disk_usage.count(self.path, rest_seconds=REST_SECONDS, stop=stop)
        if stop():
            return
        after = self._read()
        with self._lock:
            now = self._walked_at = time.monotonic()
            self._walk_seconds = walked.busy_seconds
            self.policy.record_look(now, after)
            self.policy.record_walk(now, before, walked)

    def judge_estimate(self, written_bytes: int) -> None:
        with self._lock:
            self.policy.judge_estimate(written_bytes)

    def settle(self, *, is_solved: bool) -> None:
        with self._lock:
            self.policy.settle(is_solved=is_solved)

    def blame(self, candidates: Collection[Candidate], used_before: int) -> BlamedTree | None:
        with self._lock:
            return self.policy.blame(candidates, used_before)

    def take(self, n_bytes: int) -> None:
        with self._lock:
            if (
                self.policy.is_known
                and time.monotonic() - self._looked_at < FRESH_SECONDS
                and self.policy.take(n_bytes)
            ):
                return
        try:
            self.look()
            if self._take(n_bytes):
                return
            self._walk_for_upload()
        except OSError:
            return  # the write itself tells what is wrong with the directory
        if not self._take(n_bytes):
            held, limit = self.facts()["used_bytes"] or 0, self.policy.limit_bytes
            reserve = limit - self.policy.threshold_bytes
            raise NoSpace(
                f"{self.path!r} holds {held >> 20:,} MiB of the allowed {limit >> 20:,} MiB, and "
                f"execd keeps {reserve >> 20:,} MiB of them free"
            )

    def _take(self, n_bytes: int) -> bool:
        with self._lock:
            return self.policy.is_known and self.policy.take(n_bytes)

    def _walk_for_upload(self) -> None:
        """Walk, unless another walk has just ended, or takes too long to wait for."""
        until = time.monotonic() + UPLOAD_WALK_SECONDS
        if not self._walking.acquire(timeout=UPLOAD_WALK_SECONDS):
            return
        try:
            if time.monotonic() - self._walked_at >= self._walk_seconds:
                self._walk(lambda: self._is_closed.is_set() or time.monotonic() > until)
        finally:
            self._walking.release()


class Volumes:
    """The guarded directories. Implements ``files.root.Rooms``."""

    def __init__(self, volumes: Collection[Volume]) -> None:
        self._volumes = volumes

    def of(self, fd: int) -> Room | None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        found: tuple[int, Volume] | None = None
        for volume in self._volumes:
            top = os.path.realpath(volume.path)
            is_below = path == top or path.startswith(top.rstrip("/") + "/")
            if is_below and (found is None or len(top) > found[0]):
                found = len(top), volume
        return None if found is None else found[1]
