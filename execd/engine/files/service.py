"""Files for the event loop: ``execd.files`` on threads of its own, in constant memory.

A disk can hang (NFS, FUSE, a gofer under load), and a waiting thread cannot be called back. Hence
the rules:

* Every call with disk access runs on the threads of ``FileThreads``. A hung disk can block these
  few threads; the event loop and other threads go on.
* A caller may be cancelled while its call runs. The call runs on alone. The result of the call goes
  to ``undo``: a descriptor without an owner is closed. Each open file and each upload has a lock,
  which each call holds in its thread. The closing call takes the lock too, so the file is not
  closed under a call.
* The closing call is in the executor's queue before the caller awaits the call for the first time.
  So a second cancellation cannot prevent the closing.
* A root daemon with ``--run-as`` must not exceed the user's rights on files: any process with
  access to the port can call, including code in the sandbox. So the threads act as the user for
  good. New files belong to the user, and the kernel checks each access. Checks in the daemon would
  be less complete, and a chown afterwards would race with user code.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import functools
import os
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from msgspec.structs import replace

from execd.engine.files.threads import FileThreads, as_user
from execd.engine.files.transfers import (
    OpenedFile,
    OpenedListing,
    PackedDownload,
    PackedUpload,
    Places,
    Upload,
)
from execd.engine.files.watching import Watches, Watching
from execd.errors import PayloadTooLarge
from execd.files import change, listing, read, syscalls, write
from execd.files.archive.tree import UnpackingLimits

# Exported to the dialects, which must not import from the layer ``files``.
from execd.files.read import FileKind as FileKind  # noqa: TC001  # msgspec reads it
from execd.files.resolve import open_own_directory
from execd.files.root import Root, retry_on_change
from execd.files.watch.changes import ChangeKind as ChangeKind
from execd.files.watch.changes import LostChanges as LostChanges
from execd.model import NO_PRECONDITION
from execd.proc.spawn import KEEP_IDENTITY, Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    # Exported likewise.
    from execd.files.copy import Copied
    from execd.files.described_tree import DescribedEntry as DescribedEntry
    from execd.files.listing import Entry as Entry
    from execd.files.read import Description as Description
    from execd.files.root import Rooms
    from execd.files.search import Match as Match
    from execd.files.search import SearchResult as SearchResult
    from execd.files.watch.changes import Change as Change
    from execd.files.watch.watcher import News as News
    from execd.model import ArchiveFormat, Precondition

MAX_LARGE_LISTINGS = 4
"""Listings at once of directories with over ``execd.files.listing.MAX_PIECE`` names. The next
listing waits ``execd.engine.files.transfers.PLACE_WAIT_SECONDS``, then 429.

Each listing holds up to 32 MiB of names, and computes most of the time."""
MAX_LARGE_ZIPS = 2
"""Zips at once: uploaded zips over ``execd.engine.files.transfers.LARGE_ZIP_BYTES``, and downloaded
zips that have packed ``execd.engine.files.transfers.LARGE_ZIP_ENTRIES`` entries. The next zip waits
``execd.engine.files.transfers.PLACE_WAIT_SECONDS``, then 429, or the download is cut.

Each zip holds its directory in memory, up to 200 MB."""

# Name of TMPDIR in the base dir, used if user code cannot write to /tmp.
TEMPORARY_NAME = ".tmp"

SMALL_UNPACKING = UnpackingLimits(max_bytes=1 << 30, max_entries=100_000)

T = TypeVar("T")
P = ParamSpec("P")


def _on_thread(
    function: Callable[Concatenate[Root, P], T],
) -> Callable[Concatenate[Files, P], Coroutine[Any, Any, T]]:
    """Make a method of a short function of ``execd.files`` on a root."""

    @functools.wraps(function)
    async def run(files: Files, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await files._threads.run(lambda: function(files._root, *args, **kwargs))

    return run


class Files:
    """The files below one root. Owns the threads, which all views share; ``close`` ends them.

    Paths come from the wire: decoded once, UTF-8 with surrogateescape. ``execd.files.paths`` and
    ``execd.files.root`` define their meaning. Every method may raise PermissionDenied (a path that
    leaves the base dir, or missing rights), InvalidArgument (a name that no file can have),
    Conflict (the base dir is no directory, or user code keeps changing the path), ResourceExhausted
    (no descriptors left), Unavailable (after ``close``).
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
        rooms: Rooms | None = None,
    ) -> None:
        """``max_upload_bytes`` 0: no limit. No file below ``state_dir`` is ever served.

        ``identity``: the user that the threads act as, for a root daemon. ``rooms``: asked before
        each write.
        """
        self._root = Root(base_dir, state_dir)
        self._root.rooms = rooms
        self._max_upload_bytes = max_upload_bytes
        self._unpacking = unpacking
        self._plainly = write.Writing(max_bytes=max_upload_bytes, syncs=syncs_uploads)
        self._watches = Watches()
        self._large_listings = Places(
            MAX_LARGE_LISTINGS, "too many large directories are being listed already"
        )
        self._large_zips = Places(
            MAX_LARGE_ZIPS, "too many large zip archives are being packed or unpacked already"
        )
        self._threads = FileThreads(identity)

    def hide(self, path: str) -> None:
        """Refuse the directory below this root: user code has another view of it."""
        self._root.own_dirs += (path,)

    def end_watch_streams(self) -> None:
        """End the news of all watches, those of views too: the daemon ends."""
        self._watches.end_streams()

    async def settle(self, within_seconds: float) -> bool:
        """Wait until no file operation is under way, after ``end_watch_streams``, and allow watches
        again. Return whether that is so in time."""
        self._watches.begin_again()
        return await self._threads.settle(within_seconds)

    def with_root(self, root: Root) -> Self:
        """Return a service with the same threads and limits, and another root."""
        other = copy.copy(self)
        root.rooms = self._root.rooms
        other._root = root
        return other

    async def open(self, path: str) -> OpenedFile:
        """Open a regular file, for use in ``async with``. Raises NotFound, also for other types."""
        file = await self._threads.run(
            lambda: read.open_file(self._root, path), undo=read.RegularFile.close
        )
        return OpenedFile(self._threads, file)

    async def open_listing(self, path: str, *, omits_dangling: bool = False) -> OpenedListing:
        """Open the entries of a directory, in pieces; the caller leaves the listing as a context.

        ``omits_dangling``: without links to nothing or out of the root. Raises NotFound, also for
        other types.
        """
        opened = await self._threads.run(
            lambda: listing.open_listing(self._root, path, omits_dangling=omits_dangling),
            undo=listing.Listing.close,
        )
        return OpenedListing(self._threads, opened, self._large_listings)

    describe = _on_thread(read.describe)
    exists = _on_thread(read.exists)
    make_directory = _on_thread(change.make_directory)
    move = _on_thread(change.move)
    change_mode = _on_thread(change.change_mode)
    change_owner = _on_thread(change.change_owner)

    async def open_or_describe(self, path: str) -> OpenedFile | Description:
        """Open a regular file, for use in ``async with``; describe a file of another type.

        Raises NotFound.
        """
        found = await self._threads.run(
            lambda: read.open_or_describe(self._root, path), undo=_close
        )
        return OpenedFile(self._threads, found) if isinstance(found, read.RegularFile) else found

    async def create(
        self,
        path: str,
        *,
        mode: int | None = None,
        precondition: Precondition = NO_PRECONDITION,
        sha256: bytes | None = None,
        size_bytes: int | None = None,
        in_place: bool = False,
        attributes: Mapping[str, bytes] | None = None,
    ) -> Upload:
        """Begin to write a file, for use in ``async with``. Missing parents are made.

        ``attributes``: extended attributes, by names that begin with "user.". ``size_bytes``:
        announced size; too large a size is refused at once. ``in_place``: write into a file that is
        there. Raises InvalidArgument (the path is a directory, or a parent is no directory),
        NoSpace, ReadOnly, PermissionDenied, PayloadTooLarge, PreconditionFailed.
        """
        self._refuse_size(path, size_bytes or 0)
        how = replace(
            self._plainly,
            mode=mode,
            precondition=precondition,
            sha256=sha256,
            in_place=in_place,
            attributes=attributes or {},
        )
        draft = await self._threads.run(
            lambda: write.create(self._root, path, how), undo=write.AtomicUpload.abort
        )
        return Upload(self._threads, draft, has_attributes=draft.has_attributes)

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
        """Begin to write at the end of a file, in place, for use in ``async with``.

        Written bytes stay in the file, with or without a commit. ``offset``: the size that the file
        must have; None: any size. ``sha256``: digest of the whole file afterwards. Raises Conflict
        (another size, or another upload of this kind), and the errors of ``create``.
        """
        from execd.files import append

        self._refuse_size(path, (offset or 0) + (size_bytes or 0))
        how = replace(self._plainly, mode=mode, precondition=precondition, sha256=sha256)
        extension = await self._threads.run(
            lambda: append.extend(self._root, path, how, offset=offset),
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
        """Remove a file, a link itself, or a directory.

        ``recursive`` on the base dir removes the contents and keeps the base dir. Raises NotFound,
        Conflict (a directory with contents), PreconditionFailed, ReadOnly.
        """
        run = self._threads.run_long if recursive else self._threads.run
        await run(
            lambda *_: change.remove(
                self._root, path, recursive=recursive, precondition=precondition
            )
        )

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> Copied:
        """Copy a file, or a directory with its tree, to ``target``. A cancellation stops halfway.

        Raises NotFound, Conflict, InvalidArgument, NoSpace, ReadOnly.
        """
        from execd.files import copy as copying

        return await self._threads.run_long(
            lambda stop: copying.copy(self._root, source, target, overwrite=overwrite, stop=stop)
        )

    async def pack(
        self, path: str, kind: ArchiveFormat, *, skips_unreadable: bool = False
    ) -> PackedDownload:
        """Pack a directory or a file into an archive, for use in ``async with``.

        Raises NotFound.
        """
        # A late import, as in some methods below: few callers use the module, and the daemon's
        # start stays fast.
        from execd.files.archive import pack as packs

        packing = await self._threads.run(
            lambda: packs.pack(
                self._root,
                path,
                kind,
                skips_unreadable=skips_unreadable,
                max_zip_entries=self._unpacking.max_entries,
            ),
            undo=packs.Packing.close,
        )
        return PackedDownload(self._threads, packing, self._large_zips)

    async def unpack(
        self,
        path: str,
        kind: ArchiveFormat | None,
        *,
        sha256: bytes | None = None,
        size_bytes: int | None = None,
    ) -> PackedUpload:
        """Begin to unpack an archive below a directory, made if missing, for use in ``async with``.
        ``kind`` None: the first bytes of the archive decide.

        Raises InvalidArgument (not a directory), NoSpace, ReadOnly, PayloadTooLarge.
        """
        from execd.files.archive import unpack as unpacks

        self._refuse_size(path, size_bytes or 0)
        extraction = await self._threads.run(
            lambda: unpacks.unpack(self._root, path, kind, self._unpacking, sha256=sha256),
            undo=unpacks.Extraction.abort,
        )
        return PackedUpload(self._threads, extraction, self._max_upload_bytes, self._large_zips)

    async def watch(self, path: str, *, recursive: bool = False, sums: bool = True) -> Watching:
        """Watch a directory or file for changes, for use in ``async with``. ``sums`` False: tell
        every single change, not the sum for each name.

        Raises NotFound, ResourceExhausted.
        """
        from execd.files.watch import watcher as watches

        self._watches.begin()
        try:
            watch = await self._threads.run(
                lambda: watches.watch(self._root, path, recursive=recursive, sums=sums),
                undo=watches.Watch.close,
            )
        except BaseException:
            self._watches.end()
            raise
        return Watching(self._threads, watch, self._watches)

    async def search(
        self,
        path: str,
        glob: str,
        *,
        limit: int,
        seconds: float,
        kinds: frozenset[FileKind] | None = None,
        max_depth: int | None = None,
    ) -> SearchResult:
        """Search the tree below a directory for names that match ``glob``, at most ``max_depth``
        names below the directory.

        Stops after ``limit`` matches or ``seconds``. Raises NotFound, InvalidArgument.
        """
        from execd.files import search as searching

        return await self._threads.run_long(
            lambda stop: searching.search(
                self._root,
                path,
                glob,
                limit=limit,
                seconds=seconds,
                kinds=kinds,
                max_depth=max_depth,
                stop=stop,
            )
        )

    async def describe_entry(self, path: str, attribute_prefix: str) -> DescribedEntry:
        """Describe the file at the path itself, and the end of its link if it is a link, with the
        extended attributes whose names begin with ``attribute_prefix``. Raises NotFound."""
        from execd.files import described_tree

        return await self._threads.run(
            lambda: described_tree.describe_entry(self._root, path, attribute_prefix)
        )

    async def describe_tree(
        self,
        path: str,
        render: Callable[[list[DescribedEntry]], T],
        *,
        attribute_prefix: str,
        depth: int,
        limit: int,
    ) -> T:
        """Describe the entries below a directory as ``describe_entry``, down to ``depth`` names,
        and return what ``render`` makes of the list on the same thread.

        Raises NotFound, InvalidArgument (not a directory), ResourceExhausted (over ``limit``
        entries).
        """
        from execd.files import described_tree

        return await self._threads.run_long(
            lambda stop: render(
                described_tree.describe_tree(
                    self._root,
                    path,
                    attribute_prefix=attribute_prefix,
                    depth=depth,
                    limit=limit,
                    stop=stop,
                )
            )
        )

    async def ensure_base_dir(self) -> None:
        """Make the base dir if missing. The other methods do so by themselves."""
        await self._threads.run(lambda: retry_on_change(self._root.ensure, self._root.base_dir))

    async def ensure_temporary_dir(self) -> None:
        """Make ``.tmp`` in the base dir, unless a file of that name exists."""
        await self._threads.run(
            lambda: retry_on_change(self._make_temporary_dir, self._root.base_dir)
        )

    def _make_temporary_dir(self) -> None:
        """Make the directory with its mode in one mkdir.

        Before a chmod, user code could replace the new directory.
        """
        with (
            self._root.resolve("") as base,
            syscalls.no_umask(),
            contextlib.suppress(FileExistsError),
        ):
            os.mkdir(TEMPORARY_NAME, 0o1777, dir_fd=base.directory)

    async def run(self, call: Callable[[], T]) -> T:
        """Run a long computation of the caller in a thread, and return the result."""
        return await self._threads.run(call)

    def close(self) -> None:
        """Refuse further calls. Does not wait for the threads: a disk may hang."""
        self._threads.close()


def _close(found: read.RegularFile | Description) -> None:
    if isinstance(found, read.RegularFile):
        found.close()


def choose_temporary_dir(base_dir: str, identity: Identity) -> str:
    """Return /tmp if the user may write to /tmp, else ``.tmp`` in the base dir.

    A container with a read-only root has no writable /tmp.
    """
    usable = as_user(identity, lambda: os.access("/tmp", os.W_OK | os.X_OK, effective_ids=True))
    return "/tmp" if usable else os.path.join(os.path.abspath(base_dir), TEMPORARY_NAME)


def make_base_dir(path: str, identity: Identity) -> None:
    """Make the base dir if missing; a new base dir belongs to the user.

    The daemon makes the directory as the user, if the user may. Otherwise root makes the directory,
    but only in a parent under root's control alone. There user code cannot replace the new
    directory between mkdir and chown. Raises OSError if the user cannot enter the base dir.
    """
    try:
        as_user(identity, lambda: _make_and_enter(path))
    except PermissionError:
        if identity == KEEP_IDENTITY or os.path.exists(path):
            raise
        parent = open_own_directory(os.path.dirname(path), 0o755)
        try:
            info = os.fstat(parent)
            if info.st_uid != 0 or info.st_mode & 0o022:
                raise
            name = os.path.basename(path)
            os.mkdir(name, 0o755, dir_fd=parent)
            os.chown(
                name, identity.uid or 0, identity.gid or 0, dir_fd=parent, follow_symlinks=False
            )
        finally:
            os.close(parent)
        as_user(identity, lambda: _make_and_enter(path))


def _make_and_enter(path: str) -> None:
    place = os.path.realpath(path)
    os.makedirs(place, exist_ok=True)
    if not os.access(place, os.X_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), place)
