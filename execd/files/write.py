"""Writing one file: all of it or nothing.

Theory. The bytes go to a temporary file in the target's own directory (the only place known to be
on the same file system and writable: the pod's root may be read-only and have no /tmp), and one
rename puts it in place. Both directory and temporary are held by descriptor from the walk on, so
nothing that happens to names in between can redirect a write. Readers see the old file or the new
one, never a part; of two uploads to one name the last commit wins.

What replacing costs against writing in place: other hard links keep the old content, ACLs and
extended attributes are not carried over, and the directory must be writable where the file alone
might have been.

fsync on request only (``--fsync uploads``). Most sandboxes' files live on an emptyDir or in memory
and die with the pod, which a crash of the node ends too; there fsync adds durability nobody can
come back for, at about two and a half times the cost of a small upload (0.12 against 0.31 ms on a
local disk, measured). On a persistent volume the next pod does come back, and could find an empty
file under the new name. So then the file is synced before the rename, as sandboxd does: a crash
leaves the old file or the new one, whole. The rename itself may be lost with the last moments
before the crash. Errors of late allocation (NFS, FUSE) show at close, which comes before the rename
for that reason.

Leftovers. An aborted upload removes its temporary. A daemon that is killed cannot: then
``.execd-upload-*`` stays where user code can see and remove it. No search for them at start: it
would walk trees of any size before the first answer, to save the space of the few uploads that were
under way, and the directories to look in are known to nobody. The name carries a token of this
process, and listings leave out only files with the own one: leftovers are listed.

Conditions (If-Match, If-None-Match) are judged at the beginning, so that a caller need not send
what will be refused, and again at the rename, under a lock that every rename to the same name by
this process takes: of two uploads with the same If-Match one is refused. User code takes no lock of
ours; what it writes between our last look and the rename is lost, as it would be between any two
programs. "Only if nothing is there" is kept by the kernel (renameat2), also against user code.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import threading

from execd.errors import Conflict, ExecdError, InvalidArgument, PayloadTooLarge
from execd.files.digest import DigestCheck
from execd.files.paths import blame
from execd.files.read import etag
from execd.files.resolve import ResolvedPath, TreeChanged
from execd.files.root import Root, retry_on_change
from execd.files.syscalls import rename_without_replacing
from execd.model import NO_PRECONDITION, Precondition

TEMPORARY_PREFIX = f".execd-upload-{secrets.token_hex(4)}-".encode()

# Stripes and not one lock: a disk that hangs in a rename holds up only those whose names fall
# together with its own.
_COMMITS = [threading.Lock() for _ in range(64)]

# Of a mode that is kept, the bits a write(2) would keep: it clears set-user-ID and set-group-ID.
_KEPT_MODE = 0o1777


class AtomicUpload:
    """A file in the making. Owns a directory descriptor, a temporary file and its descriptor.

    ``commit`` or ``abort`` ends it, and so does a failed ``write``. Not for two threads at a time.
    """

    def __init__(
        self,
        resolved: ResolvedPath,
        path: str,
        max_bytes: int,
        *,
        mode: int | None = None,
        precondition: Precondition = NO_PRECONDITION,
        sha256: bytes | None = None,
        syncs: bool = False,
    ) -> None:
        """Take over the directory of ``resolved``. Raises OSError, TreeChanged,
        PreconditionFailed."""
        self._path = path
        self._max_bytes = max_bytes
        self._mode = mode
        self._syncs = syncs
        self._precondition = precondition
        self._digest = None if sha256 is None else DigestCheck(sha256)
        precondition.check(
            None if resolved.leaf_stat is None else etag(resolved.leaf_stat), repr(path)
        )
        self._n_bytes = 0
        self._name = resolved.names[0]
        self._replaced = resolved.leaf_stat
        self._temporary = TEMPORARY_PREFIX + secrets.token_hex(8).encode()
        self._directory = os.dup(resolved.directory)
        try:
            # Bytes that will end in a private file are private from the start.
            initial_mode = 0o666 if self._replaced is None and mode is None else 0o600
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(self._temporary, flags, initial_mode, dir_fd=self._directory)
        except FileNotFoundError:
            os.close(self._directory)
            raise TreeChanged from None  # the directory was removed since the walk
        except BaseException:
            os.close(self._directory)
            raise

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append ``data``, all of it; ``max_bytes`` is judged before anything of it is written.

        Raises PayloadTooLarge, NoSpace, ReadOnly, PermissionDenied. Then the draft has ended and
        nothing is left.
        """
        assert self._fd >= 0, "write after the end"
        with memoryview(data).cast("B") as view:
            if self._max_bytes and self._n_bytes + len(view) > self._max_bytes:
                self.abort()
                raise PayloadTooLarge(
                    f"{self._path!r}: an upload may have at most {self._max_bytes} bytes"
                )
            if self._digest is not None:
                self._digest.update(view)
            try:
                write_all(self._fd, view)
            except OSError as error:
                self.abort()
                raise blame(error, repr(self._path)) from error
            self._n_bytes += len(view)

    def commit(self) -> str:
        """Put the file in place; its entity tag.

        Raises as ``write``; Conflict if its directory is gone; PreconditionFailed; InvalidArgument
        for a digest that does not match. Then nothing is left of it.
        """
        assert self._fd >= 0, "commit after the end"
        file = -1
        try:
            if self._digest is not None:
                self._digest.check(repr(self._path))
            self._take_over_attributes()
            if self._syncs:
                os.fsync(self._fd)
            # Its entity tag has the time of the rename in it, and by then its name may be
            # another's.
            file = os.open(f"/proc/self/fd/{self._fd}", os.O_PATH | os.O_CLOEXEC)
            fd, self._fd = self._fd, -1
            os.close(fd)  # raises what NFS and FUSE held back; the descriptor is gone all the same
            self._put_in_place()
            tag = etag(os.fstat(file))
        except ExecdError:
            self.abort()
            raise
        except OSError as error:
            self.abort()
            if isinstance(error, FileNotFoundError):
                raise Conflict(
                    f"{self._path!r}: its directory, or the temporary file in it, was removed "
                    "during the upload"
                ) from None
            raise blame(error, repr(self._path)) from error
        finally:
            if file >= 0:
                os.close(file)
        self._close_directory()
        return tag

    def _put_in_place(self) -> None:
        info = os.fstat(self._directory)
        with _COMMITS[hash((info.st_dev, info.st_ino, self._name)) % len(_COMMITS)]:
            if self._precondition.is_create_only:
                try:
                    rename_without_replacing(
                        self._directory, self._temporary, self._directory, self._name
                    )
                except FileExistsError:
                    self._precondition.check(etag(self._present() or info), repr(self._path))
                    raise
                return
            if self._precondition != NO_PRECONDITION:
                present = self._present()
                self._precondition.check(
                    None if present is None else etag(present), repr(self._path)
                )
            os.rename(
                self._temporary, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory
            )

    def _present(self) -> os.stat_result | None:
        try:
            return os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def abort(self) -> None:
        """Remove the temporary and close everything. Idempotent, and harmless after ``commit``."""
        fd, self._fd = self._fd, -1
        if self._directory < 0:
            return
        # Nobody could do better if one of these fails: user code was faster, or the file system is
        # gone or read-only.
        with contextlib.suppress(OSError):
            os.unlink(self._temporary, dir_fd=self._directory)
        self._close_directory()
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _take_over_attributes(self) -> None:
        """Give the file that is replaced on with mode and owner, as writing into it would have; or
        the mode asked for."""
        # As they are now: an upload may take minutes, and a chmod in that time is meant to stay.
        replaced = self._present() or self._replaced
        if replaced is None or not stat.S_ISREG(replaced.st_mode):
            if self._mode is not None:
                os.fchmod(self._fd, self._mode)
            return
        ours = os.fstat(self._fd)
        if (ours.st_uid, ours.st_gid) != (replaced.st_uid, replaced.st_gid):
            # only root gives files away; others own what they upload
            with contextlib.suppress(PermissionError):
                os.fchown(self._fd, replaced.st_uid, replaced.st_gid)
        mode = replaced.st_mode & _KEPT_MODE if self._mode is None else self._mode
        if stat.S_IMODE(ours.st_mode) != mode:
            os.fchmod(self._fd, mode)

    def _close_directory(self) -> None:
        directory, self._directory = self._directory, -1
        if directory >= 0:
            os.close(directory)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """write(2) may take less than it is given. Raises OSError."""
    with memoryview(data) as view:
        n_written = 0
        while n_written < len(view):
            n_written += os.write(fd, view[n_written:])


def create(
    root: Root,
    path: str,
    max_bytes: int = 0,
    *,
    mode: int | None = None,
    precondition: Precondition = NO_PRECONDITION,
    sha256: bytes | None = None,
    syncs: bool = False,
) -> AtomicUpload:
    """Begin to write the file at ``path``; missing parents are made, a link that stays inside is
    written through.

    ``max_bytes`` 0 means no limit; ``mode`` None means the umask's, or that of the file replaced;
    with ``sha256`` only a content of this digest is put in place; with ``syncs`` only one that the
    disk has. The caller ends the draft. Raises InvalidArgument (a directory, not a regular file, a
    parent that is no directory), PermissionDenied, NoSpace, ReadOnly, Conflict, PreconditionFailed.
    """

    def attempt() -> AtomicUpload:
        with root.resolve(path) as resolved:
            if not resolved.names:
                raise InvalidArgument(f"{path!r} is a directory")
            if resolved.leaf_stat is not None:
                if len(resolved.names) > 1:
                    raise InvalidArgument(f"{path!r}: parent is not a directory")
                if not stat.S_ISREG(resolved.leaf_stat.st_mode):
                    raise InvalidArgument(f"{path!r} is not a regular file")
            if precondition.match is not None:
                # Before parents are made for nothing.
                precondition.check(
                    None if resolved.leaf_stat is None else etag(resolved.leaf_stat), repr(path)
                )
            resolved.make_directories()
            return AtomicUpload(
                resolved,
                path,
                max_bytes,
                mode=mode,
                precondition=precondition,
                sha256=sha256,
                syncs=syncs,
            )

    return retry_on_change(attempt, path)
