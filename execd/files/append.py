"""Writing on at the end of a file, in place: appends, and uploads that are resumed where they broke
off.

Theory. Unlike an upload (``write``) this changes the file that is there: readers see it grow, and
what was written stays when the caller goes away in the middle. That is its purpose: HEAD then tells
the size, which is the offset to go on from. A caller who wants all or nothing writes to another
name and moves it.

* An append goes to the end, wherever that is when the kernel writes (O_APPEND). Two at once both
  arrive; their pieces may alternate where they are longer than one write.
* An upload at an offset begins where the file ends, or it is refused (Conflict, which tells the
  size). flock(2) keeps a second one out: two clients that both go on from the same offset would
  otherwise write one file out of two.
* A digest that does not match takes back what this request wrote; appends cannot take back, since
  others may have followed, so they take no digest.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat

from execd.errors import Conflict, InvalidArgument, PayloadTooLarge
from execd.files.paths import blame
from execd.files.read import etag
from execd.files.resolve import ResolvedPath, TreeChanged, reopen
from execd.files.root import Root, retry_on_change
from execd.model import NO_PRECONDITION, Precondition

HASHED_AT_ONCE_BYTES = 1 << 20


class InPlaceUpload:
    """A file that gets longer. Owns one descriptor; ``commit`` or ``abort`` ends it. Not for two
    threads at a time."""

    def __init__(
        self,
        fd: int,
        path: str,
        max_bytes: int,
        offset: int | None,
        sha256: bytes | None,
        syncs: bool,
    ) -> None:
        self._fd = fd
        self._path = path
        self._max_bytes = max_bytes
        self._start = offset
        self._end = os.fstat(fd).st_size if offset is None else offset
        self._sha256 = sha256
        self._syncs = syncs

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write on. Raises PayloadTooLarge, NoSpace, ReadOnly, PermissionDenied; what was written
        before stays."""
        assert self._fd >= 0, "write after the end"
        with memoryview(data).cast("B") as view:
            if self._max_bytes and self._end + len(view) > self._max_bytes:
                raise PayloadTooLarge(
                    f"{self._path!r}: a file may get at most {self._max_bytes} bytes by uploads"
                )
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
        """The entity tag of the file as it is now. Raises InvalidArgument if the whole has another
        digest than was said."""
        assert self._fd >= 0, "commit after the end"
        try:
            if self._sha256 is not None and (seen := self._whole_sha256()).digest() != self._sha256:
                os.ftruncate(self._fd, self._start or 0)
                raise InvalidArgument(
                    f"{self._path!r}: would get another sha-256 than the request says; what it "
                    "sent was taken back",
                    sha256=seen.hexdigest(),
                )
            if self._syncs:
                os.fsync(self._fd)
            return etag(os.fstat(self._fd))
        except OSError as error:
            raise blame(error, repr(self._path)) from error
        finally:
            self.abort()

    def abort(self) -> None:
        """Write no more. What was written stays. Idempotent, and harmless after ``commit``."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _whole_sha256(self) -> hashlib._Hash:
        seen, offset = hashlib.sha256(), 0
        while data := os.pread(self._fd, min(HASHED_AT_ONCE_BYTES, self._end - offset), offset):
            seen.update(data)
            offset += len(data)
        return seen


def extend(
    root: Root,
    path: str,
    max_bytes: int = 0,
    *,
    offset: int | None = None,
    mode: int | None = None,
    precondition: Precondition = NO_PRECONDITION,
    sha256: bytes | None = None,
    syncs: bool = False,
) -> InPlaceUpload:
    """Begin to write at the end of the file at ``path``, which is made if it is not there, with its
    parents.

    ``offset`` is where the caller believes the end to be; None: wherever it is. With ``syncs`` the
    disk has it when it is committed. The caller ends the extension. Raises Conflict (another size,
    or another upload at an offset under way), and what ``write.create`` raises.
    """

    def attempt() -> InPlaceUpload:
        with root.resolve(path) as resolved:
            if not resolved.names:
                raise InvalidArgument(f"{path!r} is a directory")
            info = resolved.leaf_stat
            if info is not None and not stat.S_ISREG(info.st_mode):
                raise InvalidArgument(f"{path!r} is not a regular file")
            if info is not None and len(resolved.names) > 1:
                raise InvalidArgument(f"{path!r}: parent is not a directory")
            precondition.check(None if info is None else etag(info), repr(path))
            if info is None and offset:
                raise Conflict(f"{path!r}: there is nothing to go on from", size_bytes=0)
            resolved.make_directories()
            fd = _open(resolved, mode, offset, is_read=sha256 is not None)
        try:
            if offset is not None:
                _claim(fd, path, offset)
            return InPlaceUpload(fd, path, max_bytes, offset, sha256, syncs)
        except BaseException:
            os.close(fd)
            raise

    return retry_on_change(attempt, path)


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
    try:
        if mode is not None:
            os.fchmod(fd, mode)
        return fd
    except BaseException:
        os.close(fd)
        raise


def _claim(fd: int, path: str, offset: int) -> None:
    """Raises Conflict."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            raise Conflict(
                f"{path!r}: another upload to it, or a program with a lock on it, is under way"
            ) from None
        # a file system without locks
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
            raise
    size_bytes = os.fstat(fd).st_size
    if size_bytes != offset:
        raise Conflict(
            f"{path!r}: has {size_bytes} bytes, so nothing can be written on at {offset}",
            size_bytes=size_bytes,
        )
