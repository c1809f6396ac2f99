"""Files for the event loop: ``execd.files`` on threads of its own, in constant memory.

Theory. A disk can hang (NFS, FUSE, a gofer under load), and no thread that waits for one can be called back. Hence:

* Every call that touches the disk runs on the executor made here. Its few threads are all that a hung disk can take;
  the loop and other users of threads go on.
* A caller may be cancelled while its call runs. The call runs on alone, so what it makes must not be lost (a descriptor
  opened for nobody is closed again: ``undo``), and what it uses must not be closed under it: each open file and each
  upload has a lock, which its calls hold on their thread, and its end takes the lock like any other call.
* The end of a file or upload is on the executor before it is first awaited: a second cancellation cannot prevent it.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self, TypeVar

from execd.errors import Unavailable
from execd.files import listing, read, write
from execd.files.root import Root, settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.files.listing import Entry

# Enough that a few transfers from slow mounts leave room for others; no more, since two cores gain nothing from it and
# each costs a stack.
MAX_THREADS = 8

T = TypeVar("T")


class Files:
    """The files below one base dir. Owns an executor; ``close`` ends it.

    Paths are as they came over the wire, decoded once, UTF-8 with surrogateescape; ``execd.files.paths`` and ``root`` say
    what they mean. Every method may raise PermissionDenied (a path that leaves the base dir, or where the daemon has no rights),
    InvalidArgument (a name that no file can have), Conflict (the base dir is no directory, or the path does not hold
    still), ResourceExhausted (out of descriptors), Unavailable (after ``close``).
    """

    def __init__(self, base_dir: str, *, state_dir: str | None = None, max_upload_bytes: int = 0) -> None:
        """``max_upload_bytes`` 0 means no limit. Nothing below ``state_dir`` is ever served, wherever it lies."""
        self._root = Root(base_dir, state_dir)
        self._max_upload_bytes = max_upload_bytes
        self._executor = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="files")

    async def open(self, path: str) -> OpenedFile:
        """Open a regular file; the caller leaves it as a context. Raises NotFound for anything else."""
        file = await self._run(lambda: read.open_file(self._root, path), undo=read.RegularFile.close)
        return OpenedFile(self, file)

    async def list(self, path: str) -> list[Entry]:
        """The entries of a directory, sorted by the bytes of their names. Raises NotFound for anything else."""
        return await self._run(lambda: listing.entries(self._root, path))

    async def exists(self, path: str) -> bool:
        """Whether there is anything at ``path``, at the end of its links."""
        return await self._run(lambda: read.exists(self._root, path))

    async def create(self, path: str) -> Upload:
        """Begin to write a file; the caller leaves the upload as a context. Missing parents are made.

        Raises InvalidArgument (a directory, or a parent that is none), NoSpace, ReadOnly.
        """
        draft = await self._run(lambda: write.create(self._root, path, self._max_upload_bytes), undo=write.Draft.abort)
        return Upload(self, draft)

    async def ensure_base_dir(self) -> None:
        """Make the base dir if it is gone. The other methods do so by themselves."""
        await self._run(lambda: settle(self._root.ensure, self._root.base_dir))

    def close(self) -> None:
        """Take no more calls. Those under way end on their threads, which are not waited for: a disk may hang."""
        self._executor.shutdown(wait=False)

    async def _run(self, call: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        """The result of ``call``, from a thread. If nobody is there any more to take it, it goes to ``undo``."""
        try:
            future = asyncio.get_running_loop().run_in_executor(self._executor, call)
        except RuntimeError:
            raise Unavailable("no more file operations: shutting down") from None
        try:
            # Not shield: that one reports the exception of a call whose caller is gone (Python 3.14) as unhandled.
            await asyncio.wait((future,))
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: self._abandon(done, undo))
            raise
        return future.result()

    def _abandon(self, done: asyncio.Future[T], undo: Callable[[T], None] | None) -> None:
        # Asking for the exception marks it as seen. It was meant for a caller that is gone.
        if not done.cancelled() and done.exception() is None and undo is not None:
            self._end(lambda: undo(done.result()))

    def _end(self, call: Callable[[], None]) -> asyncio.Future[None]:
        """Run ``call`` on a thread, or here when there are none any more. It is sure to run, awaited or not."""
        loop = asyncio.get_running_loop()
        try:
            return loop.run_in_executor(self._executor, call)
        except RuntimeError:
            call()
            finished = loop.create_future()
            finished.set_result(None)
            return finished


class OpenedFile:
    """A regular file, open for reading: an async context manager that closes it. What it reads is the file that was
    opened, whatever becomes of the name."""

    def __init__(self, files: Files, file: read.RegularFile) -> None:
        self._files = files
        self._file = file
        self._lock = threading.Lock()
        self.name = file.name
        """The last name of the path as asked."""
        self.size_bytes = file.size_bytes
        """As it was opened; what is read may end before or after it."""
        self.modified_at = file.modified_at
        """Seconds since the epoch."""
        self.etag = file.etag
        """A strong validator, with its quotes."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.wait((self._files._end(self._close),))

    async def read(self, offset: int, size_bytes: int) -> bytes:
        """At most ``size_bytes`` from ``offset`` on, no bytes at the end of the file."""
        return await self._files._run(lambda: self._read(offset, size_bytes))

    def _read(self, offset: int, size_bytes: int) -> bytes:
        with self._lock:
            return self._file.read(offset, size_bytes)

    def _close(self) -> None:
        with self._lock:
            self._file.close()


class Upload:
    """A file in the making: an async context manager. Leaving it without ``commit`` leaves nothing behind."""

    def __init__(self, files: Files, draft: write.Draft) -> None:
        self._files = files
        self._draft = draft
        self._lock = threading.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.wait((self._files._end(self._abort),))

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append ``data``, which must not change before this returns, nor after a cancellation.

        Raises PayloadTooLarge (past ``max_upload_bytes``), NoSpace, ReadOnly, PermissionDenied; then it is over.
        """
        await self._files._run(lambda: self._write(data))

    async def commit(self) -> None:
        """Put the file in the place of the old one, in one step. Raises as ``write``, and Conflict if its directory is
        gone; the upload is over then. A cancelled commit may have happened."""
        await self._files._run(self._commit)

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        with self._lock:
            self._draft.write(data)

    def _commit(self) -> None:
        with self._lock:
            self._draft.commit()

    def _abort(self) -> None:
        with self._lock:
            self._draft.abort()
