"""Files on their way: one that is open for reading, one that is being written. For the event loop,
as ``files`` has it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Self

from execd.errors import PayloadTooLarge, ResourceExhausted

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.engine.files.threads import FileThreads
    from execd.files import read
    from execd.files.append import InPlaceUpload
    from execd.files.archive.pack import Packing
    from execd.files.archive.tree import Unpacked
    from execd.files.archive.unpack import Extraction
    from execd.files.listing import Entry, Listing
    from execd.files.write import AtomicUpload

HASHED_AT_ONCE_BYTES = 4 << 20

# Four listings at once of 400,000 files take about 18 s on two busy CPUs. A reader that takes its
# reply slowly keeps its place.
LISTING_WAIT_SECONDS = 60


class OpenedFile:
    """A regular file, open for reading: an async context manager that closes it. What it reads is
    the file that was opened, whatever becomes of the name."""

    def __init__(self, threads: FileThreads, file: read.RegularFile) -> None:
        self._threads = threads
        self._file = file
        self._lock = threading.Lock()
        self._socket = -1
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
        await asyncio.wait((self._threads.end(self._close),))

    async def read(self, offset: int, size_bytes: int) -> bytes:
        """At most ``size_bytes`` from ``offset`` on, no bytes at the end of the file."""
        return await self._threads.run(lambda: self._read(offset, size_bytes))

    async def send(self, socket: int, offset: int, size_bytes: int) -> tuple[int, bool]:
        """Hand bytes from ``offset`` on to a non-blocking socket: how many it took, and whether it
        takes no more for now.

        The socket is duplicated at the first call, and the duplicate closed with the file: a thread
        may still be writing to it when the caller has gone and its number belongs to another.
        Raises ConnectionError.
        """
        if self._socket < 0:
            self._socket = os.dup(socket)
        return await self._threads.run(lambda: self._send(offset, size_bytes))

    async def sendable(self) -> None:
        """Wait until the socket takes more."""
        loop = asyncio.get_running_loop()
        is_sendable: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            if not is_sendable.done():
                is_sendable.set_result(None)

        loop.add_writer(self._socket, tell)
        try:
            await is_sendable
        finally:
            loop.remove_writer(self._socket)

    async def sha256(self) -> bytes:
        """Of all its bytes, as they are now. Reads it once, in pieces: who is cancelled stops
        it."""
        seen, offset = hashlib.sha256(), 0
        while True:
            n_bytes = await self._threads.run(partial(self._hash, seen, offset))
            if not n_bytes:
                return seen.digest()
            offset += n_bytes

    def _hash(self, seen: hashlib._Hash, offset: int) -> int:
        data = self._read(offset, HASHED_AT_ONCE_BYTES)
        seen.update(data)
        return len(data)

    def _read(self, offset: int, size_bytes: int) -> bytes:
        with self._lock:
            return self._file.read(offset, size_bytes)

    def _send(self, offset: int, size_bytes: int) -> tuple[int, bool]:
        with self._lock:
            return self._file.send(self._socket, offset, size_bytes)

    def _close(self) -> None:
        with self._lock:
            self._file.close()
            if self._socket >= 0:
                os.close(self._socket)
                self._socket = -1


class Upload:
    """A file in the making, or getting longer: an async context manager. Leaving it without
    ``commit`` leaves nothing of the first behind, and of the second what was written."""

    def __init__(self, threads: FileThreads, draft: AtomicUpload | InPlaceUpload) -> None:
        self._threads = threads
        self._draft = draft
        self._lock = threading.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.wait((self._threads.end(self._abort),))

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append ``data``, which must not change before this returns, nor after a cancellation.

        Raises PayloadTooLarge (past ``max_upload_bytes``), NoSpace, ReadOnly, PermissionDenied;
        then it is over.
        """
        await self._threads.run(lambda: self._write(data))

    async def commit(self) -> str:
        """Put the file in the place of the old one, in one step; its entity tag.

        Raises as ``write``, Conflict if its directory is gone, PreconditionFailed, InvalidArgument
        (a digest that does not match); the upload is over then. A cancelled commit may have
        happened.
        """
        return await self._threads.run(self._commit)

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        with self._lock:
            self._draft.write(data)

    def _commit(self) -> str:
        with self._lock:
            return self._draft.commit()

    def _abort(self) -> None:
        with self._lock:
            self._draft.abort()


class OpenedListing:
    """The entries of a directory, in pieces: an async context manager.

    Raises ResourceExhausted when it is entered, if the directory is large and too many others are
    being listed for ``LISTING_WAIT_SECONDS``.
    """

    def __init__(self, threads: FileThreads, listing: Listing, places: asyncio.Semaphore) -> None:
        """``places``: how many large directories may be listed at a time."""
        self._threads = threads
        self._listing = listing
        self._places = places
        self._lock = threading.Lock()
        self.place = listing.place
        """Where the directory is below the root, links resolved."""
        self.is_large = listing.is_large
        """Whether there is more than one piece."""

    async def __aenter__(self) -> Self:
        if self.is_large:
            try:
                async with asyncio.timeout(LISTING_WAIT_SECONDS):
                    await self._places.acquire()
            except BaseException as error:
                self._threads.end(self._close)
                if isinstance(error, TimeoutError):
                    raise ResourceExhausted(
                        "too many large directories are being listed already",
                        retry_after_seconds=10,
                    ) from None
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        end = self._threads.end(self._close)
        if self.is_large:
            # When the thread is done, which may be later than a second cancellation of this.
            end.add_done_callback(lambda _: self._places.release())
        await asyncio.wait((end,))

    async def read(self, render: Callable[[list[Entry]], bytes]) -> bytes | None:
        """The next entries as ``render`` makes bytes of them, on the thread that read them; None
        at the end."""
        return await self._threads.run(lambda: self._read(render))

    def _read(self, render: Callable[[list[Entry]], bytes]) -> bytes | None:
        with self._lock:
            entries = self._listing.read()
        return render(entries) if entries else None

    def _close(self) -> None:
        with self._lock:
            self._listing.close()


class PackedDownload:
    """An archive that is made while it is read: an async context manager."""

    def __init__(self, threads: FileThreads, packing: Packing) -> None:
        self._threads = threads
        self._packing = packing
        self._lock = threading.Lock()
        self.name = packing.name
        """Of what is packed, without an ending."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.wait((self._threads.end(self._close),))

    async def read(self) -> bytes:
        """The next bytes, none at the end. Raises Conflict, PermissionDenied: what was read so far
        is no whole archive then."""
        return await self._threads.run(self._read)

    def _read(self) -> bytes:
        with self._lock:
            return self._packing.read()

    def _close(self) -> None:
        with self._lock:
            self._packing.close()


class PackedUpload:
    """An archive on its way in: an async context manager. Leaving it without ``commit`` leaves
    nothing behind."""

    def __init__(self, threads: FileThreads, extraction: Extraction, max_bytes: int) -> None:
        self._threads = threads
        self._extraction = extraction
        self._max_bytes = max_bytes
        self._n_bytes = 0
        self._lock = threading.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.wait((self._threads.end(self._abort),))

    async def write(self, data: bytes) -> None:
        """Take what came. Raises InvalidArgument, PayloadTooLarge, NoSpace, ReadOnly; then it is
        over."""
        self._n_bytes += len(data)
        if self._max_bytes and self._n_bytes > self._max_bytes:
            raise PayloadTooLarge(f"an upload may have at most {self._max_bytes} bytes")
        await self._threads.run(lambda: self._write(data))

    async def commit(self) -> Unpacked:
        """Put it in place. Raises as ``write``, and Conflict if something there stands in the
        way."""
        return await self._threads.run_long(lambda _: self._commit())

    def _write(self, data: bytes) -> None:
        with self._lock:
            self._extraction.write(data)

    def _commit(self) -> Unpacked:
        with self._lock:
            return self._extraction.commit()

    def _abort(self) -> None:
        with self._lock:
            self._extraction.abort()
