"""Write a file atomically: the whole content or nothing.

Theory. The bytes go to a temporary file in the target's own directory, and a rename puts the file
in place. The target's directory is the only directory known to be on the same file system and
writable: the pod's root may be read-only, without /tmp. The upload holds directory and temporary
file by descriptor from the walk on, so no change of names can redirect a write. Readers see the old
file or the new file, never a part. Of two uploads to a name the last commit wins.

Replacing costs more than writing in place: hard links keep the old content, ACLs and extended
attributes are not carried over, and the directory must be writable, where the file alone might have
been. A mounted file, as /etc/hosts of a pod is, cannot be replaced. When all bytes are there, they
are copied into the file (``replace``). If the directory takes no temporary file, as in a pod with
a read-only root, the base dir holds the file's bytes meanwhile. A caller may ask for the copying
(``Writing.in_place``): the file keeps its inode, and a file that open(2) refuses stays as it is.

fsync happens only on request (``--fsync uploads``). Most sandboxes keep files on an emptyDir or in
memory. Such files die with the pod, and a crash of the node ends the pod too, so fsync would
preserve nothing. It costs about two and a half times a small upload (0.31 ms against 0.12 ms on a
local disk, measured). A persistent volume outlives the pod, and the next pod could find an empty
file under the new name. So with the setting the file is synced before the rename, as in sandboxd: a
crash leaves the old file or the new file, whole. The rename itself may be lost with the last
moments before the crash. NFS and FUSE report errors of late allocation at close, so the close comes
before the rename.

Leftovers. An aborted upload removes the temporary file. A killed daemon cannot: ``.execd-upload-*``
stays where user code can see and remove the file. The daemon does not search for leftovers at
start: the search would walk trees of any size before the first answer, to save the space of a few
uploads. The name carries a token of this process. Listings omit only files with the process's own
token, so leftovers are listed.

Conditions (If-Match, If-None-Match) are checked twice. The check at the beginning saves the caller
from sending a body in vain. The check at the rename holds a lock shared by all renames of this
process to the same name: of two uploads with the same If-Match the second is refused. User code
takes no such lock; a write by user code between the second check and the rename is lost, as between
any two programs. The kernel enforces "only if nothing is there" (renameat2), also against user
code.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import threading
from typing import TYPE_CHECKING

import msgspec

from execd.errors import Conflict, ExecdError, InvalidArgument, NoSpace, PayloadTooLarge
from execd.files.attributes import set_attributes
from execd.files.mounts import mount_points
from execd.files.paths import blame
from execd.files.read import etag
from execd.files.resolve import ResolvedPath, TreeChanged, reopen
from execd.files.root import Root, refuse_unless_file, retrying
from execd.files.syscalls import rename_without_replacing
from execd.model import NO_PRECONDITION, Precondition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from execd.files.root import Room

TEMPORARY_PREFIX = f".execd-upload-{secrets.token_hex(4)}-".encode()

# copy_file_range(2) would be faster on some disks, but gVisor lacks the call.
COPIED_AT_ONCE_BYTES = 1 << 20

# Stripes rather than a single lock: a disk that hangs in a rename delays only names with the same
# stripe.
_COMMITS = [threading.Lock() for _ in range(64)]

# The mode bits that write(2) keeps: write(2) clears set-user-ID and set-group-ID.
_KEPT_MODE = 0o1777


class Writing(msgspec.Struct, frozen=True, kw_only=True):
    """How a file is to be written."""

    max_bytes: int = 0
    """0: no limit."""
    mode: int | None = None
    """None: the umask's mode, or the mode of the replaced file."""
    precondition: Precondition = NO_PRECONDITION
    sha256: bytes | None = None
    """The digest of the file when all is written, or nothing changes."""
    in_place: bool = False
    """Write into a file that is there, which keeps its inode, instead of replacing the file."""
    syncs: bool = False
    """Whether the content is on disk when the file is in place."""
    attributes: Mapping[str, bytes] = {}
    """Extended attributes of a new file (``attributes``)."""


PLAINLY = Writing()


class DigestCheck:
    """Hashes the bytes of a request as they arrive, and compares with the caller's digest."""

    def __init__(self, sha256: bytes) -> None:
        import hashlib  # see lean_imports

        self._wanted = sha256
        self._seen = hashlib.sha256()

    def update(self, data: bytes | bytearray | memoryview) -> None:
        self._seen.update(data)

    def check(self, subject: str) -> None:
        """Compare the digests. Raises InvalidArgument."""
        if self._seen.digest() != self._wanted:
            raise InvalidArgument(
                f"{subject}: what arrived has another sha-256 than the request says",
                sha256=self._seen.hexdigest(),
            )


class AtomicUpload:
    """An upload that replaces a file. Owns a directory descriptor, a temporary file and a file
    descriptor.

    ``commit``, ``abort`` or a failed ``write`` ends the upload. Not safe for two threads at a time.
    """

    def __init__(
        self,
        resolved: ResolvedPath,
        path: str,
        how: Writing,
        room: Room | None,
        spool: int | None = None,
    ) -> None:
        """Take over the directory of ``resolved``. The temporary file is there or, for a file to be
        written in place, in the directory ``spool``, which has ``room``; None: without a limit.

        Raises OSError, TreeChanged, PreconditionFailed.
        """
        self._path = path
        self._how = how
        self._room = room
        self._digest = None if how.sha256 is None else DigestCheck(how.sha256)
        how.precondition.check(
            None if resolved.leaf_stat is None else etag(resolved.leaf_stat), repr(path)
        )
        self._n_bytes = 0
        self._name = resolved.names[0]
        self._replaced = resolved.leaf_stat
        self._temporary = TEMPORARY_PREFIX + secrets.token_hex(8).encode()
        self._spool = -1
        self._directory = os.dup(resolved.directory)
        try:
            if spool is not None:
                self._spool = os.dup(spool)
            # The temporary file is private from the start, since the file replaced may be private.
            initial_mode = 0o666 if self._replaced is None and how.mode is None else 0o600
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(
                self._temporary, flags, initial_mode, dir_fd=self._temporary_directory
            )
        except FileNotFoundError:
            self._close_directories()
            raise TreeChanged from None  # the directory was removed since the walk
        except BaseException:
            self._close_directories()
            raise
        self.has_attributes = set_attributes(self._fd, how.attributes)
        """Whether the file has the extended attributes. Not every file system has any."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append all of ``data``; ``max_bytes`` is checked before any byte is written.

        Raises PayloadTooLarge, NoSpace, ReadOnly, PermissionDenied. An error ends the upload and
        removes the temporary file.
        """
        assert self._fd >= 0, "write after the end"
        with memoryview(data).cast("B") as view:
            if self._how.max_bytes and self._n_bytes + len(view) > self._how.max_bytes:
                self.abort()
                raise PayloadTooLarge(
                    f"{self._path!r}: an upload may have at most {self._how.max_bytes} bytes"
                )
            if self._digest is not None:
                self._digest.update(view)
            try:
                if self._room is not None:
                    self._room.take(len(view))
                write_all(self._fd, view)
            except NoSpace:
                self.abort()
                raise
            except OSError as error:
                self.abort()
                raise blame(error, repr(self._path)) from error
            self._n_bytes += len(view)

    def skip(self, n_bytes: int) -> None:
        """Leave a hole, for a copy of a file with holes. Raises OSError."""
        assert self._digest is None, "a hole has no bytes to hash"
        leave_hole(self._fd, n_bytes)
        self._n_bytes += n_bytes

    def commit(self) -> str:
        """Put the file in place and return the entity tag.

        Raises the errors of ``write``; Conflict if the directory is gone; PreconditionFailed;
        InvalidArgument for a digest mismatch. An error removes the temporary file.
        """
        assert self._fd >= 0, "commit after the end"
        file = -1
        try:
            if self._digest is not None:
                self._digest.check(repr(self._path))
            self._take_over_attributes()
            if self._how.syncs:
                os.fsync(self._fd)
            # The entity tag includes the time of the rename. By then the name may belong to another
            # file, so the upload keeps a descriptor.
            file = os.open(f"/proc/self/fd/{self._fd}", os.O_PATH | os.O_CLOEXEC)
            fd, self._fd = self._fd, -1
            os.close(fd)  # NFS and FUSE report held-back errors here; the fd is freed
            is_renamed = self._put_in_place()
            tag = etag(os.fstat(file) if is_renamed else self._current_stat() or os.fstat(file))
        except ExecdError:
            self.abort()
            raise
        except OSError as error:
            self.abort()
            if isinstance(error, FileNotFoundError):
                raise Conflict(
                    f"{self._path!r}: its directory, or the temporary file in it, was removed "
                    "during the upload; repeat the request"
                ) from None
            raise blame(error, repr(self._path)) from error
        finally:
            if file >= 0:
                os.close(file)
        self._close_directories()
        return tag

    def _put_in_place(self) -> bool:
        """Return False if the content was copied into the file."""
        assert self._directory >= 0
        info = os.fstat(self._directory)
        precondition = self._how.precondition
        with _COMMITS[hash((info.st_dev, info.st_ino, self._name)) % len(_COMMITS)]:
            if precondition.is_create_only:
                try:
                    rename_without_replacing(
                        self._directory, self._temporary, self._directory, self._name
                    )
                except FileExistsError:
                    precondition.check(etag(self._current_stat() or info), repr(self._path))
                    raise
                return True
            if precondition != NO_PRECONDITION:
                current = self._current_stat()
                precondition.check(None if current is None else etag(current), repr(self._path))
            names = self._temporary_directory, self._temporary, self._directory, self._name
            if self._spool >= 0:
                write_into(*names, self._how.mode)
                return False
            return replace(*names, self._how.mode)

    @property
    def _temporary_directory(self) -> int:
        return self._directory if self._spool < 0 else self._spool

    def _current_stat(self) -> os.stat_result | None:
        try:
            return os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def abort(self) -> None:
        """Remove the temporary file and close everything. Idempotent, and harmless after
        ``commit``."""
        fd, self._fd = self._fd, -1
        if self._directory < 0:
            return
        # These calls fail if user code removed the file first, or if the file system is gone or
        # read-only. There is nothing left to do then.
        with contextlib.suppress(OSError):
            os.unlink(self._temporary, dir_fd=self._temporary_directory)
        self._close_directories()
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _take_over_attributes(self) -> None:
        """Give the new file the mode and owner of the replaced file, or the requested mode."""
        # The current attributes, not the attributes at the start: an upload may take minutes, and a
        # chmod in the meantime must last.
        replaced = self._current_stat() or self._replaced
        if replaced is None or not stat.S_ISREG(replaced.st_mode):
            if self._how.mode is not None:
                os.fchmod(self._fd, self._how.mode)
            return
        ours = os.fstat(self._fd)
        if (ours.st_uid, ours.st_gid) != (replaced.st_uid, replaced.st_gid):
            # only root can change the owner; for other users the new file is their own
            with contextlib.suppress(PermissionError):
                os.fchown(self._fd, replaced.st_uid, replaced.st_gid)
        mode = replaced.st_mode & _KEPT_MODE if self._how.mode is None else self._how.mode
        if stat.S_IMODE(ours.st_mode) != mode:
            os.fchmod(self._fd, mode)

    def _close_directories(self) -> None:
        directories = self._directory, self._spool
        self._directory = self._spool = -1
        for directory in directories:
            if directory >= 0:
                os.close(directory)


def replace(
    old_parent: int, old_name: bytes, new_parent: int, new_name: bytes, mode: int | None = None
) -> bool:
    """Rename a file, and replace the file of the new name; write into a mounted file.

    Return whether the file was renamed. Raises OSError, as ``write_into``.
    """
    try:
        os.rename(old_name, new_name, src_dir_fd=old_parent, dst_dir_fd=new_parent)
        return True
    except OSError as error:
        if (
            error.errno != errno.EBUSY
            or new_name not in mount_points(new_parent)
            or old_name in mount_points(old_parent)
            or not _is_file(old_parent, old_name)
            or not _is_file(new_parent, new_name)  # a mounted device, as /dev/null over a secret
        ):
            raise
    write_into(old_parent, old_name, new_parent, new_name, mode)
    return False


def _is_file(parent: int, name: bytes) -> bool:
    return stat.S_ISREG(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def write_into(
    old_parent: int, old_name: bytes, new_parent: int, new_name: bytes, mode: int | None = None
) -> None:
    """Copy the content of a file, and ``mode``, into the file of the new name, and remove the old
    name.

    Raises OSError; before any change, but for an error of the disk while bytes are copied.
    """
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    source = os.open(old_name, os.O_RDONLY | flags, dir_fd=old_parent)
    try:
        target = os.open(new_name, os.O_WRONLY | flags, dir_fd=new_parent)
        try:
            if mode is not None:
                os.fchmod(target, mode)
            _copy_into(source, target)
        finally:
            os.close(target)
    finally:
        os.close(source)
    os.unlink(old_name, dir_fd=old_parent)


def _copy_into(source: int, target: int) -> None:
    """Replace the content of a file in place. A full disk is found before the content changes."""
    n_bytes, n_before = os.fstat(source).st_size, os.fstat(target).st_size
    try:
        if n_bytes > n_before:
            os.posix_fallocate(target, n_before, n_bytes - n_before)
    except OSError as error:
        # Not every file system can allocate. There the copying finds the full disk.
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            os.ftruncate(target, n_before)
            raise
    while data := os.read(source, COPIED_AT_ONCE_BYTES):
        write_all(target, data)
    os.ftruncate(target, n_bytes)
    os.fsync(target)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of ``data``, since write(2) may write less. Raises OSError."""
    with memoryview(data) as view:
        n_written = 0
        while n_written < len(view):
            n_written += os.write(fd, view[n_written:])


def leave_hole(fd: int, n_bytes: int) -> None:
    """Extend a file without bytes, from the present position on. Raises OSError."""
    os.ftruncate(fd, os.lseek(fd, n_bytes, os.SEEK_CUR))


@retrying
def create(root: Root, path: str, how: Writing = PLAINLY) -> AtomicUpload:
    """Begin to write the file at ``path``; missing parents are made, links inside the root are
    followed.

    The caller ends the upload. Raises InvalidArgument (a directory, not a regular file, a parent
    that is no directory), PermissionDenied, NoSpace, ReadOnly, Conflict, PreconditionFailed.
    """
    with root.resolve(path) as resolved:
        refuse_unless_file(resolved, path)
        if how.precondition.match is not None:
            # A failed condition must not leave new parents behind.
            how.precondition.check(
                None if resolved.leaf_stat is None else etag(resolved.leaf_stat), repr(path)
            )
        resolved.make_directories()
        if not how.in_place or resolved.leaf_stat is None:
            try:
                return AtomicUpload(resolved, path, how, root.room_of(resolved.directory))
            except OSError as error:
                if error.errno not in (
                    errno.EACCES,
                    errno.EROFS,
                ) or resolved.names[0] not in mount_points(resolved.directory):
                    raise
        os.close(reopen(resolved.leaf, os.O_WRONLY))  # refused before the caller sends bytes
        with root.resolve("") as base:
            room = root.room_of(base.directory)
            return AtomicUpload(resolved, path, how, room, spool=base.directory)
