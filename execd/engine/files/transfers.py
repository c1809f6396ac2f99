"""Transfers for the event loop: a file open for reading, a file being written, and archives.

See ``service`` for the rules.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

from execd.errors import Conflict, PayloadTooLarge, ResourceExhausted

if TYPE_CHECKING:
    import hashlib
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

# Four listings at once of 400,000 files take about 18 s on two busy CPUs. A slow reader keeps the
# place until the reply is over.
PLACE_WAIT_SECONDS = 60
# A zip keeps about 600 bytes an entry in memory. Smaller zips need no place.
LARGE_ZIP_ENTRIES = 4096
# Of an uploaded zip, only the size is known in time. An entry has a header of at least 46 bytes in
# the directory at the end (APPNOTE.TXT 4.3.12).
LARGE_ZIP_BYTES = LARGE_ZIP_ENTRIES * 46


class Places:
    """A number of places for calls that need much memory."""

    def __init__(self, count: int, refusal: str) -> None:
        """``refusal``: the message for a caller when no place became free."""
        self._places = asyncio.Semaphore(count)
        self._refusal = refusal

    async def take(self) -> None:
        """Wait for a place. Raises ResourceExhausted after PLACE_WAIT_SECONDS."""
        try:
            async with asyncio.timeout(PLACE_WAIT_SECONDS):
                await self._places.acquire()
        except TimeoutError:
            raise ResourceExhausted(self._refusal, retry_after_seconds=10) from None

    def give_back_after(self, end: asyncio.Future[None]) -> None:
        """Give the place back when the thread is done, which may be later than the caller's end."""
        end.add_done_callback(lambda _: self._places.release())


T = TypeVar("T")


class Transfer:
    """A download, an upload or an archive: an async context manager, which closes the file.

    Each call, also the closing call, holds a lock in its thread.
    """

    def __init__(
        self, threads: FileThreads, close: Callable[[], None], places: Places | None = None
    ) -> None:
        """``places``: for transfers that turn out to need much memory."""
        self._threads = threads
        self._close = close
        self._places = places
        self._has_place = False
        self._lock = threading.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        end = self._threads.submit_closing(lambda: self.locked(self._close))
        if self._has_place:
            assert self._places is not None
            self._places.give_back_after(end)
        await asyncio.wait((end,))

    async def take_place(self) -> None:
        """Keep a place until the end. Raises ResourceExhausted."""
        assert self._places is not None
        if not self._has_place:
            await self._places.take()
            self._has_place = True

    async def run(self, call: Callable[[], T]) -> T:
        """Run ``call`` in a thread and return the result."""
        return await self._threads.run(lambda: self.locked(call))

    def locked(self, call: Callable[[], T]) -> T:
        with self._lock:
            return call()


class OpenedFile(Transfer):
    """A regular file, open for reading: an async context manager that closes the file.

    Reads come from the file that was opened, even if the name leads to another file by now.
    """

    def __init__(self, threads: FileThreads, file: read.RegularFile) -> None:
        self._held = ExitStack()
        self._held.callback(file.close)
        super().__init__(threads, self._held.close)
        self._file = file
        self._socket = -1
        self.name = file.name
        """The last name of the requested path."""
        self.size_bytes = file.size_bytes
        """The size when the file was opened. The file may have shrunk or grown since."""
        self.modified_at = file.modified_at
        """Seconds since the epoch."""
        self.etag = file.etag
        """A strong validator, with its quotes."""

    async def read(self, offset: int, size_bytes: int) -> bytes:
        """Read at most ``size_bytes`` at ``offset``. No bytes: the end of the file."""
        return await self.run(lambda: self._file.read(offset, size_bytes))

    async def send(self, socket: int, offset: int, size_bytes: int) -> tuple[int, bool]:
        """Send at most ``size_bytes`` at ``offset`` to a non-blocking socket.

        Return the number of bytes sent, and whether the socket is full for now. Raises
        ConnectionError.

        The first call duplicates the socket, and the end of the file closes the duplicate. Without
        the duplicate: the caller leaves, the connection closes its descriptor, another connection
        gets the same number, and the thread writes to the wrong client.
        """
        if self._socket < 0:
            self._socket = os.dup(socket)
            self._held.callback(os.close, self._socket)
        return await self._threads.run_copying(
            lambda: self.locked(lambda: self._file.send(self._socket, offset, size_bytes))
        )

    async def wait_until_sendable(self) -> None:
        """Wait until the socket is writable. Only after a ``send``."""
        assert self._socket >= 0, "no send before"
        loop = asyncio.get_running_loop()
        is_sendable: asyncio.Future[None] = loop.create_future()

        def on_writable() -> None:
            if not is_sendable.done():
                is_sendable.set_result(None)

        loop.add_writer(self._socket, on_writable)
        try:
            await is_sendable
        finally:
            loop.remove_writer(self._socket)

    async def sha256(self) -> bytes:
        """Return the digest of the first ``size_bytes``, which a reply holds even if the file grows
        meanwhile. A cancellation stops the reading after a piece. Raises Conflict if the file has
        become shorter."""
        import hashlib  # see lean_imports

        digest, offset = hashlib.sha256(), 0
        while offset < self.size_bytes:
            n_bytes = await self.run(partial(self._hash, digest, offset))
            if not n_bytes:
                raise Conflict(
                    f"{self.name!r} became shorter while it was being read; repeat the request"
                )
            offset += n_bytes
        return digest.digest()

    def _hash(self, digest: hashlib._Hash, offset: int) -> int:
        data = self._file.read(offset, min(HASHED_AT_ONCE_BYTES, self.size_bytes - offset))
        assert len(data) <= HASHED_AT_ONCE_BYTES
        digest.update(data)
        return len(data)


class Upload(Transfer):
    """A file being written: an async context manager.

    Without ``commit``, an atomic upload leaves no file behind, and an upload in place leaves the
    bytes written so far.
    """

    def __init__(
        self,
        threads: FileThreads,
        draft: AtomicUpload | InPlaceUpload,
        *,
        has_attributes: bool = False,
    ) -> None:
        self.has_attributes = has_attributes
        """Whether the new file has the extended attributes that the caller asked for."""
        super().__init__(threads, draft.abort)
        self._draft = draft

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append ``data``.

        The caller must not change ``data`` before the return, and never after a cancellation: the
        thread may still read. Raises PayloadTooLarge (more than ``max_upload_bytes``), NoSpace,
        ReadOnly, PermissionDenied; after an error the upload is over.
        """
        await self.run(lambda: self._draft.write(data))

    async def commit(self) -> str:
        """Replace the old file by the new file, in one step, and return the entity tag.

        Raises the errors of ``write``, Conflict (the directory is gone), PreconditionFailed,
        InvalidArgument (wrong digest); after an error the upload is over. A cancelled commit may
        have happened.
        """
        return await self.run(self._draft.commit)


class OpenedListing(Transfer):
    """The entries of a directory, in pieces: an async context manager.

    Raises ResourceExhausted when it is entered, if the directory is large and no place for large
    listings becomes free.
    """

    def __init__(self, threads: FileThreads, listing: Listing, places: Places) -> None:
        """``places``: for large directories."""
        super().__init__(threads, listing.close, places)
        self._listing = listing
        self.place = listing.place
        """Where the directory is below the root, links resolved."""
        self.is_large = listing.is_large
        """Whether there is more than one piece."""

    async def __aenter__(self) -> Self:
        if self.is_large:
            try:
                await self.take_place()
            except BaseException:
                self._threads.submit_closing(self._listing.close)
                raise
        return self

    async def read(self, render: Callable[[list[Entry]], bytes]) -> bytes | None:
        """The next entries as ``render`` makes bytes of them, on the thread that read them; None
        at the end."""
        return await self.run(
            lambda: render(entries) if (entries := self._listing.read()) else None
        )


class PackedDownload(Transfer):
    """An archive, packed while the caller reads: an async context manager."""

    def __init__(self, threads: FileThreads, packing: Packing, zip_places: Places) -> None:
        """``zip_places``: for zips of more than LARGE_ZIP_ENTRIES."""
        super().__init__(threads, packing.close, zip_places)
        self._packing = packing
        self.name = packing.name
        """Name of the packed file or directory, without the ending of the archive."""

    async def read(self) -> bytes:
        """Read the next bytes. No bytes: the end.

        Raises Conflict, PermissionDenied, ResourceExhausted; the bytes read so far are then no
        complete archive.
        """
        if self._packing.n_zip_entries > LARGE_ZIP_ENTRIES:
            await self.take_place()
        return await self.run(self._packing.read)


class PackedUpload(Transfer):
    """An archive being unpacked: an async context manager.

    Without ``commit``, no file is left behind.
    """

    def __init__(
        self,
        threads: FileThreads,
        extraction: Extraction,
        max_bytes: int,
        zip_places: Places,
    ) -> None:
        """``zip_places``: for a zip of more than LARGE_ZIP_BYTES, whose directory is read into
        memory."""
        super().__init__(threads, extraction.abort, zip_places)
        self._extraction = extraction
        self._max_bytes = max_bytes
        self._n_bytes = 0

    async def write(self, data: bytes) -> None:
        """Unpack the next bytes of the archive.

        Raises InvalidArgument, PayloadTooLarge, NoSpace, ReadOnly; after an error the upload is
        over.
        """
        self._n_bytes += len(data)
        if self._max_bytes and self._n_bytes > self._max_bytes:
            raise PayloadTooLarge(f"an upload may have at most {self._max_bytes} bytes")
        await self.run(lambda: self._extraction.write(data))

    async def commit(self) -> Unpacked:
        """Put the unpacked tree in place.

        Raises the errors of ``write``, Conflict if an existing file is in the way, and
        ResourceExhausted if no place for zips becomes free.
        """
        if self._extraction.kind == "zip" and self._n_bytes > LARGE_ZIP_BYTES:
            await self.take_place()
        return await self._threads.run_long(lambda _: self.locked(self._extraction.commit))
