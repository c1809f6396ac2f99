"""Decode tar archives from chunks of any size (POSIX.1-2001 pax, ustar, GNU long names). Pure.

``feed`` takes bytes and returns events: a Member, pieces of content, MemberEnd. Memory is bounded
by a chunk and a block of extended headers. tarfile alone would not do: tarfile reads from a file
object and blocks, so every upload would hold a thread for as long as the client likes. Here a
thread is busy only while there is data. The decoder uses tarfile's reader of header blocks.

    HEADER --a member--> CONTENT --last byte--> PADDING --> HEADER ...
        an extended header --> EXTENDED (collected, applied to the next member) --> PADDING
        a block of zeros --> END (the rest is ignored, as by every tar)
"""

from __future__ import annotations

import re
import tarfile
from enum import Enum, auto
from typing import Literal

import msgspec

from execd.errors import InvalidArgument

BLOCK_BYTES = 512
# Room for a path, a link's target and a few attributes. Some tools store access lists in extended
# headers.
MAX_EXTENDED_BYTES = 1 << 20

EntryKind = Literal["file", "directory", "symlink", "hardlink"]

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
_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_VOLUME_LABEL = b"V"  # GNU's
# "LENGTH KEY=VALUE\n", where the length counts itself.
_RECORD = re.compile(rb"([0-9]{1,20}) ([^=]+)=")


class Member(msgspec.Struct, frozen=True):
    """An entry of an archive. The name has not been checked yet."""

    name: bytes
    kind: EntryKind
    size_bytes: int
    mode: int
    modified_at: float
    """Seconds since the epoch."""
    target: bytes
    """The target of a link: a symlink's relative to the link's directory, a hard link's relative to
    the top."""


class MemberEnd(msgspec.Struct, frozen=True):
    """The member begun last is complete."""


Event = Member | bytes | MemberEnd


class _TarState(Enum):
    HEADER = auto()
    EXTENDED = auto()
    CONTENT = auto()
    PADDING = auto()
    END = auto()


class TarDecoder:
    """Turns chunks into events. Raises InvalidArgument for a malformed archive; then the decoder
    cannot go on."""

    def __init__(self) -> None:
        self._state = _TarState.HEADER
        self._buffer = b""
        self._n_taken = 0
        """The number of bytes taken from the buffer. Cutting the buffer after each take would copy
        the rest for every header of 512 bytes."""
        self._left = 0
        self._padding = 0
        self._extended_kind = b""
        self._overrides: dict[str, bytes] = {}

    @property
    def is_complete(self) -> bool:
        """Whether the end mark was seen. Without the mark the archive was cut by the program that
        made the archive."""
        return self._state is _TarState.END

    def feed(self, chunk: bytes) -> list[Event]:
        events: list[Event] = []
        self._buffer = self._buffer[self._n_taken :] + chunk if self._n_buffered else chunk
        self._n_taken = 0
        while self._step(events):
            pass
        return events

    @property
    def _n_buffered(self) -> int:
        return len(self._buffer) - self._n_taken

    def _step(self, events: list[Event]) -> bool:
        match self._state:
            case _TarState.HEADER:
                if self._n_buffered < BLOCK_BYTES:
                    return False
                self._take_header(self._take(BLOCK_BYTES), events)
            case _TarState.EXTENDED:
                if self._n_buffered < self._left:
                    return False
                self._take_extended(self._take(self._left))
                self._state = _TarState.PADDING
            case _TarState.CONTENT:
                if self._left and not self._n_buffered:
                    return False
                data = self._take(self._left)
                self._left -= len(data)
                if data:
                    events.append(data)
                if not self._left:
                    events.append(MemberEnd())
                    self._state = _TarState.PADDING
            case _TarState.PADDING:
                self._padding -= len(self._take(self._padding))
                if self._padding:
                    return False
                self._state = _TarState.HEADER
            case _TarState.END:
                self._buffer, self._n_taken = b"", 0
                return False
        return True

    def _take(self, n_bytes: int) -> bytes:
        """Take up to ``n_bytes`` from the buffer."""
        assert n_bytes >= 0
        data = self._buffer[self._n_taken : self._n_taken + n_bytes]
        self._n_taken += len(data)
        assert self._n_taken <= len(self._buffer)
        return data

    def _take_header(self, block: bytes, events: list[Event]) -> None:
        if not any(block):
            self._state = _TarState.END
            return
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.TarError, ValueError, OverflowError) as error:
            raise InvalidArgument(f"format: the body is no tar: {error}") from None
        if info.type == _VOLUME_LABEL and not info.size:
            return  # the label of the archive; the next header follows
        self._left = info.size
        if info.type in _EXTENDED:
            if not 0 <= info.size <= MAX_EXTENDED_BYTES:
                raise InvalidArgument(
                    f"an extended header of the archive has over {MAX_EXTENDED_BYTES} bytes"
                )
            self._extended_kind = info.type
            self._state = _TarState.EXTENDED
        else:
            member = self._member(info)
            self._left = member.size_bytes
            self._overrides = {}
            self._state = _TarState.CONTENT
            events.append(member)
        self._padding = -self._left % BLOCK_BYTES

    def _member(self, info: tarfile.TarInfo) -> Member:
        name = self._overrides.get("path", info.name.encode("utf-8", "surrogateescape"))
        shown = repr(name[:200].decode("utf-8", "replace"))
        if any(key.startswith("GNU.sparse.") for key in self._overrides):
            raise InvalidArgument(f"{shown} in the archive is {_SPARSE}")
        kind = _KINDS.get(info.type)
        if kind is None:
            raise InvalidArgument(
                f"{shown} in the archive is "
                f"{_REFUSED.get(info.type, 'of a kind that is not known')}"
            )
        size_bytes, modified_at = info.size, float(info.mtime)
        try:
            if "size" in self._overrides:
                size_bytes = int(self._overrides["size"])
            if "mtime" in self._overrides:
                modified_at = float(self._overrides["mtime"])
        except ValueError:
            raise InvalidArgument(f"{shown} in the archive has a number that is none") from None
        if kind != "file":
            size_bytes = 0  # some tools write the target's size, without content
        if size_bytes < 0:
            raise InvalidArgument(f"{shown} in the archive has a negative size")
        target = self._overrides.get("linkpath", info.linkname.encode("utf-8", "surrogateescape"))
        return Member(name, kind, size_bytes, info.mode, modified_at, target)

    def _take_extended(self, data: bytes) -> None:
        match self._extended_kind:
            case tarfile.GNUTYPE_LONGNAME:
                self._overrides["path"] = data.partition(b"\0")[0]
            case tarfile.GNUTYPE_LONGLINK:
                self._overrides["linkpath"] = data.partition(b"\0")[0]
            case tarfile.XGLTYPE:
                # Applies to all members: git's commit id, and nothing that affects the place or
                # content of a file.
                pass
            case _:
                self._overrides.update(_records(data))


def _records(data: bytes) -> dict[str, bytes]:
    """Parse the records of a pax header. Raises InvalidArgument."""
    found: dict[str, bytes] = {}
    at = 0
    while at < len(data):
        match = _RECORD.match(data, at)
        end = at + int(match[1]) if match else 0
        if match is None or not match.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise InvalidArgument("an extended header of the archive is malformed")
        found[match[2].decode("utf-8", "surrogateescape")] = data[match.end() : end - 1]
        at = end
    return found
