"""The journal: the keyed and detached executions, for a daemon that is restarted.

A restarted daemon must neither forget a result nor run a command twice.

One file, append-only. Each line is a record: length, checksum, JSON. ``Begin`` is written before
the program starts, ``End`` after the output is on disk, ``Forget`` when retention drops the
execution.
If the daemon was killed between ``Begin`` and ``End``, nobody knows how far the program came: the
execution is reported as ``daemon_restarted`` and never run again.

No fsync. The journal protects against the death of the daemon, and the page cache survives that.
The death of the node ends the pod, and the state dir with the pod.

A full disk or a kill may leave a torn last line: ``load`` cuts the file there. Any other damage
costs the damaged lines only: ``load`` moves them to the file DAMAGED and reads on. Records that the
disk refused stay in memory, and ``repair`` writes them to a new file, when there is room again or
the old file is gone.

``Journal`` blocks on the disk, and is called from one thread only: the state dir's journal thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import zlib
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from msgspec import Raw

# msgspec reads the annotations at run time.
from execd.model import CellFacts, DisplayKind, Limits, Result, StartedBy  # noqa: TC001
from execd.proc.kernel_traces import KernelTraces  # noqa: TC001

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

COMPACT_AT_BYTES = 1 << 20
MAX_RESET_ANSWERS = 16
"""Answers of resets that are kept for a repeated request, the newest."""
DAMAGED = ".damaged"
"""Ending of the file with the damaged lines of the journal. No daemon reads this file."""
READ_DEPTH = 10_000
"""Nesting that ``decode`` can read: more than any daemon has let a cell's message through with."""


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
    """The limits that apply. None: unknown, as the line is damaged (``_unknown_begin``)."""


class JournaledDisplay(msgspec.Struct, frozen=True):
    """A display message. The values of ``fields`` stay JSON, as the worker sent them: a decoder may
    refuse a number that another decoder lets through, and a reply copies the JSON."""

    kind: DisplayKind
    fields: dict[str, Raw]


class End(msgspec.Struct, frozen=True, tag="end"):
    """The end of an execution. The log files hold its streams, as far as they were kept."""

    id: str
    result: Result
    ended_at: float
    total_bytes: dict[str, int]
    """Size of each stream, which may be larger than its file."""
    cell: CellFacts | None = None
    rich: list[JournaledDisplay] = []
    omitted_rich_bytes: int = 0
    """Size of the displays, if they were too large for the journal."""
    started_at: float | None = None
    """None: the program never ran."""
    pid: int | None = None
    started_by: StartedBy | None = None
    events: bytes = b""
    """The packed index of the log: readers may resume at its numbers under later daemons too."""
    key: str | None = None
    payload: str = ""
    """As in ``Begin``, whose line may be damaged."""


class MemoryShortage(msgspec.Struct, frozen=True, tag="memory_shortage"):
    """The pod's memory is nearly full. Holds until MemoryRecovered, or the death of the daemon."""

    noted_at: float
    left_bytes: int
    size_bytes: int


class MemoryRecovered(msgspec.Struct, frozen=True, tag="memory_recovered"):
    """The shortage is over."""


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    """An execution without an end, found by a later daemon."""

    id: str
    found_at: float
    shortage: MemoryShortage | None = None
    """The shortage in which the former daemon died."""


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


class EpisodeRecorded(msgspec.Struct, frozen=True, tag="episode"):
    """The episode of this state dir, until the next reset."""

    state_id: str
    number: int

    @property
    def text(self) -> str:
        """The opaque id on the wire."""
        return f"{self.state_id}-{self.number}"


class TracesRecorded(msgspec.Struct, frozen=True, tag="traces"):
    """What the kernel held before any user code ran: a later daemon in the same namespaces finds
    the traces of this daemon's user code as well."""

    place: str
    """See ``kernel_traces.place``."""
    traces: KernelTraces
    keys: frozenset[str] = frozenset()
    """See ``kernel_keys``."""
    process_place: str = ""
    """See ``kernel_traces.process_place``."""
    has_namespace: bool = True
    """Whether the kernel ends the processes of user code."""
    may_have_strays: bool = False
    """Whether processes of an earlier daemon may live here that nobody can tell from others."""


class DaemonEnded(msgspec.Struct, frozen=True, tag="daemon_ended"):
    """The daemon has ended, and all user code before it."""


class ResetBegun(msgspec.Struct, frozen=True, tag="reset_begun"):
    """A reset that a later daemon has to finish."""

    key: str
    """Digest of the idempotency key."""
    payload: str
    """Digest of the request."""
    checkpoint: str
    verify: Literal["auto", "content", "stat"]
    keeps_records: bool
    ended: dict[str, int]
    """Counts of what lived at the begin."""
    warden: tuple[int, int] = (0, 0)
    """Pid and start time of the warden at the begin; zeros: no warden was up."""


class ResetEnded(msgspec.Struct, frozen=True, tag="reset_ended"):
    """The end of a reset: everything of the former episode is forgotten."""

    key: str
    payload: str
    episode: EpisodeRecorded
    """The new episode."""
    keeps_records: bool
    answer: Raw


Record = (
    Begin
    | End
    | Cut
    | Forget
    | SessionRecorded
    | SessionDeleted
    | MemoryShortage
    | MemoryRecovered
    | EpisodeRecorded
    | TracesRecorded
    | DaemonEnded
    | ResetBegun
    | ResetEnded
)


class JournaledExecution(msgspec.Struct):
    """The records of one execution of a former daemon."""

    begin: Begin
    end: End | Cut | None = None

    def forget_key(self) -> None:
        """Let no request find the execution by its key, and no request of its id be a repetition.
        ``payload`` has the digest of no request."""
        replace = msgspec.structs.replace
        self.begin = replace(self.begin, key=None, payload="")
        if isinstance(self.end, End):
            self.end = replace(self.end, key=None, payload="")


_decoder = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    """Encode a record as one line. A cell's JSON may have line ends, between tokens only."""
    body = msgspec.json.encode(record).replace(b"\n", b" ")
    return b"%08x %08x %b\n" % (len(body), zlib.crc32(body), body)


_HEADER = re.compile(rb"([0-9a-f]{8}) ([0-9a-f]{8}) (?=\{)")
"""Length and checksum."""


class Decoded(NamedTuple):
    """The content of a journal."""

    records: list[Record]
    damaged: list[bytes]
    """The bytes between the records: damaged lines, or lines of another version."""
    end: int
    """The offset of the torn last line. Without a torn line, the size of the journal."""


def decode(data: bytes) -> Decoded:
    """Read a journal. Damaged bytes cost the records that the bytes belong to, and no others.

    A record is found by its header, and not by the line end before: that byte belongs to another
    record. No text of user code is taken for a record, because the quotes of JSON in a JSON string
    are escaped.
    """
    records: list[Record] = []
    damaged: list[bytes] = []
    position = 0
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(READ_DEPTH)
    try:
        while found := _next_record(data, position):
            record, start, end = found
            records.append(record)
            if start > position:
                damaged.append(data[position:start])
            position = end
    finally:
        sys.setrecursionlimit(limit)
    if torn := data.rfind(b"\n", position) + 1:
        damaged.append(data[position:torn])
        position = torn
    return Decoded(records, damaged, position)


def _next_record(data: bytes, position: int) -> tuple[Record, int, int] | None:
    """Return the first good record from ``position`` on, its begin and its end."""
    for header in _HEADER.finditer(data, position):
        length, checksum = header.groups()
        start = header.end()
        end = start + int(length, 16)  # perhaps damaged
        body = data[start:end]
        if end < len(data) and int(checksum, 16) == zlib.crc32(body):
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                return _decoder.decode(body), header.start(), end + 1
    return None


class JournalState:
    """The sum of the records, oldest first."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.executions: dict[str, JournaledExecution] = {}
        self.generations: dict[str, int] = {}
        """Session id -> generation."""
        self.shortage: MemoryShortage | None = None
        self.episode: EpisodeRecorded | None = None
        self.traces: TracesRecorded | None = None
        self.has_ended = False
        """Whether the last daemon ended all user code."""
        self.reset: ResetBegun | None = None
        """The reset without an end."""
        self.resets: dict[str, ResetEnded] = {}
        """By the digest of the key, the oldest first."""
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Apply one record."""
        match record:
            case Begin():
                self.executions[record.id] = JournaledExecution(record)
            case End() | Cut() if record.id in self.executions:
                self.executions[record.id].end = record
            case End():  # the line of the Begin record is damaged
                self.executions[record.id] = JournaledExecution(_unknown_begin(record), record)
            case Forget():
                self.executions.pop(record.id, None)
            case SessionRecorded():
                self.generations[record.id] = record.generation
            case SessionDeleted():
                self.generations.pop(record.id, None)
            case MemoryShortage():
                self.shortage = record
            case MemoryRecovered():
                self.shortage = None
            case EpisodeRecorded():
                self.episode = record
            case TracesRecorded():
                self.traces = record
                self.has_ended = False
            case DaemonEnded():
                self.has_ended = True
            case ResetBegun():
                self.reset = record
            case ResetEnded():
                self._end_episode(record)

    def _end_episode(self, record: ResetEnded) -> None:
        self.reset, self.episode = None, record.episode
        self.resets.pop(record.key, None)
        self.resets[record.key] = record
        for key in list(self.resets)[:-MAX_RESET_ANSWERS]:
            del self.resets[key]
        self.generations.clear()
        if not record.keeps_records:
            self.executions.clear()
        for execution in self.executions.values():
            execution.forget_key()

    def lines(self) -> Iterator[bytes]:
        """Encode the live records: those of executions and sessions still known. The end of a reset
        forgets the records before, and so comes first."""
        for reset in self.resets.values():
            yield encode(reset)
        for single in (self.episode, self.traces, self.reset):
            if single is not None:
                yield encode(single)
        if self.has_ended:
            yield encode(DaemonEnded())
        for execution in self.executions.values():
            yield encode(execution.begin)
            if execution.end is not None:
                yield encode(execution.end)
        for name, generation in self.generations.items():
            yield encode(SessionRecorded(name, generation))
        if self.shortage is not None:
            yield encode(self.shortage)


def _unknown_begin(end: End) -> Begin:
    """Return what an End record tells of the execution."""
    return Begin(
        id=end.id,
        key=end.key,
        payload=end.payload,
        display="",
        created_at=end.started_at or end.ended_at,
        cwd="",
        session_id=None if end.cell is None else end.cell.session_id,
    )


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
        self.damaged_bytes = 0
        """Bytes that ``load`` found between the records."""

    @property
    def generations(self) -> dict[str, int]:
        """The sessions of former daemons: id -> generation reached."""
        return dict(self._state.generations)

    @property
    def state(self) -> JournalState:
        """The sum of the records. Only the journal's thread changes the state."""
        return self._state

    @property
    def shortage(self) -> MemoryShortage | None:
        """The shortage that has not ended; after ``load``: in which the former daemon died."""
        return self._state.shortage

    def load(self) -> dict[str, JournaledExecution]:
        """Read the file, drop a torn last line, keep damaged lines elsewhere, and write a new file
        with the live records.

        Return the executions of former daemons. Raises OSError.
        """
        assert self._fd < 0, "loaded twice"
        damaged: list[bytes] = []
        with contextlib.suppress(FileNotFoundError):
            self._fd = os.open(
                self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._dir_fd
            )
            with open(self._fd, "rb", closefd=False) as file:
                records, damaged, self._size_bytes = decode(file.read())
            self._state = JournalState(records)
        self.damaged_bytes = sum(map(len, damaged))
        try:
            if damaged:
                self._keep_damaged(damaged)
            self._compact()
        except OSError:
            if self._fd < 0:
                raise
            os.ftruncate(self._fd, self._size_bytes)  # no room for a new file: keep the old file
        return dict(self._state.executions)

    def _keep_damaged(self, damaged: list[bytes]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._path + DAMAGED, flags, 0o600, dir_fd=self._dir_fd)
        with open(fd, "wb") as file:
            file.writelines(part.rstrip(b"\n") + b"\n" for part in damaged)

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
