"""Unpack an archive below a directory: everything or nothing.

Theory. The author of an archive chooses names, links and sizes. Three rules bound the effect:

* The archive is unpacked in a new directory, under a temporary name next to the destination, so a
  cut, malformed or too large archive leaves nothing. Then the content is put in place. If nothing
  was there, by a single rename. Else the content is merged name by name, after a trial that finds
  no conflict (``merge``).
* Names go down through directories, each opened by a single name, never through a link (``tree``).
* Bytes and entries are counted as they are written, and the same numbers bound the work. The sizes
  stated in the archive decide nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from typing import TYPE_CHECKING

from execd.errors import InvalidArgument
from execd.files.archive.merge import Merge
from execd.files.archive.tar import GZIP_MARK, TarSource
from execd.files.archive.tree import Tree, Unpacked, UnpackingLimits
from execd.files.archive.unzip import ZipSpool
from execd.files.change import remove_below
from execd.files.paths import blame
from execd.files.resolve import ResolvedPath, TreeChanged, go_down, open_directory
from execd.files.root import Root, retrying
from execd.files.syscalls import rename_without_replacing
from execd.files.write import TEMPORARY_PREFIX, DigestCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from execd.files.root import Room
    from execd.model import ArchiveFormat

_ZIP_MARKS = (b"PK\x03\x04", b"PK\x05\x06")
# Formats that are not unpacked. bzip2's mark is long, since a tar may begin with a name in "BZh".
_OTHER_MARKS = {
    "tar.bz2": re.compile(rb"BZh[1-9]1AY&SY"),
    "tar.xz": re.compile(rb"\xfd7zXZ"),
    "tar.zst": re.compile(rb"\x28\xb5\x2f\xfd"),
    "7z": re.compile(rb"7z\xbc\xaf"),
    "rar": re.compile(rb"Rar!\x1a"),
}
_MARK_BYTES = 10
# POSIX.1-2001 pax, "ustar Interchange Format": the place of the magic.
_TAR_MARK, _TAR_MARK_AT = b"ustar", 257


def identify(head: bytes) -> ArchiveFormat | None:
    """Return the format of an archive that begins so, or None where no mark is known: old tars have
    none, and other data may precede a zip."""
    if head.startswith(GZIP_MARK):
        return "tar.gz"
    if head.startswith(_ZIP_MARKS):
        return "zip"
    return "tar" if head.startswith(_TAR_MARK, _TAR_MARK_AT) else None


class Extraction:
    """An archive that is being unpacked. Owns the temporary directory and descriptors.

    ``commit`` or ``abort`` ends the extraction. Not safe for two threads at a time.
    """

    def __init__(
        self,
        resolved: ResolvedPath,
        path: str,
        kind: ArchiveFormat | None,
        limits: UnpackingLimits,
        sha256: bytes | None,
        room_of: Callable[[int], Room | None],
    ) -> None:
        """Take over the place of ``resolved``. ``kind`` None: the first bytes of the archive
        decide. Raises OSError, TreeChanged."""
        self._path = path
        self.kind = kind
        """None until the first bytes have come, if the caller named no format."""
        self._limits = limits
        self._head = b""
        """The bytes before the source, fewer than _MARK_BYTES."""
        self._missing = resolved.names.copy()
        self._forbidden = resolved.forbidden
        self._digest = None if sha256 is None else DigestCheck(sha256)
        self._room_of = room_of
        self._temporary = TEMPORARY_PREFIX + secrets.token_hex(8).encode()
        self._source: TarSource | ZipSpool | None = None
        self._tree: Tree | None = None
        self._staging = -1
        self._directory = os.open(
            f"/proc/self/fd/{resolved.directory}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        )
        try:
            os.mkdir(self._temporary, 0o777, dir_fd=self._directory)
            self._staging = open_directory(self._temporary, self._directory)
            # The mode left by the umask is the final mode. During the work the directory is
            # private.
            self._mode = stat.S_IMODE(os.fstat(self._staging).st_mode)
            os.fchmod(self._staging, 0o700)
            self._tree = Tree(self._staging, limits, room_of(self._staging))
        except FileNotFoundError:
            self.abort()
            raise TreeChanged from None
        except BaseException:
            self.abort()
            raise

    def write(self, data: bytes) -> None:
        """Unpack a chunk. Raises InvalidArgument, PayloadTooLarge, NoSpace, ReadOnly; then nothing
        is left."""
        with self._aborting():
            if self._digest is not None:
                self._digest.update(data)
            if self._source is not None:
                self._source.feed(data)
                return
            self._head += data
            if len(self._head) >= _MARK_BYTES:
                self._begin()

    def _begin(self) -> TarSource | ZipSpool:
        """Choose the source by the first bytes and feed them. Raises as ``write``."""
        assert self._tree is not None
        assert self._source is None
        for other, mark in _OTHER_MARKS.items():
            if mark.match(self._head):
                raise InvalidArgument(
                    f"format: the body is a {other}; send a tar, tar.gz or zip instead",
                    field="format",
                )
        found = identify(self._head)
        if self.kind is not None and found not in (None, self.kind):
            raise InvalidArgument(
                f"format: the body is a {found}, not a {self.kind}; send format={found}, or no "
                "format",
                field="format",
            )
        self.kind = self.kind or found or "tar"
        if self.kind == "zip":
            self._source = ZipSpool(self._tree, self._staging, self._limits)
        else:
            self._source = TarSource(self._tree, self._limits, is_gzip=self.kind == "tar.gz")
        head, self._head = self._head, b""
        self._source.feed(head)
        return self._source

    def commit(self) -> Unpacked:
        """Put the content in place. Raises the errors of ``write``; Conflict if an entry is in the
        way, before any change."""
        assert self._tree is not None
        with self._aborting():
            if self._digest is not None:
                self._digest.check(repr(self._path))
            source = self._source or self._begin()
            source.finish()
            self._close_source()
            self._tree.refuse_links_out(self._forbidden)
            self._put_in_place()
        self.abort()
        return self._tree.done

    def abort(self) -> None:
        """Remove the content not put in place. Idempotent, and harmless after ``commit``."""
        self._close_source()
        if self._staging >= 0:
            os.close(self._staging)
            self._staging = -1
        if self._directory >= 0:
            with contextlib.suppress(OSError, TreeChanged):  # in place, or removed by user code
                remove_below(self._directory, self._temporary, self._forbidden)
            os.close(self._directory)
            self._directory = -1

    def _close_source(self) -> None:
        if self._source is not None:
            self._source.close()
        if self._tree is not None:
            self._tree.close()

    @contextlib.contextmanager
    def _aborting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.abort()
            raise blame(error, repr(self._path)) from error
        except BaseException:
            self.abort()
            raise

    def _put_in_place(self) -> None:
        assert self._directory >= 0
        assert self._staging >= 0
        assert self._tree is not None
        parent = os.dup(self._directory)
        try:
            for name in self._missing[:-1]:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o777, dir_fd=parent)
                parent = go_down(parent, name)
            if self._missing:
                os.fchmod(self._staging, self._mode)
                try:
                    rename_without_replacing(
                        self._directory, self._temporary, parent, self._missing[-1]
                    )
                except FileExistsError:
                    parent = go_down(parent, self._missing[-1])
                else:
                    self._tree.set_directory_modes(self._staging)
                    return
            merge = Merge(
                self._staging,
                parent,
                self._path,
                self._temporary,
                self._forbidden,
                self._room_of,
                self._tree.modes,
            )
            try:
                merge.run()
            finally:
                merge.close()
            self._tree.set_directory_modes(parent)
        finally:
            os.close(parent)


@retrying
def unpack(
    root: Root,
    path: str,
    kind: ArchiveFormat | None,
    limits: UnpackingLimits,
    *,
    sha256: bytes | None = None,
) -> Extraction:
    """Begin to unpack an archive below the directory ``path``; a missing directory is made.

    The caller ends the extraction. Raises InvalidArgument (not a directory), PermissionDenied,
    NoSpace, ReadOnly, Conflict.
    """
    with root.resolve(path) as resolved:
        if resolved.leaf_stat is not None:
            raise InvalidArgument(f"{path!r} is not a directory, or a parent of it is not")
        return Extraction(resolved, path, kind, limits, sha256, root.room_of)
