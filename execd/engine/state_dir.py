"""The state dir: execd's own folder. Links to the user's Python, and the part of large outputs that memory does not hold.

    bin/    python and python3, for PATH; in namespaces user code sees this and nothing else of the folder
    logs/   one file per spooled stream, gone with its execution
    journal keyed and detached executions, see ``journal``
    lock    held for life: two daemons on one state dir would delete each other's logs

All disk work is done in threads of the store's own, so that a hung disk can stop logs but not the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from execd.engine.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from execd.engine.journal import Record

logger = logging.getLogger(__name__)

SPOOL_THREADS = 4
# Longer than a disk with trouble takes, shorter than a caller's patience.
DISK_SECONDS = 2.0

T = TypeVar("T")


class StateDirError(Exception):
    """The state dir cannot be used; the message says why and names it."""


class StateDir:
    """Owns the folder, its lock, the spool threads and the disk budget. ``close`` gives all of it back."""

    def __init__(self, path: str, max_bytes: int, links: Mapping[str, str]) -> None:
        self.path = path
        self.bin_dir = os.path.join(path, "bin")
        self.logs_dir = os.path.join(path, "logs")
        self.used_bytes = 0
        self.max_bytes = max_bytes
        self._links = dict(links)
        try:
            self.ensure()
            self._lock = os.open(os.path.join(path, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateDirError(f"--state-dir: {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise StateDirError(f"--state-dir: {path} is in use by another execd") from None
        self.journal = Journal(os.path.join(path, "journal"))
        try:
            self.past = self.journal.load()
            self._remove_logs(except_of=self.past)
        except OSError as error:
            self.journal.close()
            os.close(self._lock)
            raise StateDirError(f"--state-dir: {path}: {error.strerror}") from error
        self._journal_turn = threading.Lock()
        self.threads = ThreadPoolExecutor(SPOOL_THREADS, thread_name_prefix="spool")

    def ensure(self) -> None:
        """Make what is missing: also called later, since somebody may remove the folder. Raises OSError.

        Others may pass through (a ``--run-as`` user needs bin/), nobody else may list it.
        """
        os.makedirs(self.path, mode=0o711, exist_ok=True)
        os.makedirs(self.bin_dir, mode=0o755, exist_ok=True)
        os.makedirs(self.logs_dir, mode=0o700, exist_ok=True)
        for name, target in self._links.items():
            link = os.path.join(self.bin_dir, name)
            if not os.path.islink(link) or os.readlink(link) != target:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(link)
                os.symlink(target, link)

    def _remove_logs(self, except_of: Container[str]) -> None:
        """What a former daemon left behind, and its journal does not name, belongs to nobody any more."""
        for name in os.listdir(self.logs_dir):
            if name.rpartition(".")[0] not in except_of:
                os.unlink(os.path.join(self.logs_dir, name))

    async def write_journal(self, record: Record) -> None:
        """Never raises: a full disk costs the memory of this over a restart, and the log says so."""
        try:
            await asyncio.get_running_loop().run_in_executor(self.threads, self._append, record)
        except OSError as error:
            logger.warning("the journal cannot be written", extra={"path": self.path, "error": error.strerror})

    def _append(self, record: Record) -> None:
        with self._journal_turn:
            self.journal.append(record)

    def spool(self, name: str, max_bytes: int) -> Spool:
        return Spool(self, os.path.join(self.logs_dir, name), max_bytes)

    def reserve(self, wanted_bytes: int) -> int:
        """Take up to so much of the budget; how much there was."""
        granted = max(0, min(wanted_bytes, self.max_bytes - self.used_bytes))
        self.used_bytes += granted
        return granted

    def release(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)
        self.journal.close()
        os.close(self._lock)


class Spool:
    """The first bytes of one stream on disk, at most ``max_bytes``. Write in order, one write at a time; then ``finish``."""

    def __init__(self, state_dir: StateDir, path: str, max_bytes: int) -> None:
        self.size_bytes = 0
        self.failure: str | None = None
        """Why it holds less than it might: the disk, or the budget of all logs together."""
        self._state_dir = state_dir
        self._path = path
        self.max_bytes = max_bytes
        self._fd: int | None = None
        self._fd_turn = threading.Lock()
        """Held to take a copy of ``_fd`` or to close it, and by nobody who waits for a disk."""
        self._reserved_bytes = 0
        self._is_finished = False
        self._is_hung = False

    def adopt(self) -> None:
        """Take over the file that a former daemon wrote, if it is there."""
        with contextlib.suppress(OSError):
            size_bytes = os.stat(self._path).st_size
            self._reserved_bytes = self.size_bytes = self._state_dir.reserve(size_bytes)

    @property
    def accepts(self) -> bool:
        return self.failure is None and self.size_bytes < self.max_bytes

    async def write(self, data: bytes) -> None:
        """Append as much as fits. Never raises for the disk's sake: it notes the failure and accepts no more."""
        wanted = min(len(data), self.max_bytes - self.size_bytes)
        granted = self._state_dir.reserve(wanted)
        self._reserved_bytes += granted
        if granted < wanted:
            self.failure = "the logs' share of the disk is used up"
        if granted:
            await self._in_thread(functools.partial(self._write, data[:granted]))
        if self.failure is not None:
            logger.warning("a log goes on in memory only", extra={"path": self._path, "error": self.failure})

    def _write(self, data: bytes) -> None:
        try:
            if self._fd is None and not self._is_finished:
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
                try:
                    self._fd = os.open(self._path, flags, 0o600)
                except FileNotFoundError:
                    self._state_dir.ensure()  # somebody removed the state dir: it is made again
                    self._fd = os.open(self._path, flags, 0o600)
            fd = self._copy()
            try:
                view = memoryview(data)
                while view and fd >= 0:
                    written = os.pwrite(fd, view, self.size_bytes)
                    self.size_bytes += written
                    view = view[written:]
            finally:
                if fd >= 0:
                    os.close(fd)
        except OSError as error:
            self.failure = error.strerror or "input/output error"

    def _copy(self) -> int:
        """Of our descriptor, or -1. ``finish`` may close the original meanwhile, and its number come to mean another file."""
        with self._fd_turn:
            return -1 if self._fd is None else os.dup(self._fd)

    async def _in_thread(self, work: Callable[[], T]) -> T | None:
        """What it returns, or None when the disk does not answer: then it is given up, so that no answer waits for it."""
        if self._is_hung:
            return None
        doing = asyncio.get_running_loop().run_in_executor(self._state_dir.threads, work)
        done, _ = await asyncio.wait((doing,), timeout=DISK_SECONDS)
        if not done:
            self._is_hung = True
            self.failure = f"the disk did not answer for {DISK_SECONDS:g} s"
            return None
        return doing.result()

    async def read(self, offset: int, end: int) -> bytes | None:
        """The bytes [offset, end), or None if the file is gone or shorter."""
        if end > self.size_bytes:
            return None
        return await self._in_thread(functools.partial(self._read, offset, end))

    def _read(self, offset: int, end: int) -> bytes | None:
        try:
            fd = self._copy()
            if fd < 0:
                fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            data = os.pread(fd, end - offset, offset)
            return data if len(data) == end - offset else None
        except OSError:
            return None
        finally:
            os.close(fd)

    def finish(self) -> None:
        """No more writes: a finished log costs no descriptor, later reads open it again."""
        with self._fd_turn:
            self._is_finished = True
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def remove(self) -> None:
        self.finish()
        self._state_dir.threads.submit(_unlink, self._path)
        self._state_dir.release(self._reserved_bytes)
        self._reserved_bytes = self.size_bytes = 0


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)  # a state dir that was removed took it along
