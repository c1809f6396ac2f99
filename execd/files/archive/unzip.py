"""Zip archives. They are read from their end, so the whole is on disk first: in a file without a
name, gone with its descriptor.

zipfile does the reading, and trusts an archive twice. It reads its directory in one piece, however
large one of several end records says it is, so here the piece is measured (``_Bounded``), and not
what the records say. And of the ways to compress it bounds what comes out of one read for deflate
only: 2 kB of bzip2 become gigabytes in memory. So others are refused; what makes zips writes
deflate.
"""

from __future__ import annotations

import codecs
import io
import os
import secrets
import stat
import struct
import zipfile
import zlib
from calendar import timegm
from typing import TYPE_CHECKING

from execd.errors import InvalidArgument, PayloadTooLarge
from execd.files.archive.tar import Member
from execd.files.write import TEMPORARY_PREFIX, write_all

if TYPE_CHECKING:
    from execd.files.archive.tree import Tree, UnpackingLimits

_READ_AT_ONCE_BYTES = 256 * 1024
_MAX_LINK_BYTES = 4095
# The end record and its longest comment, which zipfile reads at once, too.
_TAIL_BYTES = 22 + 65535
# An entry of the directory at the end: 46 bytes, a name, extra fields, a comment; all of it is in
# memory at once.
_MAX_DIRECTORY_BYTES_AN_ENTRY = 1024
_ENTRY_SIGNATURE = b"PK\x01\x02"
# The encoding of old names. Loaded now: a thread of another user may not read Python's files.
codecs.lookup("cp437")
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    UnicodeError,
    struct.error,
    ValueError,
)


class ZipSpool:
    """The bytes, then the members. Owns one descriptor."""

    def __init__(self, tree: Tree, directory: int, limits: UnpackingLimits) -> None:
        """Raises OSError. ``directory`` is where there is room."""
        self._tree = tree
        self._limits = limits
        name = TEMPORARY_PREFIX + secrets.token_hex(8).encode()
        # Not O_TMPFILE: gVisor has none.
        self._fd = os.open(
            name,
            os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
            dir_fd=directory,
        )
        os.unlink(name, dir_fd=directory)

    def feed(self, data: bytes) -> None:
        write_all(self._fd, data)

    def finish(self) -> None:
        """Raises InvalidArgument, PayloadTooLarge, OSError."""
        try:
            with (
                _Bounded(self._fd, self._limits.max_entries) as file,
                zipfile.ZipFile(file) as archive,
            ):
                file.max_entries = None  # from here on zipfile reads contents, piece by piece
                for info in archive.infolist():
                    self._member(archive, info)
        except _UNREADABLE as error:
            raise InvalidArgument(f"the body is no zip archive that can be read: {error}") from None

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _member(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        if info.flag_bits & 1:
            raise InvalidArgument(f"{info.filename!r} in the archive is encrypted")
        if info.compress_type not in _METHODS:
            raise InvalidArgument(
                f"{info.filename!r} in the archive is compressed in another way than deflate"
            )
        mode = info.external_attr >> 16
        name = info.filename.encode("utf-8", "surrogateescape")
        modified_at = _modified_at(info)
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            raise InvalidArgument(f"{info.filename!r} in the archive is a special file")
        if info.is_dir() or stat.S_ISDIR(mode):
            self._tree.begin(Member(name, "directory", 0, mode & 0o777 or 0o755, modified_at, b""))
            return
        with archive.open(info) as content:
            if stat.S_ISLNK(mode):
                target = content.read(_MAX_LINK_BYTES + 1)
                if len(target) > _MAX_LINK_BYTES:
                    raise InvalidArgument(
                        f"{info.filename!r} in the archive is a link that no system could follow"
                    )
                self._tree.begin(Member(name, "symlink", 0, 0o777, modified_at, target))
                return
            # What it says of its size is not believed, so it is not asked.
            self._tree.begin(Member(name, "file", 0, mode & 0o777 or 0o644, modified_at, b""))
            while data := content.read(_READ_AT_ONCE_BYTES):
                self._tree.write(data)
            self._tree.end()


class _Bounded(io.FileIO):
    """A file that refuses to be read in larger pieces than a directory of so many entries may have.
    Its descriptor stays another's."""

    def __init__(self, fd: int, max_entries: int) -> None:
        super().__init__(fd, "rb", closefd=False)
        self.max_entries: int | None = max_entries

    def read(self, size: int | None = -1, /) -> bytes:
        """Raises PayloadTooLarge."""
        if self.max_entries is None:
            return super().read(size)
        n_left = os.fstat(self.fileno()).st_size - self.tell()
        n_bytes = n_left if size is None or size < 0 else min(size, n_left)
        if n_bytes <= max(_TAIL_BYTES, self.max_entries * _MAX_DIRECTORY_BYTES_AN_ENTRY):
            data = super().read(n_bytes)
            if data.count(_ENTRY_SIGNATURE) <= self.max_entries:
                return data
        raise PayloadTooLarge(f"the archive has more than {self.max_entries} entries")


def _modified_at(info: zipfile.ZipInfo) -> float:
    """Programs without a date to give, Go's among them, write zeros, which is no day of any
    month."""
    year, month, day, *time = info.date_time
    return float(timegm((year, min(max(month, 1), 12), max(day, 1), *time, 0, 0, 0)))
