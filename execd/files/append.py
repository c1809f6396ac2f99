"""Extend a file in place: appends, and uploads resumed after an interruption.

Theory. Unlike an upload (``write``), an extension changes the existing file: readers see the file
grow, and the bytes written stay when the caller leaves in the middle. Resuming depends on both:
HEAD returns the size, which is the offset to resume at. A caller who wants all or nothing writes to
another name and moves the file.

* An append writes to the end of the file at the moment of the write (O_APPEND). Two concurrent
  appends both arrive; pieces longer than a single write may alternate.
* An upload at an offset begins at the end of the file, or is refused (Conflict with the size).
  flock(2) excludes a second upload: two clients that resume at the same offset would otherwise mix
  two uploads in the same file.
* After a digest mismatch the request's bytes are removed again. An append cannot remove bytes,
  since other appends may have followed, so appends take no digest.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import TYPE_CHECKING

from execd.errors import Conflict, InvalidArgument, PayloadTooLarge
from execd.files.paths import blame
from execd.files.read import etag
from execd.files.resolve import ResolvedPath, TreeChanged, reopen, undoing
from execd.files.root import Root, refuse_unless_file, retrying
from execd.files.write import PLAINLY, Writing

if TYPE_CHECKING:
    import hashlib

    from execd.files.root import Room

HASHED_AT_ONCE_BYTES = 1 << 20


class InPlaceUpload:
    """An upload that extends a file. Owns a descriptor; ``commit`` or ``abort`` ends the upload.

    Not safe for two threads at a time.
    """

    def __init__(
        self,
        fd: int,
        path: str,
        how: Writing,
        offset: int | None,
        room: Room | None,
    ) -> None:
        self._fd = fd
        self._path = path
        self._how = how
        self._start = offset
        self._end = os.fstat(fd).st_size if offset is None else offset
        self._room = room

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write at the end. Bytes written before an error stay.

        Raises PayloadTooLarge, NoSpace, ReadOnly, PermissionDenied.
        """
        assert self._fd >= 0, "write after the end"
        with memoryview(data).cast("B") as view:
            if self._how.max_bytes and self._end + len(view) > self._how.max_bytes:
                raise PayloadTooLarge(
                    f"{self._path!r}: a file may get at most {self._how.max_bytes} bytes by uploads"
                )
            if self._room is not None:
                self._room.take(len(view))
            n_written = 0
            try:
                while n_written < len(view):
                    if self._start is None:
                        n_written += os.write(self._fd, view[n_written:])
                    else:
                        n_written += os.pwrite(self._fd, view[n_written:], self._end + n_written)
            except OSError as error:
                raise blame(error, repr(self._path)) from error
            finally:
                self._end += n_written

    def commit(self) -> str:
        """End the upload and return the file's entity tag. Raises InvalidArgument if the whole file
        has another digest than requested."""
        assert self._fd >= 0, "commit after the end"
        try:
            wanted = self._how.sha256
            if wanted is not None and (seen := self._whole_sha256()).digest() != wanted:
                os.ftruncate(self._fd, self._start or 0)
                raise InvalidArgument(
                    f"{self._path!r}: would get another sha-256 than the request says; what it "
                    "sent was taken back",
                    sha256=seen.hexdigest(),
                )
            if self._how.syncs:
                os.fsync(self._fd)
            return etag(os.fstat(self._fd))
        except OSError as error:
            raise blame(error, repr(self._path)) from error
        finally:
            self.abort()

    def abort(self) -> None:
        """End the upload. Bytes written stay. Idempotent, and harmless after ``commit``."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _whole_sha256(self) -> hashlib._Hash:
        import hashlib  # see lean_imports

        seen, offset = hashlib.sha256(), 0
        while data := os.pread(self._fd, min(HASHED_AT_ONCE_BYTES, self._end - offset), offset):
            seen.update(data)
            offset += len(data)
        return seen


@retrying
def extend(
    root: Root, path: str, how: Writing = PLAINLY, *, offset: int | None = None
) -> InPlaceUpload:
    """Begin to write at the end of the file at ``path``; a missing file and missing parents are
    made.

    ``offset`` is where the caller expects the end; None means any. The caller ends the upload.
    Raises Conflict (another size, or a concurrent upload at an offset), and the errors of
    ``write.create``.
    """
    with root.resolve(path) as resolved:
        refuse_unless_file(resolved, path)
        info = resolved.leaf_stat
        how.precondition.check(None if info is None else etag(info), repr(path))
        if info is None and offset:
            raise Conflict(
                f"{path!r}: there is nothing to go on from; start with offset=0", size_bytes=0
            )
        resolved.make_directories()
        fd = _open(resolved, how.mode, offset, is_read=how.sha256 is not None)
    with undoing(os.close, fd):
        if offset is not None:
            _lock_and_check_end(fd, path, offset)
        return InPlaceUpload(fd, path, how, offset, room=root.room_of(fd))


def _open(resolved: ResolvedPath, mode: int | None, offset: int | None, *, is_read: bool) -> int:
    flags = (os.O_RDWR if is_read else os.O_WRONLY) | (os.O_APPEND if offset is None else 0)
    if resolved.leaf_stat is not None:
        try:
            return reopen(resolved.leaf, flags)
        except FileNotFoundError:
            raise TreeChanged from None
    flags |= os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(
            resolved.names[0], flags, 0o666 if mode is None else 0o600, dir_fd=resolved.directory
        )
    except (FileExistsError, FileNotFoundError):
        raise TreeChanged from None
    with undoing(os.close, fd):
        if mode is not None:
            os.fchmod(fd, mode)
        return fd


def _lock_and_check_end(fd: int, path: str, offset: int) -> None:
    """Lock the file, and check that the file ends at ``offset``. Raises Conflict."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            raise Conflict(
                f"{path!r}: another upload to it, or a program with a lock on it, is under way; "
                "repeat the request when it is over"
            ) from None
        # a file system without locks
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
            raise
    size_bytes = os.fstat(fd).st_size
    if size_bytes != offset:
        raise Conflict(
            f"{path!r}: has {size_bytes} bytes, so nothing can be written on at {offset}; send "
            f"offset={size_bytes} and the bytes from there on",
            size_bytes=size_bytes,
        )
