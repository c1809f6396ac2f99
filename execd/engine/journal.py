"""The journal: which keyed and detached executions there were, so that a restarted daemon neither forgets a result nor runs a
command twice.

One file, append-only; a line a record: checksum, space, JSON. ``Begin`` is written before the program is started, ``End`` after its
output is on disk, ``Forget`` when retention lets it go. A daemon killed between the two left a run that nobody can vouch for: it is
reported as ``daemon_restarted`` and never run again.

No fsync. The journal protects against the death of the daemon, which the page cache survives; the death of the node ends the pod and
its state dir too. A line torn by a full disk or a kill ends what is read: everything before it is good, and the file is cut there.

Encoding and recovery are pure; ``Journal`` does the file's part and is called from the state dir's threads.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from typing import TYPE_CHECKING

import msgspec

from execd.model import Result  # noqa: TC001  # msgspec reads the annotations at run time

if TYPE_CHECKING:
    from collections.abc import Iterable

COMPACT_AT_BYTES = 1 << 20


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """An execution that must not run again."""

    id: str
    key: str | None
    """Digest of the idempotency key, if there is one."""
    payload: str
    """Digest of what was asked for."""
    display: str
    created_at: float
    cwd: str
    argv: list[str] | None = None
    """If that is how the caller put it."""
    is_code: bool = False


class End(msgspec.Struct, frozen=True, tag="end"):
    """It ended with this result; its streams are in the log files, as far as they were kept."""

    id: str
    result: Result
    ended_at: float
    total_bytes: dict[str, int]
    """How much each stream had, which may be more than its file holds."""
    started_at: float | None = None
    """``None``: it never ran."""


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    id: str


Record = Begin | End | Forget


class Past(msgspec.Struct):
    """What is known of one execution of a former daemon."""

    begin: Begin
    end: End | None = None


_decoder = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    body = msgspec.json.encode(record)
    return b"%08x %b\n" % (zlib.crc32(body), body)


def decode(data: bytes) -> tuple[list[Record], int]:
    """The records, and where the first torn or damaged line begins (the length of ``data`` if none does)."""
    records: list[Record] = []
    position = 0
    while (end := data.find(b"\n", position)) >= 0:
        checksum, _, body = data[position:end].partition(b" ")
        if checksum != b"%08x" % zlib.crc32(body):
            break
        try:
            records.append(_decoder.decode(body))
        except msgspec.DecodeError:
            break  # of another version: what follows may build on it
        position = end + 1
    return records, position


def recover(records: Iterable[Record]) -> dict[str, Past]:
    """What the records add up to, oldest first."""
    found: dict[str, Past] = {}
    for record in records:
        match record:
            case Begin():
                found[record.id] = Past(record)
            case End():
                if record.id in found:
                    found[record.id].end = record
            case Forget():
                found.pop(record.id, None)
    return found


class Journal:
    """The file. Opened by ``load``, closed by ``close``; every call blocks on the disk."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._size_bytes = 0
        self._live: dict[str, Past] = {}

    def load(self) -> dict[str, Past]:
        """Read what there is, cut off a torn tail, and start anew with what still matters. Raises OSError."""
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            self._live = recover(decode(file.read())[0])
        self._compact()
        return dict(self._live)

    def append(self, record: Record) -> None:
        """Raises OSError: then nothing of the record is in the file, or a torn line that ``load`` cuts off."""
        line = encode(record)
        written = os.pwrite(self._fd, line, self._size_bytes)
        if written != len(line):
            raise OSError(28, os.strerror(28))  # ENOSPC, in the middle of the line; the next one overwrites it
        self._size_bytes += written
        match record:
            case Begin():
                self._live[record.id] = Past(record)
            case End() if record.id in self._live:
                self._live[record.id].end = record
            case Forget():
                self._live.pop(record.id, None)
        if self._size_bytes > COMPACT_AT_BYTES and self._size_bytes > 4 * sum(map(_size, self._live.values())):
            self._compact()

    def _compact(self) -> None:
        """Write the live records to a new file and put it in the old one's place."""
        temporary = self._path + ".new"
        data = b"".join(_lines(past) for past in self._live.values())
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.replace(temporary, self._path)
        except OSError:
            os.close(fd)
            raise
        self.close()
        self._fd, self._size_bytes = fd, len(data)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _lines(past: Past) -> bytes:
    return encode(past.begin) + (encode(past.end) if past.end is not None else b"")


def _size(past: Past) -> int:
    return len(_lines(past))
