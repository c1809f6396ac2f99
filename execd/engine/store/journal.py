"""The journal: which keyed and detached executions there were, so that a restarted daemon neither
forgets a result nor runs a command twice.

One file, append-only; a line a record: checksum, space, JSON. ``Begin`` is written before the
program is started, ``End`` after its output is on disk, ``Forget`` when retention lets it go. A
daemon killed between the two left a run that nobody can vouch for: it is reported as
``daemon_restarted`` and never run again.

No fsync. The journal protects against the death of the daemon, which the page cache survives; the
death of the node ends the pod and its state dir too. A line torn by a full disk or a kill ends what
is read: everything before it is good, and the file is cut there.

What the disk refuses stays known: ``repair`` puts it into a new file, when there is room or the old
file is gone.

``Journal`` does the file's part, and is called from one thread, the state dir's for the journal.
"""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from typing import TYPE_CHECKING

import msgspec

from execd.model import CellFacts, DisplayMessage, Result  # noqa: TC001  # msgspec reads the annotations at run time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
    session_id: str | None = None
    """Whose cell it is, if it is one."""
    argv: list[str] | None = None
    """If that is how the caller put it."""


class End(msgspec.Struct, frozen=True, tag="end"):
    """It ended with this result; its streams are in the log files, as far as they were kept."""

    id: str
    result: Result
    ended_at: float
    total_bytes: dict[str, int]
    """How much each stream had, which may be more than its file holds."""
    cell: CellFacts | None = None
    rich: list[DisplayMessage] = []
    started_at: float | None = None
    """``None``: it never ran."""
    pid: int | None = None
    events: bytes = b""
    """The index of its log, packed: its numbers go on being places to resume at."""


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    """It never ended: a later daemon found it so."""

    id: str
    found_at: float


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    id: str


class SessionRecorded(msgspec.Struct, frozen=True, tag="named"):
    """A session's generation has state, which dies with the daemon at the latest: whoever uses the
    name again must hear so."""

    id: str
    generation: int


class SessionDeleted(msgspec.Struct, frozen=True, tag="unnamed"):
    """It was deleted."""

    id: str


Record = Begin | End | Cut | Forget | SessionRecorded | SessionDeleted


class JournaledExecution(msgspec.Struct):
    """What is known of one execution of a former daemon."""

    begin: Begin
    end: End | Cut | None = None


_decoder = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    body = msgspec.json.encode(record)
    return b"%08x %b\n" % (zlib.crc32(body), body)


def decode(data: bytes) -> tuple[list[Record], int]:
    """The records, and where the first torn or damaged line begins (the length of ``data`` if none
    does)."""
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


class JournalState:
    """What the records add up to, oldest first."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.executions: dict[str, JournaledExecution] = {}
        self.generations: dict[str, int] = {}
        """Of sessions, by name."""
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        match record:
            case Begin():
                self.executions[record.id] = JournaledExecution(record)
            case End() | Cut() if record.id in self.executions:
                self.executions[record.id].end = record
            case Forget():
                self.executions.pop(record.id, None)
            case SessionRecorded():
                self.generations[record.id] = record.generation
            case SessionDeleted():
                self.generations.pop(record.id, None)

    def lines(self) -> Iterator[bytes]:
        """The records that still matter."""
        for past in self.executions.values():
            yield encode(past.begin) + (encode(past.end) if past.end is not None else b"")
        for name, generation in self.generations.items():
            yield encode(SessionRecorded(name, generation))


class Journal:
    """The file. Opened by ``load``, closed by ``close``; every call blocks on the disk. A relative
    path starts at ``dir_fd``."""

    def __init__(self, path: str, dir_fd: int | None = None) -> None:
        self._path = path
        self._dir_fd = dir_fd
        self._fd = -1
        self._size_bytes = 0
        self._book = JournalState()
        self._is_behind = False
        """The file lacks something of the book."""

    @property
    def generations(self) -> dict[str, int]:
        """The sessions of a former daemon by name, and how far each had come."""
        return dict(self._book.generations)

    def load(self) -> dict[str, JournaledExecution]:
        """Read what there is, cut off a torn tail, and start anew with what still matters. Raises
        OSError."""
        with contextlib.suppress(FileNotFoundError):
            self._fd = os.open(
                self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._dir_fd
            )
            with open(self._fd, "rb", closefd=False) as file:
                records, self._size_bytes = decode(file.read())
            self._book = JournalState(records)
        try:
            self._compact()
        except OSError:
            if self._fd < 0:
                raise
            os.ftruncate(self._fd, self._size_bytes)  # no room for a new file: the old one goes on
        return dict(self._book.executions)

    def append(self, record: Record) -> None:
        """Raises OSError: then nothing of the record is in the file, or a torn line that ``load``
        cuts off."""
        self._book.add(record)
        line = encode(record)
        try:
            written = os.pwrite(self._fd, line, self._size_bytes)
            if written != len(line):
                # in the middle of the line; the next one overwrites it
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._is_behind = True
            raise
        self._size_bytes += written
        is_long = self._size_bytes > COMPACT_AT_BYTES and self._size_bytes > 4 * sum(
            map(len, self._book.lines())
        )
        if is_long or self._is_behind:  # there is room again, perhaps for what was refused too
            # the record is written; what is left to do is tried again with the next one
            with contextlib.suppress(OSError):
                self._compact()

    @property
    def is_in_place(self) -> bool:
        """Whether the file is still what a later daemon would find. Raises OSError."""
        try:
            found = os.stat(self._path, dir_fd=self._dir_fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(self._fd))

    def repair(self) -> None:
        """Write a new file if this one was removed, or lacks what once could not be written. Raises
        OSError."""
        if self._is_behind or not self.is_in_place:
            self._is_behind = True
            self._compact()

    def _compact(self) -> None:
        """Write the live records to a new file and put it in the old one's place."""
        temporary = self._path + ".new"
        data = b"".join(self._book.lines())
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(temporary, flags, 0o600, dir_fd=self._dir_fd)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.replace(temporary, self._path, src_dir_fd=self._dir_fd, dst_dir_fd=self._dir_fd)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=self._dir_fd)  # it takes the room that is wanted
            raise
        self.close()
        self._fd, self._size_bytes, self._is_behind = fd, len(data), False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
