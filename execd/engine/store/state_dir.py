"""The state dir as a service for the event loop: spools of output, the journal, the disk budget.

``state_folder`` finds, opens and keeps the folder. This module runs all disk work in threads, so
that a hung disk stops logs and not the loop:

* SPOOL_THREADS threads read and write the spools (``Spool``).
* One thread writes the journal (``journal``). The records stay in order, and no log delays them.

A write of the journal has a deadline of DISK_SECONDS. A thread that waits for a disk cannot be
called back, so the write goes on after its deadline. Until the disk answers, later writes wait in
the thread's queue, and their callers get an answer at once.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import functools
import logging
import os
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from execd.engine.store.journal import EpisodeRecorded, Journal
from execd.engine.store.state_folder import StateFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from execd.engine.store.journal import Record

logger = logging.getLogger(__name__)

T = TypeVar("T")

SPOOL_THREADS = 4
# Longer than a disk with trouble takes, shorter than a caller's patience.
DISK_SECONDS = 2.0
NO_SPACE = os.strerror(errno.ENOSPC)


class StateDirError(Exception):
    """The state dir cannot be used. The message names the directory and the reason."""


class StateDir:
    """Own the folder, the journal, the threads and the disk budget. ``close`` releases them."""

    def __init__(
        self,
        path: str,
        max_bytes: int,
        links: Mapping[str, str],
        is_uncovered: Callable[[], bool] = lambda: True,
        *,
        commands_uid: int | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the state dir at ``path`` and read the journal. Raises StateDirError.

        ``max_bytes`` bounds all spools together. ``links``, ``is_uncovered`` and ``commands_uid``:
        see ``StateFolder``. ``on_failure`` is called when the journal cannot be written, and should
        lead to a ``repair``.
        """
        self.bin_dir = os.path.join(path, "bin")
        self.logs_dir = os.path.join(path, "logs")
        self.used_bytes = 0
        self.max_bytes = max_bytes
        self._budget = threading.Lock()
        """Held to change ``used_bytes``: the threads of checkpoints take of the budget too."""
        self._path = path
        self._on_failure = on_failure
        self._last_failure: str | None = None
        """The failure logged last: a failure is logged once, not at each write."""
        self._hung_write: asyncio.Future[str | None] | None = None
        """The write of the journal under way after the deadline."""
        with contextlib.ExitStack() as undo:
            try:
                self.folder = undo.enter_context(
                    contextlib.closing(
                        StateFolder(path, links, is_uncovered, commands_uid=commands_uid)
                    )
                )
                self.journal = Journal("journal", self.folder.dir_fd)
                undo.callback(self.journal.close)
                self.former_executions = self.journal.load()
                self.former_shortage = self.journal.shortage
                if self.journal.state.episode is None:
                    with contextlib.suppress(OSError):  # the journal catches up
                        self.journal.append(EpisodeRecorded(secrets.token_hex(6), 1))
                if self.journal.damaged_bytes:
                    extra = {"path": path, "damaged_bytes": self.journal.damaged_bytes}
                    logger.error("the journal is damaged", extra=extra)
                self.folder.remove_logs(except_of=self.former_executions)
            except BlockingIOError:
                raise StateDirError(f"--state-dir: {path} is in use by another execd") from None
            except OSError as error:
                where = "" if error.filename in (None, path) else f" ({error.filename})"
                raise StateDirError(f"--state-dir: {path}: {error.strerror}{where}") from error
            undo.pop_all()
        self.threads = ThreadPoolExecutor(SPOOL_THREADS, thread_name_prefix="spool")
        self._journal_thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    # The journal.

    async def write_journal(self, record: Record) -> str | None:
        """Append a record. Return None, or the reason why the record may not survive a restart.

        Waits DISK_SECONDS at most; returns at once while an earlier write hangs.
        """
        return await self._run_in_journal_thread(functools.partial(self._append, record))

    async def repair(self) -> str | None:
        """Make removed files again, and write refused records. Return the failure."""
        if self.is_hung:
            return None
        failure = await self._run_in_journal_thread(self._repair)
        if failure is None and not self.is_hung:
            self._last_failure = None
        return failure

    @property
    def has_failed(self) -> bool:
        """Whether the latest work on the journal failed, so that a repair is due."""
        return self._last_failure is not None or self.is_hung

    @property
    def is_hung(self) -> bool:
        """Whether a write of the journal has passed its deadline and still waits for the disk."""
        return self._hung_write is not None

    def _append(self, record: Record) -> None:
        try:
            self.journal.append(record)
        except OSError:
            if self.journal.is_in_place:
                raise
        # A write into a removed file succeeds, so the place is checked after the write. The journal
        # has noted the record by now, and the repair writes the record to the new file.
        if not self.journal.is_in_place:
            self._repair()

    def _repair(self) -> None:
        self.folder.ensure()
        self.journal.repair()

    async def _run_in_journal_thread(self, work: Callable[[], None]) -> str | None:
        """Run ``work`` after all earlier work. Return the failure, as far as known at the deadline.

        ``work`` runs even if no caller waits any more.
        """
        doing = asyncio.get_running_loop().run_in_executor(self._journal_thread, _failure_of, work)
        if not self.is_hung:
            await asyncio.wait((doing,), timeout=DISK_SECONDS)
        if doing.done():
            failure = doing.result()
        else:
            failure = f"the disk did not answer for {DISK_SECONDS:g} s"
            if not self.is_hung:
                self._hung_write = doing
                doing.add_done_callback(self._on_answer)
        if failure is not None:
            self._on_failure()
        if failure is not None and failure != self._last_failure:
            self._last_failure = failure
            extra = {"path": self._path, "error": failure}
            if self.is_hung:  # a busy machine delays writes by seconds
                logger.warning("the state dir does not answer", extra=extra)
            else:
                logger.error("the state dir cannot be used", extra=extra)
        return failure

    def _on_answer(self, _: asyncio.Future[str | None]) -> None:
        self._hung_write = None

    # Spools.

    def spool(self, name: str, max_bytes: int) -> Spool:
        """Make the spool of one stream. The first write makes the file ``logs/<name>``."""
        return Spool(self, os.path.join("logs", name), max_bytes)

    def reserve(self, wanted_bytes: int) -> int:
        """Take up to ``wanted_bytes`` of the disk budget. Return the number of bytes granted. Any
        thread may call."""
        assert wanted_bytes >= 0
        with self._budget:
            granted_bytes = max(0, min(wanted_bytes, self.max_bytes - self.used_bytes))
            self.used_bytes += granted_bytes
        return granted_bytes

    def release(self, size_bytes: int) -> None:
        """Return granted bytes to the disk budget."""
        with self._budget:
            assert 0 <= size_bytes <= self.used_bytes, "more is returned than was granted"
            self.used_bytes -= size_bytes

    def close(self, within_seconds: float = DISK_SECONDS) -> None:
        """Close everything. Wait ``within_seconds`` at most for the journal's last records."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        # The journal is closed in the journal's thread, after the records in the queue.
        closing = self._journal_thread.submit(self.journal.close)
        self._journal_thread.shutdown(wait=False)
        if not self.is_hung:
            concurrent.futures.wait((closing,), min(DISK_SECONDS, within_seconds))
        self.folder.close()


class Spool:
    """The first bytes of one output stream, at most ``max_bytes``, in a file of the state dir.

    Owner. The event loop owns a spool; the blocking calls run in the state dir's threads. Writes
    come one at a time, in order; reads may run at the same time as a write, and also after the end.

    Descriptor. A spool holds a descriptor from its first write to ``finish``. A call after
    ``finish`` opens the file again, so a finished log costs no descriptor. A thread works on a
    duplicate of the descriptor. Without the duplicate, two orders of events would differ: "thread
    reads the number, loop closes the descriptor, another open gets the same number, thread writes"
    would write into a foreign file. With the duplicate, both orders write into the spool's file.

    End. A write that waits for a thread while ``finish`` is called stores its bytes all the same:
    the answer of a timed-out cell does not wait for a slow disk. Only ``remove`` drops the bytes.

    Deadline. A call that the disk does not answer within DISK_SECONDS is given up, and the spool
    takes no more bytes: no reply waits for a hung disk.

    Await each ``write`` before the next one. ``finish`` does not wait for the last write.
    """

    def __init__(self, host: StateDir, path: str, max_bytes: int) -> None:
        """``path`` starts at the state dir's folder. No file is made yet."""
        self.size_bytes = 0
        self.failure: str | None = None
        """Why the file holds fewer bytes than allowed: the disk, or the budget of all logs."""
        self.max_bytes = max_bytes
        self._host = host
        self._path = path
        self._fd: int | None = None
        self._fd_lock = threading.Lock()
        """Held to duplicate or to close ``_fd``, and never during a call that waits for a disk."""
        self._reserved_bytes = 0
        self._is_writing = False
        self._is_finished = False
        self._is_removed = False
        self._is_hung = False

    def adopt(self) -> None:
        """Take over the file that a former daemon wrote, if the file exists."""
        assert self.size_bytes == self._reserved_bytes == 0, "adopt before the first write"
        with contextlib.suppress(OSError):
            size_bytes = os.stat(self._path, dir_fd=self._host.folder.dir_fd).st_size
            self._reserved_bytes = self.size_bytes = self._host.reserve(size_bytes)

    @property
    def accepts(self) -> bool:
        """Whether the next write is stored, at least in part."""
        return self.failure is None and self.size_bytes < self.max_bytes and not self._is_removed

    async def write(self, data: bytes) -> None:
        """Append as many bytes of ``data`` as fit.

        Raises nothing for the disk's sake: a failure is noted, and ``accepts`` is then false.
        """
        if self._is_removed:
            return
        wanted_bytes = min(len(data), self.max_bytes - self.size_bytes)
        granted_bytes = self._host.reserve(wanted_bytes)
        self._reserved_bytes += granted_bytes
        if granted_bytes < wanted_bytes:
            self.failure = "the logs' share of the disk is used up"
        if granted_bytes:
            assert not self._is_writing, "one write at a time"
            self._is_writing = True
            await self._run_in_thread(functools.partial(self._write, data[:granted_bytes]))
            self._is_writing = False
        if self.failure is not None:
            logger.warning(
                "a log goes on in memory only", extra={"path": self._path, "error": self.failure}
            )

    def _write(self, data: bytes) -> None:
        if self._is_removed:
            return
        try:
            fd = self._duplicate_fd()
            if fd < 0:
                fd = self._open_for_writing()
            try:
                rest = memoryview(data)
                while rest and not self._is_removed:
                    written_bytes = os.pwrite(fd, rest, self.size_bytes)
                    self.size_bytes += written_bytes
                    rest = rest[written_bytes:]
            finally:
                os.close(fd)
        except OSError as error:
            self.failure = error.strerror or "input/output error"

    def _open_for_writing(self) -> int:
        """Open the file, which the first write makes, for one call in a thread. The spool keeps the
        descriptor until ``finish``."""
        folder = self._host.folder
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        is_made = not self.size_bytes
        if is_made:
            flags |= os.O_CREAT | os.O_EXCL
        try:
            fd = os.open(self._path, flags, 0o600, dir_fd=folder.dir_fd)
        except FileNotFoundError:
            if not is_made:
                raise  # a new file would have a hole in the place of the first bytes
            folder.ensure()  # the state dir was removed
            fd = os.open(self._path, flags, 0o600, dir_fd=folder.dir_fd)
        with self._fd_lock:
            if not self._is_finished:
                self._fd = fd
                return os.dup(fd)
        if self._is_removed and is_made:
            # Two orders of events: "make the file, remove", and the thread of ``remove`` unlinks
            # the file; "remove, make the file", and nobody else does.
            _unlink(self._path, folder.dir_fd)
        return fd

    def _duplicate_fd(self) -> int:
        """Duplicate the descriptor, for one call in a thread. -1: no descriptor is open."""
        with self._fd_lock:
            return -1 if self._fd is None else os.dup(self._fd)

    async def _run_in_thread(self, work: Callable[[], T]) -> T | None:
        """Run ``work`` in a thread. None: the disk does not answer; no later call tries again."""
        if self._is_hung:
            return None
        doing = asyncio.get_running_loop().run_in_executor(self._host.threads, work)
        done, _ = await asyncio.wait((doing,), timeout=DISK_SECONDS)
        if not done:
            self._is_hung = True
            self.failure = f"the disk did not answer for {DISK_SECONDS:g} s"
            return None
        return doing.result()

    async def read(self, offset: int, end: int) -> bytes | None:
        """Read the bytes [offset, end). None: the file is gone or shorter."""
        assert 0 <= offset <= end
        if end > self.size_bytes:
            return None
        return await self._run_in_thread(functools.partial(self._read, offset, end))

    def _read(self, offset: int, end: int) -> bytes | None:
        try:
            fd = self._open()
        except OSError:
            return None
        try:
            data = os.pread(fd, end - offset, offset)
            return data if len(data) == end - offset else None
        except OSError:
            return None
        finally:
            os.close(fd)

    def _open(self) -> int:
        fd = self._duplicate_fd()
        if fd >= 0:
            return fd
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._path, flags, dir_fd=self._host.folder.dir_fd)

    async def refresh_size(self) -> None:
        """Lower ``size_bytes`` to the file's size if somebody removed the file or cut bytes off.

        Only for a finished log: a descriptor keeps the bytes of a removed file. A late write may
        enlarge the file before the stat or after; the next call then looks again.
        """
        if not self._is_finished or self._is_writing:
            return
        expected_bytes = self.size_bytes
        size_bytes = await self._run_in_thread(self._stat_size)
        if self._is_writing or size_bytes is None:
            return
        if size_bytes < expected_bytes == self.size_bytes:
            self.size_bytes = size_bytes
            self.failure = "the log's file was removed or cut short"

    def _stat_size(self) -> int | None:
        """The file's size in bytes; 0: no file; None: unknown."""
        try:
            fd = self._open()
        except FileNotFoundError:
            return 0
        except OSError:
            return None
        try:
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    def finish(self) -> None:
        """Close the descriptor. The caller begins no further write. Idempotent."""
        with self._fd_lock:
            self._is_finished = True
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def remove(self) -> None:
        """Remove the file, in a thread, and return its bytes to the disk budget. Idempotent."""
        self._is_removed = True
        self.finish()
        self._host.threads.submit(_unlink, self._path, self._host.folder.dir_fd)
        self._host.release(self._reserved_bytes)
        self._reserved_bytes = self.size_bytes = 0


def _unlink(path: str, folder: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path, dir_fd=folder)


def _failure_of(work: Callable[[], None]) -> str | None:
    try:
        work()
    except OSError as error:
        return error.strerror or "input/output error"
    return None
