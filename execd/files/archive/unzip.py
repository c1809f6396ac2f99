"""Unpack zip archives. A zip is read from the end, so the whole archive goes to disk first.

The spool file has no name and disappears with the descriptor.

zipfile reads the archive, and trusts the archive in two places. First, zipfile reads the directory
in a single piece, as large as an end record claims. So ``_Bounded`` limits the size of a read
instead of trusting the records. Second, zipfile bounds the output of a read only for deflate: 2 kB
of bzip2 become gigabytes in memory. So other methods are refused; programs that make zips use
deflate.
"""

from __future__ import annotations

import codecs
import io
import os
import stat
import struct
import tempfile
import zipfile
import zlib
from calendar import timegm
from typing import TYPE_CHECKING

from execd.errors import InvalidArgument, PayloadTooLarge
from execd.files.archive.tree import MAX_NAMES_BYTES, Member, too_many_names
from execd.files.write import write_all

if TYPE_CHECKING:
    from execd.files.archive.tree import Tree, UnpackingLimits

_READ_AT_ONCE_BYTES = 256 * 1024
_MAX_LINK_BYTES = 4095
_ENTRY_SIGNATURE = b"PK\x01\x02"
# The encoding of old names. Loaded at import: a thread of another user may not be allowed to read
# Python's files.
codecs.lookup("cp437")
# APPNOTE.TXT 4.4.2.2 (the upper byte of "version made by"): MS-DOS, OS/2, NTFS, VFAT. Info-ZIP
# has 11 for NTFS.
_DOS_SYSTEMS = (0, 6, 10, 11, 14)
_UNIX_SYSTEMS = (3, 19)  # Unix, and macOS
_UTF8_FLAG = 1 << 11  # APPNOTE.TXT, appendix D
_UNICODE_PATH = 0x7075  # APPNOTE.TXT 4.6.9
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
    """Spools the bytes, then unpacks the members. Owns a descriptor."""

    def __init__(self, tree: Tree, directory: int, limits: UnpackingLimits) -> None:
        """``directory`` is where the spool file goes. Raises OSError."""
        self._tree = tree
        self._limits = limits
        self._file = tempfile.TemporaryFile(  # noqa: SIM115  # closed by ``close``
            dir=f"/proc/self/fd/{directory}", buffering=0
        )

    def feed(self, data: bytes) -> None:
        self._tree.take_room(len(data))
        write_all(self._file.fileno(), data)

    def finish(self) -> None:
        """Unpack the members. Raises InvalidArgument, PayloadTooLarge, OSError."""
        try:
            with (
                _Bounded(self._file.fileno(), self._limits.max_entries) as file,
                zipfile.ZipFile(file) as archive,
            ):
                file.max_entries = None  # from here on zipfile reads contents in pieces
                for info in archive.infolist():
                    self._member(archive, info)
        except _UNREADABLE as error:
            raise InvalidArgument(f"format: the body is no zip that can be read: {error}") from None

    def close(self) -> None:
        self._file.close()

    def _member(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        if info.flag_bits & 1:
            raise InvalidArgument(f"{info.filename!r} in the archive is encrypted")
        if info.compress_type not in _METHODS:
            raise InvalidArgument(
                f"{info.filename!r} in the archive is compressed in another way than deflate"
            )
        mode = info.external_attr >> 16
        name = _name(info)
        modified_at = _modified_at(info)
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            raise InvalidArgument(f"{info.filename!r} in the archive is a special file")
        if name.endswith(b"/") or stat.S_ISDIR(mode):
            self._tree.begin(Member(name, "directory", 0, mode & 0o3777 or 0o755, modified_at, b""))
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
            # The stated size is not trusted, and not used.
            self._tree.begin(Member(name, "file", 0, mode & 0o777 or 0o644, modified_at, b""))
            while data := content.read(_READ_AT_ONCE_BYTES):
                self._tree.write(data)
            self._tree.end()


class _Bounded(io.FileIO):
    """A file that refuses reads larger than a directory may be, and too many entries.

    The descriptor belongs to the caller.
    """

    def __init__(self, fd: int, max_entries: int) -> None:
        super().__init__(fd, "rb", closefd=False)
        self.max_entries: int | None = max_entries

    def read(self, size: int | None = -1, /) -> bytes:
        """Read at most ``size`` bytes. Raises PayloadTooLarge."""
        if self.max_entries is None:
            return super().read(size)
        n_left = os.fstat(self.fileno()).st_size - self.tell()
        n_bytes = n_left if size is None or size < 0 else min(size, n_left)
        if n_bytes > MAX_NAMES_BYTES:
            raise too_many_names()
        data = super().read(n_bytes)
        if data.count(_ENTRY_SIGNATURE) > self.max_entries:
            raise PayloadTooLarge(f"the archive has more than {self.max_entries} entries")
        return data


def _name(info: zipfile.ZipInfo) -> bytes:
    """Return an entry's name as the program that made the archive meant the name.

    Info-ZIP on Linux writes the bytes of a name as they are, and no flag for UTF-8. Programs on
    Windows write code page 437, with the name in UTF-8 in an extra field; old programs of .NET
    write backslashes.
    """
    if info.flag_bits & _UTF8_FLAG:
        name = info.orig_filename.encode("utf-8", "surrogateescape")
    else:
        raw = info.orig_filename.encode("cp437")  # zipfile has decoded every byte
        name = _unicode_path(info.extra, raw) or (
            raw if info.create_system in _UNIX_SYSTEMS else info.orig_filename.encode()
        )
    if info.create_system in _DOS_SYSTEMS and b"/" not in name:
        name = name.replace(b"\\", b"/")
    return name


def _unicode_path(extra: bytes, raw: bytes) -> bytes | None:
    """Return the name in the extra field, unless a program has changed the name ``raw`` since."""
    while len(extra) >= 4:
        kind, n_bytes = struct.unpack_from("<HH", extra)
        field, extra = extra[4 : 4 + n_bytes], extra[4 + n_bytes :]
        if kind == _UNICODE_PATH and field[:5] == b"\1" + struct.pack("<L", zlib.crc32(raw)):
            return field[5:]
    return None


def _modified_at(info: zipfile.ZipInfo) -> float:
    """Return an entry's time. Programs without a date, Go's among them, write zeros, which are no
    valid month or day."""
    year, month, day, *time = info.date_time
    return float(timegm((year, min(max(month, 1), 12), max(day, 1), *time, 0, 0, 0)))
