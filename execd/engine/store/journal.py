"""The journal: the keyed and detached executions, for a daemon that is restarted.

A restarted daemon must neither forget a result nor run a command twice.

One file, append-only. Each line is a record: checksum, space, JSON. ``Begin`` is written before the
program starts, ``End`` after the output is on disk, ``Forget`` when retention drops the execution.
If the daemon was killed between ``Begin`` and ``End``, nobody knows how far the program came: the
execution is reported as ``daemon_restarted`` and never run again.

No fsync. The journal protects against the death of the daemon, and the page cache survives that.
The death of the node ends the pod, and the state dir with the pod.

A full disk or a kill may leave a torn line. All lines before a torn line are good; ``load`` cuts
the file at the torn line. Records that the disk refused stay in memory, and ``repair`` writes them
to a new file, when there is room again or the old file is gone.

``Journal`` blocks on the disk, and is called from one thread only: the state dir's journal thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from typing import TYPE_CHECKING

import msgspec

# msgspec reads the annotations at run time.
from execd.model import CellFacts, DisplayMessage, Limits, Result, StartedBy  # noqa: TC001

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

COMPACT_AT_BYTES = 1 << 20


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """An execution that must not run again."""

    id: str
    key: str | None
    """Digest of the idempotency key."""
    payload: str
    """Digest of the request."""
    display: str
    created_at: float
    cwd: str
    session_id: str | None = None
    """The session, if the execution is a cell."""
    argv: list[str] | None = None
    """The argument list, if the caller sent a list."""
    limits: Limits | None = None
    timeout_seconds: float | None = None
    """The limits that apply. None: recorded by a daemon that did not record limits."""


class End(msgspec.Struct, frozen=True, tag="end"):
    """The end of an execution. The log files hold its streams, as far as they were kept."""

    id: str
    result: Result
    ended_at: float
    total_bytes: dict[str, int]
    """Size of each stream, which may be larger than its file."""
    cell: CellFacts | None = None
    rich: list[DisplayMessage] = []
    omitted_rich_bytes: int = 0
    """Size of the displays, if they were too large for the journal."""
    started_at: float | None = None
    """None: the program never ran."""
    pid: int | None = None
    started_by: StartedBy | None = None
    events: bytes = b""
    """The packed index of the log: readers may resume at its numbers under later daemons too."""


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    """An execution without an end, found by a later daemon."""

    id: str
    found_at: float


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """An execution that retention dropped."""

    id: str


class SessionRecorded(msgspec.Struct, frozen=True, tag="named"):
    """A session with state in its generation. The state dies with the daemon at the latest.

    A later daemon must report the loss to the next user of the session's id.
    """

    id: str
    generation: int


class SessionDeleted(msgspec.Struct, frozen=True, tag="unnamed"):
    """A session that was deleted."""

    id: str


Record = Begin | End | Cut | Forget | SessionRecorded | SessionDeleted


class JournaledExecution(msgspec.Struct):
    """The records of one execution of a former daemon."""

    begin: Begin
    end: End | Cut | None = None


_decoder = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    """Encode a record as one line."""
    body = msgspec.json.encode(record)
    return b"%08x %b\n" % (zlib.crc32(body), body)


def decode(data: bytes) -> tuple[list[Record], int]:
    """Return the good records, and the offset of the first torn or damaged line.

    Without a damaged line, the offset is the length of ``data``.
    """
    records: list[Record] = []
    position = 0
    while (end := data.find(b"\n", position)) >= 0:
        checksum, _, body = data[position:end].partition(b" ")
        if checksum != b"%08x" % zlib.crc32(body):
            break
        try:
            records.append(_decoder.decode(body))
        except msgspec.DecodeError:
            break  # a record of another version; later records may depend on this record
        position = end + 1
    return records, position


class JournalState:
    """The sum of the records, oldest first."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.executions: dict[str, JournaledExecution] = {}
        self.generations: dict[str, int] = {}
        """Session id -> generation."""
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Apply one record."""
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
        """Encode the live records: those of executions and sessions still known."""
        for execution in self.executions.values():
            yield encode(execution.begin)
            if execution.end is not None:
                yield encode(execution.end)
        for name, generation in self.generations.items():
            yield encode(SessionRecorded(name, generation))


class Journal:
    """The journal's file. ``load`` opens the file, ``close`` closes the file.

    Every call blocks on the disk.
    """

    def __init__(self, path: str, dir_fd: int | None = None) -> None:
        """A relative ``path`` starts at ``dir_fd``."""
        self._path = path
        self._dir_fd = dir_fd
        self._fd = -1
        self._size_bytes = 0
        self._next_look_bytes = COMPACT_AT_BYTES
        """The size of the file above which ``_is_long`` looks at the live records."""
        self._state = JournalState()
        self._is_behind = False
        """Whether the file lacks records of ``_state``."""

    @property
    def generations(self) -> dict[str, int]:
        """The sessions of former daemons: id -> generation reached."""
        return dict(self._state.generations)

    def load(self) -> dict[str, JournaledExecution]:
        """Read the file, drop a torn tail, and write a new file with the live records.

        Return the executions of former daemons. Raises OSError.
        """
        assert self._fd < 0, "loaded twice"
        with contextlib.suppress(FileNotFoundError):
            self._fd = os.open(
                self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._dir_fd
            )
            with open(self._fd, "rb", closefd=False) as file:
                records, self._size_bytes = decode(file.read())
            self._state = JournalState(records)
        try:
            self._compact()
        except OSError:
            if self._fd < 0:
                raise
            os.ftruncate(self._fd, self._size_bytes)  # no room for a new file: keep the old file
        return dict(self._state.executions)

    def append(self, record: Record) -> None:
        """Append a record. Raises OSError; then the file lacks the record or has a torn line.

        ``load`` drops a torn line, and the next write overwrites a torn line.
        """
        self._state.add(record)
        line = encode(record)
        try:
            written = os.pwrite(self._fd, line, self._size_bytes)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._is_behind = True
            raise
        self._size_bytes += written
        if self._is_long() or self._is_behind:
            # This record is written. After an error, the next record tries again to compact.
            with contextlib.suppress(OSError):
                self._compact()

    def _is_long(self) -> bool:
        """Return whether the file is four times as long as its live records.

        The live records are encoded to learn their size, and that takes as long as there are
        records. So the next look comes only after the file has grown by their size.
        """
        if self._size_bytes <= self._next_look_bytes:
            return False
        live_bytes = sum(map(len, self._state.lines()))
        self._next_look_bytes = self._size_bytes + live_bytes
        return self._size_bytes > 4 * live_bytes

    @property
    def size_bytes(self) -> int:
        """The size of the file. Safe in any thread."""
        return self._size_bytes

    @property
    def is_in_place(self) -> bool:
        """Whether a later daemon would find this file at the path. Raises OSError."""
        try:
            found = os.stat(self._path, dir_fd=self._dir_fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(self._fd))

    def repair(self) -> None:
        """Write a new file, if the file was removed or lacks records. Raises OSError."""
        if self._is_behind or not self.is_in_place:
            self._is_behind = True
            self._compact()

    def _compact(self) -> None:
        """Write the live records to a new file, and rename the file over the old file."""
        temporary = self._path + ".new"
        data = b"".join(self._state.lines())
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
                os.unlink(temporary, dir_fd=self._dir_fd)  # the disk may be full
            raise
        self.close()
        self._fd, self._size_bytes, self._is_behind = fd, len(data), False
        self._next_look_bytes = max(COMPACT_AT_BYTES, 4 * len(data))

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
