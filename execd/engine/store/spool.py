"""A spool: the first bytes of one output stream, in a file of the state dir.

Owner. The event loop owns a spool; the blocking calls run in the state dir's threads. Writes come
one at a time, in order; reads may run at the same time as a write, and also after the end.

Descriptor. A spool holds a descriptor from its first write to ``finish``. A call after ``finish``
opens the file again, so a finished log costs no descriptor. A thread works on a duplicate of the
descriptor. Without the duplicate, two orders of events would differ: "thread reads the number, loop
closes the descriptor, another open gets the same number, thread writes" would write into a foreign
file. With the duplicate, both orders write into the spool's file.

End. A write that waits for a thread while ``finish`` is called stores its bytes all the same: the
answer of a timed-out cell does not wait for a slow disk. Only ``remove`` drops the bytes.

Deadline. A call that the disk does not answer within DISK_SECONDS is given up, and the spool takes
no more bytes: no reply waits for a hung disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import threading
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from execd.engine.store.state_folder import StateFolder

logger = logging.getLogger(__name__)

# Longer than a disk with trouble takes, shorter than a caller's patience.
DISK_SECONDS = 2.0

T = TypeVar("T")


class SpoolHost(Protocol):
    """The part of the state dir for a spool."""

    @property
    def folder(self) -> StateFolder: ...

    @property
    def threads(self) -> Executor: ...

    def reserve(self, wanted_bytes: int) -> int:
        """Take up to ``wanted_bytes`` of the disk budget. Return the number of bytes granted."""

    def release(self, size_bytes: int) -> None:
        """Return granted bytes to the disk budget."""


class Spool:
    """The first bytes of one stream on disk, at most ``max_bytes``.

    Await each ``write`` before the next one. ``finish`` does not wait for the last write.
    """

    def __init__(self, host: SpoolHost, path: str, max_bytes: int) -> None:
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
