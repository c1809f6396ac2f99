"""Pack a directory, or a single file, into an archive while the archive is sent.

The packer reads only the next bytes needed, so memory does not grow with the tree. A zip keeps
about 600 bytes an entry for the directory at the end, so the number of entries of a zip is bounded.
Links are packed as links. FIFOs, sockets, devices and files that vanish before their turn are left
out. A file that becomes shorter during the read ends the archive: the header already states the
length, and an archive with made-up bytes would be worse.
"""

from __future__ import annotations

import os
import stat
import tarfile
import time
import zipfile
import zlib
from typing import TYPE_CHECKING

from execd.errors import Conflict, NotFound
from execd.files.paths import blame, blame_below, decode
from execd.files.resolve import TreeChanged, reopen, undoing
from execd.files.root import Root, retrying
from execd.files.tree_walk import Step, walk
from execd.files.write import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from execd.files.resolve import ResolvedPath
    from execd.model import ArchiveFormat

_READ_AT_ONCE_BYTES = 256 * 1024
_SMALLEST_CHUNK_BYTES = 256 * 1024


class Item:
    """An entry to pack. The code that makes the item closes the descriptor of a regular file."""

    def __init__(
        self, name: bytes, info: os.stat_result, fd: int = -1, target: bytes = b""
    ) -> None:
        self.name = name
        self.info = info
        self.fd = fd
        self.target = target

    def content(self) -> Iterator[bytes]:
        """Yield exactly as many bytes as ``info`` states. Raises Conflict, OSError."""
        return read_exactly(self.fd, self.info.st_size, self.name)


def read_exactly(fd: int, size_bytes: int, name: bytes) -> Iterator[bytes]:
    """Yield exactly as many bytes of a file. Raises Conflict, OSError."""
    assert fd >= 0
    left = size_bytes
    while left:
        data = os.read(fd, min(left, _READ_AT_ONCE_BYTES))
        if not data:
            raise Conflict(
                f"{name.decode('utf-8', 'replace')!r} became shorter while it was being packed; "
                "repeat the request"
            )
        left -= len(data)
        yield data


class Packing:
    """An archive in the making. Owns descriptors; ``close`` ends the archive.

    Not safe for two threads at a time.
    """

    def __init__(
        self,
        resolved: ResolvedPath,
        path: str,
        kind: ArchiveFormat,
        *,
        skips_unreadable: bool,
        max_zip_entries: int,
    ) -> None:
        """Take over ``resolved``."""
        self.name = decode(resolved.place.rsplit(b"/", 1)[-1]) or "root"
        self._path = path
        self._resolved = resolved
        self.n_zip_entries = 0
        """Entries packed so far into a zip, which are all in memory; 0 for a tar."""
        self._max_zip_entries = max_zip_entries
        self._items = _items(resolved, path, skips_unreadable)
        pack_items = {"tar": tar, "tar.gz": tar_gz, "zip": self._zip}[kind]
        self._pieces = pack_items(self._items)

    def _zip(self, items: Iterator[Item]) -> Generator[bytes, None, None]:
        return _zip(self._counted(items))

    def _counted(self, items: Iterator[Item]) -> Iterator[Item]:
        for item in items:
            self.n_zip_entries += 1
            if self.n_zip_entries > self._max_zip_entries:
                raise Conflict(
                    f"{self._path!r}: more than {self._max_zip_entries} entries, too many for a "
                    "zip; ask for format=tar"
                )
            yield item

    def read(self) -> bytes:
        """Return the next bytes, empty at the end. Raises Conflict, PermissionDenied: then the
        archive is not complete."""
        try:
            return next_chunk(self._pieces)
        except TreeChanged:
            raise Conflict(
                f"{self._path!r}: a directory was moved while it was being packed; repeat the "
                "request"
            ) from None
        except OSError as error:
            raise blame(error, repr(self._path)) from error

    def close(self) -> None:
        """Idempotent."""
        self._pieces.close()
        self._items.close()
        self._resolved.close()


def next_chunk(pieces: Iterator[bytes]) -> bytes:
    """Join small pieces to a chunk that is worth a trip to a thread; empty at the end."""
    joined: list[bytes] = []
    n_bytes = 0
    for piece in pieces:
        joined.append(piece)
        n_bytes += len(piece)
        if n_bytes >= _SMALLEST_CHUNK_BYTES:
            break
    return b"".join(joined)


@retrying
def pack(
    root: Root,
    path: str,
    kind: ArchiveFormat,
    *,
    skips_unreadable: bool = False,
    max_zip_entries: int,
) -> Packing:
    """Begin to pack the file or directory at ``path``; the caller closes the archive.

    Raises NotFound, PermissionDenied, InvalidArgument, Conflict.
    """
    resolved = root.resolve(path)
    with undoing(resolved.close):
        if resolved.stat is None or (resolved.names and not stat.S_ISREG(resolved.stat.st_mode)):
            raise NotFound(f"{path!r}: no such file or directory")
        return Packing(
            resolved,
            path,
            kind,
            skips_unreadable=skips_unreadable,
            max_zip_entries=max_zip_entries,
        )


def _items(
    resolved: ResolvedPath, path: str, skips_unreadable: bool
) -> Generator[Item, None, None]:
    if resolved.names:
        fd = reopen(resolved.leaf, os.O_RDONLY)
        try:
            yield Item(resolved.names[0], os.fstat(fd), fd)
        finally:
            os.close(fd)
        return
    for visit in walk(resolved.directory, resolved.forbidden, TEMPORARY_PREFIX):
        if visit.step is Step.REFUSED and visit.error is not None and not skips_unreadable:
            raise blame_below(visit.error, path, visit.path)
        if visit.step not in (Step.ENTER, Step.LEAF):
            continue
        assert visit.info is not None
        try:
            if visit.step is Step.ENTER:
                yield Item(visit.path, visit.info)
            elif stat.S_ISLNK(visit.info.st_mode):
                yield Item(
                    visit.path, visit.info, target=os.readlink(visit.name, dir_fd=visit.directory)
                )
            elif stat.S_ISREG(visit.info.st_mode):
                fd, info = visit.open_file()
                try:
                    yield Item(visit.path, info, fd)
                finally:
                    os.close(fd)
        except (FileNotFoundError, TreeChanged):
            continue
        except PermissionError as error:
            if not skips_unreadable:
                raise blame_below(error, path, visit.path) from error


def tar(items: Iterator[Item]) -> Generator[bytes, None, None]:
    for item in items:
        header = tarfile.TarInfo(decode(item.name))
        header.mode = stat.S_IMODE(item.info.st_mode)
        header.uid, header.gid = item.info.st_uid, item.info.st_gid
        header.mtime = int(item.info.st_mtime)
        if stat.S_ISDIR(item.info.st_mode):
            header.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(item.info.st_mode):
            header.type, header.linkname = tarfile.SYMTYPE, decode(item.target)
        else:
            header.size = item.info.st_size
        yield header.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        if header.size:
            yield from item.content()
            yield bytes(-header.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def tar_gz(items: Iterator[Item]) -> Generator[bytes, None, None]:
    deflate = zlib.compressobj(wbits=31)
    for piece in tar(items):
        yield deflate.compress(piece)
    yield deflate.flush()


class _Sink:
    """The file that zipfile writes to. Cannot seek, so zipfile puts sizes behind contents."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        pass

    def take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


class _ZipName(str):
    """A name that may be no UTF-8. zipfile asks for ASCII first, and marks the name as UTF-8 after
    an error. The answer for a name that is no UTF-8 are the name's bytes, without a mark, as
    Info-ZIP on Linux writes names."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        try:
            return super().encode(encoding, errors)
        except UnicodeEncodeError:
            raw = super().encode("utf-8", "surrogateescape")
            if raw.decode("utf-8", "replace") == self:
                raise
            return raw


def _zip(items: Iterator[Item]) -> Generator[bytes, None, None]:
    sink = _Sink()
    # zipfile calls only the methods that _Sink has.
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:  # type: ignore[call-overload]
        for item in items:
            is_directory = stat.S_ISDIR(item.info.st_mode)
            # The format begins with 1980 and ends with 2107.
            modified = min(max(item.info.st_mtime, 315_532_800), 4_354_819_198)
            name = _ZipName(decode(item.name) + "/" * is_directory)
            info = zipfile.ZipInfo(name, time.gmtime(modified)[:6])
            info.external_attr = (item.info.st_mode & 0xFFFF) << 16 | 0x10 * is_directory
            info.compress_type = zipfile.ZIP_DEFLATED
            if item.fd >= 0:
                info.file_size = item.info.st_size  # decides whether the sizes need 64 bits
                with archive.open(info, "w") as entry:
                    for data in item.content():
                        entry.write(data)
                        yield sink.take()
            else:
                archive.writestr(info, item.target)
            yield sink.take()
    yield sink.take()
