"""Zip archives. They are read from their end, so the whole is on disk first: in a file without a name, gone with its descriptor."""

from __future__ import annotations

import os
import secrets
import stat
import struct
import zipfile
import zlib
from calendar import timegm
from typing import TYPE_CHECKING

from execd.errors import InvalidArgument, PayloadTooLarge
from execd.files.tar import Member
from execd.files.write import TEMPORARY_PREFIX, write_all

if TYPE_CHECKING:
    from execd.files.unpacked_tree import Limits, Tree

_READ_AT_ONCE_BYTES = 256 * 1024
_MAX_LINK_BYTES = 4095
# The end record and its longest comment.
_TAIL_BYTES = 22 + 65535
# An entry of the directory at the end: 46 bytes, a name, extra fields, a comment; all of it is in memory at once.
_MAX_DIRECTORY_BYTES_AN_ENTRY = 1024
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, UnicodeError, struct.error, ValueError)


class Spool:
    """The bytes, then the members. Owns one descriptor."""

    def __init__(self, tree: Tree, directory: int, limits: Limits) -> None:
        """Raises OSError. ``directory`` is where there is room."""
        self._tree = tree
        self._limits = limits
        name = TEMPORARY_PREFIX + secrets.token_hex(8).encode()
        # Not O_TMPFILE: gVisor has none.
        self._fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
        os.unlink(name, dir_fd=directory)

    def feed(self, data: bytes) -> None:
        write_all(self._fd, data)

    def finish(self) -> None:
        """Raises InvalidArgument, PayloadTooLarge, OSError."""
        self._refuse_large_directory()
        try:
            with open(self._fd, "rb", closefd=False) as file, zipfile.ZipFile(file) as archive:
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
        mode = info.external_attr >> 16
        name = info.filename.encode("utf-8", "surrogateescape")
        modified_at = float(timegm((*info.date_time, 0, 0, 0)))
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            raise InvalidArgument(f"{info.filename!r} in the archive is a special file")
        if info.is_dir() or stat.S_ISDIR(mode):
            self._tree.begin(Member(name, "directory", 0, mode & 0o777 or 0o755, modified_at, b""))
            return
        with archive.open(info) as content:
            if stat.S_ISLNK(mode):
                target = content.read(_MAX_LINK_BYTES + 1)
                if len(target) > _MAX_LINK_BYTES:
                    raise InvalidArgument(f"{info.filename!r} in the archive is a link that no system could follow")
                self._tree.begin(Member(name, "symlink", 0, 0o777, modified_at, target))
                return
            # What it says of its size is not believed, so it is not asked.
            self._tree.begin(Member(name, "file", 0, mode & 0o777 or 0o644, modified_at, b""))
            while data := content.read(_READ_AT_ONCE_BYTES):
                self._tree.write(data)
            self._tree.end()

    def _refuse_large_directory(self) -> None:
        """zipfile reads the directory of the archive whole, before anything else. Raises PayloadTooLarge."""
        size_bytes = os.fstat(self._fd).st_size
        tail = os.pread(self._fd, _TAIL_BYTES, max(0, size_bytes - _TAIL_BYTES))
        at = tail.rfind(b"PK\x05\x06")
        if at < 0 or len(tail) - at < 22:
            return  # zipfile will say what is wrong
        n_entries, directory_bytes = struct.unpack_from("<HL", tail, at + 10)
        if n_entries == 0xFFFF or directory_bytes == 0xFFFFFFFF:
            zip64 = tail.rfind(b"PK\x06\x06", 0, at)
            if zip64 >= 0 and at - zip64 >= 56:
                n_entries, directory_bytes = struct.unpack_from("<QQ", tail, zip64 + 32)
        if n_entries > self._limits.max_entries or directory_bytes > self._limits.max_entries * _MAX_DIRECTORY_BYTES_AN_ENTRY:
            raise PayloadTooLarge(f"the archive has more than {self._limits.max_entries} entries")
