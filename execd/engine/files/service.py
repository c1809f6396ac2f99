"""Files for the event loop: ``execd.files`` on threads of its own, in constant memory.

Theory. A disk can hang (NFS, FUSE, a gofer under load), and no thread that waits for one can be
called back. Hence:

* Every call that touches the disk runs on the executor made here. Its few threads are all that a
  hung disk can take; the loop and other users of threads go on.
* A caller may be cancelled while its call runs. The call runs on alone, so what it makes must not
  be lost (a descriptor opened for nobody is closed again: ``undo``), and what it uses must not be
  closed under it: each open file and each upload has a lock, which its calls hold on their thread,
  and its end takes the lock like any other call.
* The end of a file or upload is on the executor before it is first awaited: a second cancellation
  cannot prevent it.
* A root daemon that runs commands as another user (``--run-as``) must not do with files what that
  user may not: its callers are whoever reaches the port, and code in the sandbox does. So the
  threads act as that user, for good: what they make is the user's, and the kernel judges what they
  may open. No check of ours could be as complete, and no chown afterwards as free of races.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
from typing import TYPE_CHECKING, Self, TypeVar

from execd.engine.files.threads import FileThreads
from execd.engine.files.transfers import (
    OpenedFile,
    OpenedListing,
    PackedDownload,
    PackedUpload,
    Upload,
)
from execd.engine.files.watching import Watching
from execd.errors import PayloadTooLarge, ResourceExhausted
from execd.files import change, listing, read, syscalls, write
from execd.files.archive.tree import UnpackingLimits
from execd.files.root import Root, retry_on_change
from execd.model import NO_PRECONDITION
from execd.proc.spawn import KEEP_IDENTITY, Identity

if TYPE_CHECKING:
    from collections.abc import Callable

    # For the dialects too, which know no layer below this one.
    from execd.files.copy import Copied
    from execd.files.listing import Entry as Entry
    from execd.files.read import Description as Description
    from execd.files.read import Kind
    from execd.files.search import Found as Found
    from execd.files.watch.changes import Change as Change
    from execd.model import ArchiveFormat, Precondition

# Each is a reader, a stream and, often, thousands of the kernel's watches; the kernel's own default
# is 128 queues a user.
MAX_WATCHES = 64

# How many large directories are listed at a time: each listing holds up to 32 MiB of names, and
# computes most of the time.
MAX_LARGE_LISTINGS = 4

# Where TMPDIR is in the base dir, if user code cannot write to /tmp.
TEMPORARY_NAME = ".tmp"

SMALL_UNPACKING = UnpackingLimits(max_bytes=1 << 30, max_entries=100_000)

T = TypeVar("T")


class Files:
    """The files below one root. Owns threads, which its views share; ``close`` ends them.

    Paths are as they came over the wire, decoded once, UTF-8 with surrogateescape;
    ``execd.files.paths`` and ``root`` say what they mean. Every method may raise PermissionDenied
    (a path that leaves the base dir, or where the daemon has no rights), InvalidArgument (a name
    that no file can have), Conflict (the base dir is no directory, or the path does not hold
    still), ResourceExhausted (out of descriptors), Unavailable (after ``close``).
    """

    def __init__(
        self,
        base_dir: str,
        *,
        state_dir: str | None = None,
        max_upload_bytes: int = 0,
        unpacking: UnpackingLimits = SMALL_UNPACKING,
        identity: Identity = KEEP_IDENTITY,
        syncs_uploads: bool = False,
    ) -> None:
        """``max_upload_bytes`` 0 means no limit. Nothing below ``state_dir`` is ever served,
        wherever it lies.

        ``identity`` is who the threads act as, for a root daemon.
        """
        self._root = Root(base_dir, state_dir)
        self._max_upload_bytes = max_upload_bytes
        self._unpacking = unpacking
        self._syncs_uploads = syncs_uploads
        self._watches = _Watches()
        self._large_listings = asyncio.Semaphore(MAX_LARGE_LISTINGS)
        self._threads = FileThreads(identity)

    def guard(self, state_dir: str) -> None:
        """From now on this path leads to what is never served."""
        self._root.state_dir = state_dir

    def view(self, root: Root) -> Self:
        """The same threads and limits, with another idea of what a path means."""
        other = copy.copy(self)
        other._root = root
        return other

    async def open(self, path: str) -> OpenedFile:
        """Open a regular file; the caller leaves it as a context. Raises NotFound for anything
        else."""
        file = await self._threads.run(
            lambda: read.open_file(self._root, path), undo=read.RegularFile.close
        )
        return OpenedFile(self._threads, file)

    async def open_listing(self, path: str, *, omits_dangling: bool = False) -> OpenedListing:
        """The entries of a directory, in pieces; the caller leaves the listing as a context. Raises
        NotFound for anything else.

        With ``omits_dangling``, without the links that lead to nothing or out of the root.
        """
        opened = await self._threads.run(
            lambda: listing.open_listing(self._root, path, omits_dangling=omits_dangling),
            undo=listing.Listing.close,
        )
        return OpenedListing(self._threads, opened, self._large_listings)

    async def describe(self, path: str, *, follow: bool = True) -> Description:
        """What is at the path; without ``follow`` a link itself. Raises NotFound."""
        return await self._threads.run(lambda: read.describe(self._root, path, follow=follow))

    async def open_or_describe(self, path: str) -> OpenedFile | Description:
        """A regular file, which the caller leaves as a context, or what else is there. Raises
        NotFound."""
        found = await self._threads.run(
            lambda: read.open_or_describe(self._root, path), undo=_close
        )
        return OpenedFile(self._threads, found) if isinstance(found, read.RegularFile) else found

    async def exists(self, path: str) -> bool:
        """Whether there is anything at ``path``, at the end of its links."""
        return await self._threads.run(lambda: read.exists(self._root, path))

    async def create(
        self,
        path: str,
        *,
        mode: int | None = None,
        precondition: Precondition = NO_PRECONDITION,
        sha256: bytes | None = None,
        size_bytes: int | None = None,
    ) -> Upload:
        """Begin to write a file; the caller leaves the upload as a context. Missing parents are
        made.

        ``size_bytes`` is what the caller means to send, to be refused at once if it is too much.
        Raises InvalidArgument (a directory, or a parent that is none), NoSpace, ReadOnly,
        PayloadTooLarge, PreconditionFailed.
        """
        self._refuse_size(path, size_bytes or 0)
        draft = await self._threads.run(
            lambda: write.create(
                self._root,
                path,
                self._max_upload_bytes,
                mode=mode,
                precondition=precondition,
                sha256=sha256,
                syncs=self._syncs_uploads,
            ),
            undo=write.AtomicUpload.abort,
        )
        return Upload(self._threads, draft)

    async def extend(
        self,
        path: str,
        *,
        offset: int | None = None,
        mode: int | None = None,
        precondition: Precondition = NO_PRECONDITION,
        sha256: bytes | None = None,
        size_bytes: int | None = None,
    ) -> Upload:
        """Begin to write at the end of a file, in place; the caller leaves the upload as a context.
        What is written stays.

        ``offset`` is where the end must be; None: wherever it is. ``sha256`` is that of the whole
        file, afterwards. Raises Conflict (another size, or another such upload), and what
        ``create`` raises.
        """
        from execd.files import append

        self._refuse_size(path, (offset or 0) + (size_bytes or 0))
        extension = await self._threads.run(
            lambda: append.extend(
                self._root,
                path,
                self._max_upload_bytes,
                offset=offset,
                mode=mode,
                precondition=precondition,
                sha256=sha256,
                syncs=self._syncs_uploads,
            ),
            undo=append.InPlaceUpload.abort,
        )
        return Upload(self._threads, extension)

    def _refuse_size(self, path: str, size_bytes: int) -> None:
        if self._max_upload_bytes and size_bytes > self._max_upload_bytes:
            raise PayloadTooLarge(
                f"{path!r}: an upload may have at most {self._max_upload_bytes} bytes"
            )

    async def remove(
        self, path: str, *, recursive: bool = False, precondition: Precondition = NO_PRECONDITION
    ) -> None:
        """Remove a file, a link itself, or a directory; of the base dir, with ``recursive``, what
        is in it.

        Raises NotFound, Conflict (a directory with something in it), PreconditionFailed, ReadOnly.
        """
        run = self._threads.run_long if recursive else self._threads.run
        await run(
            lambda *_: change.remove(
                self._root, path, recursive=recursive, precondition=precondition
            )
        )

    async def make_directory(
        self, path: str, *, mode: int | None = None, parents: bool = True
    ) -> None:
        """With ``parents`` missing ones are made too, and one that is there will do. Raises
        Conflict, NotFound, NoSpace, ReadOnly."""
        await self._threads.run(
            lambda: change.make_directory(self._root, path, mode=mode, parents=parents)
        )

    async def move(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Give it another name, ``target``, whose missing parents are made. Raises NotFound,
        Conflict, ReadOnly."""
        await self._threads.run(
            lambda: change.move(self._root, source, target, overwrite=overwrite)
        )

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> Copied:
        """Copy a file, or a directory and what is below it, to the name ``target``. Who is
        cancelled stops it half done.

        Raises NotFound, Conflict, InvalidArgument, NoSpace, ReadOnly.
        """
        from execd.files import copy as copying

        return await self._threads.run_long(
            lambda stop: copying.copy(self._root, source, target, overwrite=overwrite, stop=stop)
        )

    async def pack(
        self, path: str, kind: ArchiveFormat, *, skips_unreadable: bool = False
    ) -> PackedDownload:
        """A directory, or one file, as an archive; the caller leaves it as a context. Raises
        NotFound."""
        # here, like others below: the start does not pay for what few use
        from execd.files.archive import pack as packs

        packing = await self._threads.run(
            lambda: packs.pack(self._root, path, kind, skips_unreadable=skips_unreadable),
            undo=packs.Packing.close,
        )
        return PackedDownload(self._threads, packing)

    async def unpack(
        self,
        path: str,
        kind: ArchiveFormat,
        *,
        sha256: bytes | None = None,
        size_bytes: int | None = None,
    ) -> PackedUpload:
        """Begin to unpack an archive below a directory, which is made if it is missing; the caller
        leaves it as a context.

        Raises InvalidArgument (not a directory), NoSpace, ReadOnly, PayloadTooLarge.
        """
        from execd.files.archive import unpack as unpacks

        self._refuse_size(path, size_bytes or 0)
        extraction = await self._threads.run(
            lambda: unpacks.unpack(self._root, path, kind, self._unpacking, sha256=sha256),
            undo=unpacks.Extraction.abort,
        )
        return PackedUpload(self._threads, extraction, self._max_upload_bytes)

    async def watch(self, path: str, *, recursive: bool = False) -> Watching:
        """News of changes to a directory or file; the caller leaves it as a context. Raises
        NotFound, ResourceExhausted."""
        from execd.files.watch import watcher as watches

        self._watches.begin()
        try:
            watch = await self._threads.run(
                lambda: watches.watch(self._root, path, recursive=recursive),
                undo=watches.Watch.close,
            )
        except BaseException:
            self._watches.end()
            raise
        return Watching(self._threads, watch, on_end=self._watches.end)

    async def search(
        self,
        path: str,
        glob: str,
        *,
        limit: int,
        seconds: float,
        kinds: frozenset[Kind] | None = None,
    ) -> Found:
        """What is below a directory and matches, or the first of it. Raises NotFound,
        InvalidArgument."""
        from execd.files import search as searching

        return await self._threads.run_long(
            lambda stop: searching.search(
                self._root, path, glob, limit=limit, seconds=seconds, kinds=kinds, stop=stop
            )
        )

    async def change_mode(self, path: str, mode: int) -> None:
        """Set the permission bits. Raises NotFound, ReadOnly."""
        await self._threads.run(lambda: change.change_mode(self._root, path, mode))

    async def ensure_base_dir(self) -> None:
        """Make the base dir if it is gone. The other methods do so by themselves."""
        await self._threads.run(lambda: retry_on_change(self._root.ensure, self._root.base_dir))

    async def choose_temporary_dir(self) -> str:
        """/tmp if the user may write there, else ``.tmp`` in the base dir, as with a read-only
        root."""
        usable = await self._threads.run(
            lambda: os.access("/tmp", os.W_OK | os.X_OK, effective_ids=True)
        )
        return "/tmp" if usable else os.path.join(self._root.base_dir, TEMPORARY_NAME)

    async def ensure_temporary_dir(self) -> None:
        """Make ``.tmp`` in the base dir if nothing of that name is there. Raises what ``run``
        raises."""
        await self._threads.run(
            lambda: retry_on_change(self._make_temporary_dir, self._root.base_dir)
        )

    def _make_temporary_dir(self) -> None:
        """mkdir gives the mode. A chmod afterwards could meet another directory: user code may have
        put it in the place of the new one.
        """
        with (
            self._root.resolve("") as base,
            syscalls.no_umask(),
            contextlib.suppress(FileExistsError),
        ):
            os.mkdir(TEMPORARY_NAME, 0o1777, dir_fd=base.directory)

    async def run(self, call: Callable[[], T]) -> T:
        """The result of a long computation of the caller's, from a thread."""
        return await self._threads.run(call)

    def close(self) -> None:
        """Take no more calls. Those under way end on their threads, which are not waited for: a
        disk may hang."""
        self._threads.close()


class _Watches:
    """How many watches are under way, for a service and its views."""

    def __init__(self) -> None:
        self.n = 0

    def begin(self) -> None:
        """Raises ResourceExhausted."""
        if self.n >= MAX_WATCHES:
            raise ResourceExhausted(
                f"{MAX_WATCHES} watches are under way already", retry_after_seconds=10
            )
        self.n += 1

    def end(self) -> None:
        self.n -= 1


def _close(found: read.RegularFile | Description) -> None:
    if isinstance(found, read.RegularFile):
        found.close()
