"""Unpack tar archives from chunks of any size (POSIX.1-2001 pax, ustar, GNU long names), plain or
compressed with gzip.

tarfile reads the header blocks. The rest of its reader would not do: it waits for bytes, so every
upload would hold a thread for as long as the client likes, and it trusts extended headers. In
Python 3.11.7, a pax header of 16 kB full of digits takes 0.7 s without the GIL for others, and four
times as much for twice the length; a sparse map of 8 MB takes minutes. Here memory is bounded by a
chunk and an extended header, and time by the bytes.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from typing import TYPE_CHECKING

from execd.errors import InvalidArgument, PayloadTooLarge
from execd.files.archive.tree import Member

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from execd.files.archive.tree import EntryKind, Tree, UnpackingLimits

GZIP_MARK = b"\x1f\x8b"
# Room for a path, a link's target and a few attributes. Some tools store access lists in extended
# headers.
MAX_EXTENDED_BYTES = 1 << 20
# The most that zlib returns in a call: a gigabyte of zeros arrives as a megabyte.
_INFLATED_AT_ONCE_BYTES = 1 << 20
# Headers and padding for each entry: a decompressed tar may exceed the bytes of the files by so
# much.
_OVERHEAD_BYTES = 4096

_KINDS: dict[bytes, EntryKind] = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.CONTTYPE: "file",
    tarfile.DIRTYPE: "directory",
    tarfile.SYMTYPE: "symlink",
    tarfile.LNKTYPE: "hardlink",
}
_SPARSE = (
    "a sparse file in GNU's own format; pack the file without --sparse (bsdtar: with "
    "--no-read-sparse)"
)
_REFUSED = {
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.FIFOTYPE: "a FIFO",
    tarfile.GNUTYPE_SPARSE: _SPARSE,
}
_LONG_NAMES = {tarfile.GNUTYPE_LONGNAME: b"path", tarfile.GNUTYPE_LONGLINK: b"linkpath"}
_EXTENDED = (*_LONG_NAMES, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_VOLUME_LABEL = b"V"  # GNU's
# "LENGTH KEY=VALUE\n", where the length counts itself.
_RECORD = re.compile(rb"([0-9]{1,20}) ([^=]+)=")
_SPARSE_KEY = b"GNU.sparse."
_KEYS = (b"path", b"linkpath", b"size", b"mtime")


class TarSource:
    """Takes the bytes of a tar, and makes the members in ``tree``.

    Raises InvalidArgument for a malformed archive, PayloadTooLarge, and the errors of the tree;
    then the archive cannot go on.
    """

    def __init__(self, tree: Tree, limits: UnpackingLimits, *, is_gzip: bool) -> None:
        self._tree = tree
        self._inflate = zlib.decompressobj(wbits=31) if is_gzip else None
        self._gzip_rest = b""
        """After a member of the gzip: the first bytes that follow, at most two."""
        self._max_bytes = limits.max_bytes + limits.max_entries * _OVERHEAD_BYTES
        self._n_bytes = 0
        self._buffer = b""
        self._n_taken = 0
        """The number of bytes taken from the buffer. Cutting the buffer after each take would copy
        the rest for every header of 512 bytes."""
        self._is_complete = False
        """Whether the end mark was seen. Without the mark the archive was cut by the program that
        made the archive."""
        self._members = self._read_members()

    def feed(self, data: bytes) -> None:
        if self._inflate is None:
            self._decode(data)
            return
        # The pieces can be single bytes, and each call of ``_decode`` copies the buffer.
        pieces: list[bytes] = []
        n_bytes = 0
        for piece in self._inflated(data):
            pieces.append(piece)
            n_bytes += len(piece)
            if n_bytes >= _INFLATED_AT_ONCE_BYTES:
                self._decode(b"".join(pieces))
                pieces, n_bytes = [], 0
        self._decode(b"".join(pieces))

    def _inflated(self, data: bytes) -> Iterator[bytes]:
        assert self._inflate is not None
        data, self._gzip_rest = self._gzip_rest + data, b""
        while data:
            # The members of a gzip file follow each other. After the last member comes padding.
            if self._inflate.eof:
                if not data.startswith(GZIP_MARK):
                    self._gzip_rest = data[: len(GZIP_MARK)]
                    return
                self._inflate = zlib.decompressobj(wbits=31)
            try:
                yield self._inflate.decompress(data, _INFLATED_AT_ONCE_BYTES)
            except zlib.error as error:
                raise InvalidArgument(f"format: the body is no tar.gz: {error}") from None
            data = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail

    def finish(self) -> None:
        if not self._is_complete or (self._inflate is not None and not self._inflate.eof):
            raise InvalidArgument("body: the archive ends before its end mark")

    def close(self) -> None:
        self._members.close()

    def _decode(self, data: bytes) -> None:
        self._n_bytes += len(data)
        if self._n_bytes > self._max_bytes:
            raise PayloadTooLarge(
                f"the archive is larger than {self._max_bytes} bytes when it is decompressed"
            )
        if not self._is_complete:  # the rest is ignored, as by every tar
            self._buffer = self._buffer[self._n_taken :] + data
            self._n_taken = 0
            next(self._members, None)

    def _read_members(self) -> Generator[None, None, None]:
        """Read the buffer, and yield where it has too few bytes."""
        overrides: dict[bytes, bytes] = {}
        while any(block := (yield from self._read(tarfile.BLOCKSIZE))):
            try:
                info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            except (tarfile.TarError, ValueError, OverflowError) as error:
                raise InvalidArgument(f"format: the body is no tar: {error}") from None
            if info.type == _VOLUME_LABEL and not info.size:
                continue  # the label of the archive
            if info.type in _EXTENDED:
                n_bytes = info.size
                if not 0 <= n_bytes <= MAX_EXTENDED_BYTES:
                    raise InvalidArgument(
                        f"an extended header of the archive has over {MAX_EXTENDED_BYTES} bytes"
                    )
                overrides |= _overrides(info.type, (yield from self._read(n_bytes)))
            else:
                member = _member(info, overrides)
                overrides = {}
                self._tree.begin(member)
                n_bytes = n_left = member.size_bytes
                while n_left:
                    if data := self._take(n_left):
                        self._tree.write(data)
                        n_left -= len(data)
                    else:
                        yield
                self._tree.end()
            yield from self._read(-n_bytes % tarfile.BLOCKSIZE)
        self._is_complete = True

    def _read(self, n_bytes: int) -> Generator[None, None, bytes]:
        while len(self._buffer) - self._n_taken < n_bytes:
            yield
        return self._take(n_bytes)

    def _take(self, n_bytes: int) -> bytes:
        """Take up to ``n_bytes`` from the buffer."""
        assert n_bytes >= 0
        data = self._buffer[self._n_taken : self._n_taken + n_bytes]
        self._n_taken += len(data)
        assert self._n_taken <= len(self._buffer)
        return data


def _member(info: tarfile.TarInfo, overrides: dict[bytes, bytes]) -> Member:
    name = overrides.get(b"path", info.name.encode("utf-8", "surrogateescape"))
    shown = repr(name[:200].decode("utf-8", "replace"))
    if _SPARSE_KEY in overrides:
        raise InvalidArgument(f"{shown} in the archive is {_SPARSE}")
    kind = _KINDS.get(info.type)
    if kind is None:
        raise InvalidArgument(
            f"{shown} in the archive is {_REFUSED.get(info.type, 'of a kind that is not known')}"
        )
    try:
        size_bytes = int(overrides.get(b"size", info.size))
        modified_at = float(overrides.get(b"mtime", info.mtime))
    except ValueError:
        raise InvalidArgument(f"{shown} in the archive has a number that is none") from None
    if kind != "file":
        size_bytes = 0  # some tools write the target's size, without content
    if size_bytes < 0:
        raise InvalidArgument(f"{shown} in the archive has a negative size")
    target = overrides.get(b"linkpath", info.linkname.encode("utf-8", "surrogateescape"))
    return Member(name, kind, size_bytes, info.mode, modified_at, target)


def _overrides(kind: bytes, data: bytes) -> dict[bytes, bytes]:
    """Return what an extended header says about the next member. Raises InvalidArgument."""
    if kind in _LONG_NAMES:
        return {_LONG_NAMES[kind]: data.partition(b"\0")[0]}
    if kind == tarfile.XGLTYPE:
        # Applies to all members: git's commit id, and nothing that affects the place or content of
        # a file.
        return {}
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        match = _RECORD.match(data, at)
        end = at + int(match[1]) if match else 0
        if match is None or not match.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise InvalidArgument("an extended header of the archive is malformed")
        # Other keys are not kept: any number of headers may come before a member.
        key = _SPARSE_KEY if match[2].startswith(_SPARSE_KEY) else match[2]
        if key in (*_KEYS, _SPARSE_KEY):
            found[key] = data[match.end() : end - 1]
        at = end
    return found
