"""Checkpoints of directories for the event loop: make, compare, restore and verify.

* One operation at a time, because a restore, a new checkpoint and a removal must not meet.
* User code can call the routes, so all work on its files runs on threads that act as the user of
  commands. The daemon's own folder (``Shelf``) is touched with the daemon's rights only, and hands
  out descriptors.
* A cancelled caller leaves its operation to the thread, which ends early where it can. The next
  operation waits for that end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from execd.engine.files.threads import FileThreads
from execd.engine.sessions.session_table import check_id
from execd.engine.store.state_dir import StateDirError
from execd.errors import Conflict, InvalidArgument, NotFound, Unavailable
from execd.files.checkpoints.crew import Crew
from execd.files.checkpoints.operations import Operations
from execd.files.checkpoints.root_places import is_in
from execd.files.checkpoints.shelf import Damaged, Shelf
from execd.proc.spawn import KEEP_IDENTITY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execd.engine.store.state_dir import StateDir
    from execd.files.checkpoints.entries import Checkpoint as Checkpoint

    # ``as``: for the api, which must not import from the layer ``files``.
    from execd.files.checkpoints.entries import CheckpointRoot as CheckpointRoot
    from execd.files.checkpoints.entries import StoredCheckpoint, TreeEntry
    from execd.files.checkpoints.entries import TreeChange as TreeChange
    from execd.files.checkpoints.operations import How, Verified
    from execd.files.checkpoints.restore import Restored
    from execd.files.root import Root
    from execd.proc.spawn import Identity

log = logging.getLogger(__name__)

T = TypeVar("T")

START = "start"
"""The checkpoint that a reset takes by itself: never removed or replaced."""
START_SECONDS = 10.0
N_HELPERS = 1
"""Threads that hash and copy large files beside the thread of the operation: two keep two CPUs
busy. Three helpers were no faster with large files, and took 1.5 times as long for 64 KiB."""


class Checkpoints:
    """All checkpoints of the state dir. ``close`` refuses further operations."""

    def __init__(self, store: StateDir, root: Root, identity: Identity, max_bytes: int) -> None:
        """``root``: with paths as user code sees them. ``max_bytes``: of all checkpoints."""
        self._store = store
        self._root = root
        self._max_bytes = max_bytes
        self._table: dict[str, Checkpoint] = {}
        self._unreadable: dict[str, str] = {}
        """Checkpoints of a former daemon, with the reasons. They stay until they are deleted: a new
        ``START`` in the place of an unreadable one would hold what user code has left."""
        self._stops: set[threading.Event] = set()
        """Of the operations that end early, under way or waiting for their turn."""
        self.threads = FileThreads(identity, "checkpoints", N_HELPERS + 1, n_long=1)
        """For operations, one at a time, and beside them for reads of exports."""
        self._own_thread: ThreadPoolExecutor | None = None
        if identity != KEEP_IDENTITY:
            self._own_thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-shelf")
            self._start_threads(self._own_thread)
        self._opened_shelf: Shelf | None = None
        self._used_bytes = 0
        """Taken of the state dir's budget."""
        crew = Crew(self.threads.executor, N_HELPERS)
        self._operations = Operations(root, self._own, crew, self._shelf)

    # Life.

    def _start_threads(self, own_thread: ThreadPoolExecutor) -> None:
        """Start all threads now, since threads change their user: a thread has the user of the
        thread that starts it. That user may not be able to read the modules of Python."""
        import hashlib  # noqa: F401

        own_thread.submit(int)
        together = threading.Barrier(N_HELPERS + 1)
        for _ in range(N_HELPERS + 1):
            self.threads.executor.submit(together.wait, START_SECONDS)

    async def load(self) -> None:
        """Read the checkpoints of a former daemon, and remove what such a daemon has left behind
        half made. Raises StateDirError."""
        try:
            await self._run(lambda _: self._own(self._load))
        except OSError as error:
            raise StateDirError(f"--state-dir: checkpoints: {error.strerror}") from error

    def _load(self) -> None:
        shelf = self._shelf()
        for checkpoint_id in shelf.ids():
            try:
                self._table[checkpoint_id] = shelf.load(checkpoint_id).facts
            except (Damaged, OSError) as error:
                extra = {"checkpoint_id": checkpoint_id, "error": str(error)}
                log.error("a checkpoint cannot be read", extra=extra)
                self._unreadable[checkpoint_id] = str(error)
        self._sweep()

    def close(self) -> None:
        """Does not wait for the threads: a disk may hang."""
        self.threads.close()
        if self._own_thread is not None:
            self._own_thread.shutdown(wait=False)

    def _close_shelf(self) -> None:
        if self._opened_shelf is not None:
            self._opened_shelf.close()
            self._opened_shelf = None

    # Operations.

    async def create(
        self,
        checkpoint_id: str | None,
        roots: Sequence[str],
        watched: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> Checkpoint:
        """Keep the content of ``roots`` and the manifests of ``watched``.

        Raises InvalidArgument and NotFound, which name the field; Conflict (the id is taken, a file
        cannot be read); PayloadTooLarge (too many files); NoSpace, with ``needed_bytes``.
        """
        new_id = check_id(checkpoint_id)
        if not roots and not watched:
            raise InvalidArgument("roots: at least one directory", field="roots")

        def work(stop: Callable[[], bool]) -> Checkpoint:
            self._check_readable(new_id)
            if new_id in self._table:
                raise Conflict(
                    f"there is a checkpoint {new_id!r} already; use another id, or delete "
                    f"that checkpoint ({START!r} is never deleted)"
                )
            try:
                self._table[new_id] = self._operations.create(
                    new_id, roots, watched, exclude, self._reserve, stop
                )
            finally:
                self._own(self._sweep)
            return self._table[new_id]

        return await self._run(work)

    def get(self, checkpoint_id: str) -> Checkpoint:
        """Raises NotFound; Conflict (the checkpoint cannot be read)."""
        self._check_readable(checkpoint_id)
        found = self._table.get(checkpoint_id)
        if found is None:
            raise NotFound(f"there is no checkpoint {checkpoint_id!r}")
        return found

    def _check_readable(self, checkpoint_id: str) -> None:
        reason = self._unreadable.get(checkpoint_id)
        if reason is not None:
            raise Conflict(
                f"the checkpoint {checkpoint_id!r} cannot be read: {reason}; delete the "
                f"checkpoint, or use a new --state-dir if it is {START!r}"
            )

    async def delete(self, checkpoint_id: str) -> None:
        """Remove a checkpoint. Raises NotFound, Conflict for ``START``."""
        if checkpoint_id == START:
            self.get(checkpoint_id)
            raise Conflict(f"the checkpoint {START!r} is never removed; use a new sandbox")

        def remove() -> None:
            if checkpoint_id not in self._unreadable:
                self.get(checkpoint_id)
            self._shelf().remove(checkpoint_id)
            self._table.pop(checkpoint_id, None)
            self._unreadable.pop(checkpoint_id, None)
            self._sweep()

        await self._run(lambda _: self._own(remove))

    async def delete_later(self, checkpoint: Checkpoint) -> dict[str, str]:
        """Remove the checkpoints that were made after this one, all but ``START``. Return those
        that cannot be removed, by id, with the reason."""

        def remove() -> dict[str, str]:
            troubles = {}
            for other in list(self._table.values()):
                if other.created_at < checkpoint.created_at or other.id in (START, checkpoint.id):
                    continue
                try:
                    self._shelf().remove(other.id)
                except FileNotFoundError:
                    pass
                except (OSError, Unavailable) as error:
                    troubles[other.id] = str(error)
                    continue
                del self._table[other.id]
            self._sweep()
            return troubles

        return await self._run(lambda _: self._own(remove), stops=False)

    async def changes(self, checkpoint_id: str, path: str | None = None) -> list[TreeChange]:
        """Return what has changed since, in the order of roots and names. ``path``: only this file,
        or what is below this directory.

        Raises NotFound, InvalidArgument (the path is in no root), Conflict, PayloadTooLarge.
        """
        self.get(checkpoint_id)
        return await self._run(lambda stop: self._changes(checkpoint_id, path, stop))

    def _changes(
        self, checkpoint_id: str, path: str | None, stop: Callable[[], bool]
    ) -> list[TreeChange]:
        stored = self._stored(checkpoint_id)
        if path is None:
            return self._operations.changes(stored, stop)
        joined = os.path.join(self._root.base_dir, path)
        wanted = {os.path.normpath(joined), os.path.realpath(joined)}
        roots = [manifest.root for manifest in stored.manifests]
        if not any(is_in(each, root) or is_in(root, each) for each in wanted for root in roots):
            raise InvalidArgument(
                f"path: {path!r} is in no directory of the checkpoint", field="path"
            )
        return [
            change
            for change in self._operations.changes(stored, stop)
            if any(is_in(change.full_path, each) for each in wanted)
        ]

    async def restore(self, checkpoint_id: str, how: How = "auto") -> Restored:
        """Make the roots as they were. What cannot be restored is in the result.

        Raises NotFound.
        """
        self.get(checkpoint_id)
        return await self._run(
            lambda stop: self._operations.restore(self._stored(checkpoint_id), how, stop),
            stops=False,
        )

    async def verify(
        self, checkpoint_id: str, how: How = "auto", after: Restored | None = None
    ) -> Verified:
        """Compare roots and watched directories with the checkpoint. ``after``: a restore that
        began when all user code had ended. Raises NotFound."""
        self.get(checkpoint_id)
        seen = None if after is None else after.seen
        return await self._run(
            lambda stop: self._operations.verify(self._stored(checkpoint_id), how, stop, seen)
        )

    def open_old(self, checkpoint_id: str, entry: TreeEntry) -> int:
        """Open the kept content of a file; the caller closes the descriptor. Blocking. Raises
        OSError if the checkpoint was deleted meanwhile."""
        self.get(checkpoint_id)

        def opened() -> int:
            with contextlib.closing(Shelf(self._store.folder.dir_fd)) as shelf:
                return shelf.open_content(entry.digest)

        return self._own(opened)

    def open_new(self, root: str, entry: TreeEntry) -> int:
        """Open a present file, if it is the scanned one; the caller closes the descriptor.
        Blocking, for one of ``threads``. Raises Conflict, OSError."""
        return self._operations.open_new(root, entry)

    # Steps.

    async def _run(self, work: Callable[[Callable[[], bool]], T], *, stops: bool = True) -> T:
        """Run an operation alone. ``work`` gets a function to ask whether to end early: the caller
        is gone, or ``stop_others`` was called. ``stops``: whether the operation does so."""
        stopped = threading.Event()
        if stops:
            self._stops.add(stopped)

        def alone(is_left: Callable[[], bool]) -> T:
            try:
                return work(lambda: stops and (stopped.is_set() or is_left()))
            finally:
                self._close_shelf()

        try:
            return await self.threads.run_long(alone)
        finally:
            self._stops.discard(stopped)

    def stop_others(self) -> None:
        """End the operations of the former episode: those that write no files of user code end
        early, with Conflict for a caller that still waits."""
        for stopped in self._stops:
            stopped.set()

    def _own(self, call: Callable[[], T]) -> T:
        """Run a call with the daemon's rights."""
        return call() if self._own_thread is None else self._own_thread.submit(call).result()

    def _shelf(self) -> Shelf:
        """Return the shelf of the operation under way, which is closed after it. Raises
        Unavailable."""
        if self._opened_shelf is None:
            try:
                self._opened_shelf = Shelf(self._store.folder.dir_fd)
            except OSError as error:
                raise Unavailable(
                    f"no checkpoints in the state dir ({error.strerror}); set another --state-dir"
                ) from None
        return self._opened_shelf

    def _stored(self, checkpoint_id: str) -> StoredCheckpoint:
        """Raises NotFound."""
        self.get(checkpoint_id)
        try:
            return self._own(lambda: self._shelf().load(checkpoint_id))
        except Damaged as error:
            raise NotFound(
                f"the files of the checkpoint {checkpoint_id!r} are damaged or gone ({error}); "
                "make another checkpoint"
            ) from None
        except OSError as error:
            raise Unavailable(
                f"the checkpoint {checkpoint_id!r} cannot be read now ({error.strerror}); repeat "
                "the request"
            ) from None

    def _reserve(self, n_bytes: int) -> int:
        """Take room for a new checkpoint. Return the bytes that are lacking; nothing is taken
        then."""
        lacking_bytes = max(0, self._used_bytes + n_bytes - self._max_bytes)
        if not lacking_bytes:
            granted_bytes = self._store.reserve(n_bytes)
            lacking_bytes = n_bytes - granted_bytes
            if lacking_bytes:
                self._store.release(granted_bytes)
            else:
                self._used_bytes += n_bytes
        return lacking_bytes

    def _sweep(self) -> None:
        """Remove what belongs to no checkpoint, and take the budget for the rest."""
        try:
            n_bytes = self._shelf().sweep(self._table, self._unreadable)
        except (OSError, Damaged, Unavailable) as error:
            log.error("the folder of checkpoints cannot be tidied", extra={"error": str(error)})
            return
        if n_bytes > self._used_bytes:
            self._used_bytes += self._store.reserve(n_bytes - self._used_bytes)
        else:
            self._store.release(self._used_bytes - n_bytes)
            self._used_bytes = n_bytes

    def list(self) -> list[Checkpoint]:
        """Return all checkpoints, the oldest first. Behind the annotations with ``list``."""
        return sorted(self._table.values(), key=lambda each: (each.created_at, each.id))
