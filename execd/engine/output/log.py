"""The log of one execution: the bytes of both streams, and the order of events.

Every reply, stream and download is a view on the log.

A stream stays in memory up to ``memory_bytes``. When more comes, the spool (a file) gets the stream
from the first byte on, up to the spool's bound. Beyond the bound, the head stays on disk and the
newest bytes in memory; every view reports the hole between them.

One pump writes to each stream (``pump``), and awaits each write before the next read. So a stream
has at most one write to its spool under way. Readers never delay the pump: a reader asks the log
for bytes at an offset (``follow``), and every view reports lost bytes.

A process may hold the pipe of a stream beyond the end of the execution (``held_pipes``). The stream
then grows within the same bounds, and downloads show the bytes. Replies and events show the stream
as of the end: the index takes no later bytes, and ``at_end`` keeps what memory had.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING

import msgspec

from execd.engine.output.event_index import EventIndex, Kind
from execd.engine.output.head_tail import MAX_CHARACTER_BYTES, HeadTail, incomplete_tail_bytes
from execd.model import STREAMS, Truncation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from execd.engine.store.state_dir import Spool
    from execd.model import DisplayMessage, Stream

# A stream of at most this size stays in memory for replies, even if the disk has the bytes too.
SHORT_BYTES = 4096
MAX_EVENTS = 4096
# An index above this size is packed when the execution is over.
PACKED_ABOVE_BYTES = 2048
RESTORED_EVENT_BYTES = 1 << 20
# Number of the last event before a restored log without an index: higher than any daemon counts,
# and exact in a double (JSON).
RESTORED_SEQUENCE = 1 << 40


class Excerpt(msgspec.Struct, frozen=True):
    """The part of a stream for a reply: all bytes as ``head``, or both ends.

    ``truncation`` counts the bytes between the ends; None: ``head`` is the whole stream.
    """

    head: bytes
    tail: bytes
    truncation: Truncation | None


NOTHING = Excerpt(b"", b"", None)


class StreamLog:
    """The bytes of one stream: in memory first, then in the spool as well."""

    __slots__ = (
        "_make_spool",
        "_writing",
        "_writing_at",
        "_written",
        "at_end",
        "is_held",
        "last_bytes",
        "memory",
        "spool",
        "total_bytes",
    )

    def __init__(self, memory_bytes: int, make_spool: Callable[[], Spool]) -> None:
        self.memory = HeadTail(memory_bytes // 2, memory_bytes - memory_bytes // 2)
        self.total_bytes = 0
        """As ``memory.total_bytes``. Each command asks for the figure ten times."""
        self.spool: Spool | None = None
        self.last_bytes = b""
        """The newest bytes, MAX_CHARACTER_BYTES at most."""
        self._writing = b""
        """The bytes of the write under way, which begin at offset ``_writing_at``. The spool has
        not got all of them yet, and memory may have dropped them."""
        self._writing_at = 0
        self._written: asyncio.Future[None] | None = None
        """Made by ``save``, which waits for the write under way."""
        self._make_spool = make_spool
        self.is_held = False
        """The execution has ended, and a process may still write to the stream."""
        self.at_end: HeadTail | None = None
        """``memory`` as of the end of the execution, if the stream has grown since."""

    def restore(self, total_bytes: int | None) -> None:
        """Restore the stream of a former daemon from its spool. Nothing is in memory then.

        ``total_bytes``: size of the stream. None: unknown; the size of the spool is taken.
        """
        assert self.spool is None, "restore a fresh log only"
        self.spool = self._make_spool()
        self.spool.adopt()
        self.total_bytes = self.spool.size_bytes if total_bytes is None else total_bytes
        self.memory = HeadTail(0, 0)
        self.memory.total_bytes = self.total_bytes
        if self.spool.size_bytes > self.total_bytes:
            self.at_end = self.memory.copy()
            self.memory.total_bytes = self.total_bytes = self.spool.size_bytes

    def append(self, data: bytes) -> Awaitable[None] | None:
        """Append bytes. The caller awaits a returned awaitable before the next call."""
        assert not self._writing, "one write at a time"
        if self.is_held and self.at_end is None:
            self.at_end = self.memory.copy()
        before = self.total_bytes
        self.last_bytes = (self.last_bytes + data[-MAX_CHARACTER_BYTES:])[-MAX_CHARACTER_BYTES:]
        earlier = b""
        if (
            self.spool is None
            and before + len(data) > self.memory.head_bytes + self.memory.tail_bytes
        ):
            earlier = self.memory.read(0, before) or b""
            self.spool = self._make_spool()
            if self.is_held:
                self.spool.finish()  # no descriptor for each server in the background
        self.memory.append(data)
        self.total_bytes = self.memory.total_bytes
        if self.spool is None or not self.spool.accepts:
            return None
        self._writing_at = self.spool.size_bytes
        self._writing = (earlier + data)[: self.spool.max_bytes - self._writing_at]
        return self._write(self.spool)

    async def _write(self, spool: Spool) -> None:
        await spool.write(self._writing)
        self._writing = b""
        if self._written is not None:
            self._written.set_result(None)
            self._written = None

    @property
    def end_bytes(self) -> int:
        """Size of the stream as of the end of the execution; until then ``total_bytes``."""
        return self.total_bytes if self.at_end is None else self.at_end.total_bytes

    def hole(self, end: int) -> tuple[int, int]:
        """Return where the bytes begin that were not kept of [0, ``end``), and where they end. All
        bytes were kept if that is no positive range."""
        memory = self._memory_before(end)
        if memory.tail_start == memory.head_end:
            return memory.total_bytes, memory.total_bytes
        return max(memory.head_end, self._stored_end), memory.tail_start

    def _memory_before(self, end: int) -> HeadTail:
        """``at_end`` is nearer to the bytes before the end than the memory that has moved on."""
        if self.at_end is not None and end <= self.at_end.total_bytes:
            return self.at_end
        return self.memory

    @property
    def _stored_end(self) -> int:
        """The offset up to which the spool has the bytes, the write under way included."""
        if self.spool is None:
            return 0
        return max(
            self.spool.size_bytes, self._writing_at + len(self._writing) if self._writing else 0
        )

    async def read(self, offset: int, end: int) -> bytes | None:
        """Read the bytes [offset, end). None: some of them are lost."""
        memory = self._memory_before(end)
        data = memory.read(offset, end)
        if data is not None or self.spool is None:
            return data
        if end <= self._stored_end:
            return await self._read_stored(self.spool, offset, end)
        middle = memory.tail_start
        if offset < middle <= self._stored_end:
            # Memory first: while the disk is read, the tail in memory may move on.
            tail = memory.read(middle, end)
            head = await self._read_stored(self.spool, offset, middle)
            return None if head is None or tail is None else head + tail
        return None

    @property
    def disk_failure(self) -> str | None:
        """Why the disk has fewer bytes of the execution than ``log_bytes`` allows. None: no
        failure."""
        memory = self._memory_before(self.end_bytes)
        is_whole = memory.tail_start == memory.head_end
        if self.spool is None or is_whole or self.spool.size_bytes >= self.end_bytes:
            return None
        return self.spool.failure

    async def refresh_size(self) -> None:
        """Notice bytes lost on disk. They are part of the hole from now on."""
        if self.spool is not None:
            await self.spool.refresh_size()

    async def _read_stored(self, spool: Spool, offset: int, end: int) -> bytes | None:
        """Read from the spool and from the write under way."""
        if end <= spool.size_bytes:
            return await spool.read(offset, end)
        at = self._writing_at
        late = self._writing[max(0, offset - at) : end - at]
        early = await spool.read(offset, at) if offset < at else b""
        return None if early is None else early + late

    def free_memory(self) -> None:
        """Free the memory, if the disk has the whole stream.

        A short stream stays in memory, so that a reply has the bytes even after the file was
        removed to make room on disk.
        """
        if self.spool is not None and self.spool.size_bytes == self.total_bytes > SHORT_BYTES:
            self.memory = HeadTail(0, self.memory.tail_bytes)
            self.memory.total_bytes = self.total_bytes

    async def save(self) -> None:
        """Return when a spool has the stream, as far as the disk and the bounds allow."""
        if self._writing:
            # The next daemon takes the size of the stream from the journal, and the bytes from the
            # spool: the record of the end must not come before the last bytes.
            assert self._written is None, "saved once"
            self._written = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._written,))
        if self.spool is None and self.total_bytes:
            self.spool = self._make_spool()
            whole = self.memory.read(0, self.total_bytes)
            assert whole is not None, "a stream without a spool is in memory as a whole"
            await self.spool.write(whole)

    def finish(self) -> None:
        """Close the descriptor of the spool. No more bytes come."""
        self._make_spool = _no_spool  # the function of the owner holds the owner's objects
        if self.spool is not None:
            self.spool.finish()

    def hold(self, make_spool: Callable[[], Spool]) -> None:
        """After ``finish``: bytes may come until ``let_go``."""
        self.is_held, self._make_spool = True, make_spool

    def let_go(self) -> None:
        self.is_held, self._make_spool = False, _no_spool

    async def excerpt(self, limit_bytes: int) -> Excerpt:
        """Return the whole stream if it fits into ``limit_bytes``, else head and tail; as of the
        end of the execution.

        Head and tail are ``limit_bytes // 2`` bytes each, as far as the log still has them.
        """
        total = self.end_bytes
        if not total:
            return NOTHING
        if total <= limit_bytes:
            whole = await self.read(0, total)
            if whole is not None:
                return Excerpt(whole, b"", None)
        head = await self.read(0, min(limit_bytes // 2, self.hole(total)[0]))
        if head is None:  # the spool's file is gone; memory still has the head's first bytes
            head = self.memory.read(0, min(limit_bytes // 2, self.memory.head_end)) or b""
        start = max(total - limit_bytes // 2, len(head))
        tail = await self.read(start, total)
        if tail is None:  # while the disk was read, the tail in memory may have moved on
            total = self.end_bytes
            memory = self._memory_before(total)
            start = max(total - limit_bytes // 2, len(head), memory.tail_start)
            tail = memory.read(start, total) or b""
        return Excerpt(
            head,
            tail,
            Truncation(total_bytes=total, head_bytes=len(head), omitted_bytes=start - len(head)),
        )


def _no_spool() -> Spool:
    raise AssertionError("the stream has ended")


KIND_OF: dict[Stream, Kind] = {"stdout": Kind.STDOUT, "stderr": Kind.STDERR}


class OutputLog:
    """Both streams of one execution and the index of events. Readers wait on ``next_change``."""

    __slots__ = (
        "_changed",
        "_events",
        "_packed_events",
        "omitted_rich_bytes",
        "rich",
        "rich_bytes",
        "streams",
    )

    def __init__(self, memory_bytes: int, make_spool: Callable[[Stream], Spool]) -> None:
        self.streams = {
            stream: StreamLog(memory_bytes, functools.partial(make_spool, stream))
            for stream in STREAMS
        }
        self._events: EventIndex | None = EventIndex(MAX_EVENTS)
        """None: ``_packed_events`` stands for the index until a reader comes."""
        self._packed_events = b""
        self.rich: list[DisplayMessage] = []
        self.rich_bytes = 0
        self.omitted_rich_bytes = 0
        """Size of the displays of a former daemon's execution that were not kept."""
        self._changed: asyncio.Future[None] | None = None

    def next_change(self) -> asyncio.Future[None]:
        """Return a future, done at the next change.

        Take the future before reading the log. With the reverse order "read, change, take", the
        reader would sleep through the change.

        All readers share one future, which each change replaces. So readers need no queues, and no
        reader delays the writer. Wait with ``asyncio.wait``: a cancelled ``await`` would cancel the
        future for all readers.
        """
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def append(self, stream: Stream, data: bytes) -> Awaitable[None] | None:
        """Append bytes to a stream. See ``StreamLog.append``."""
        log = self.streams[stream]
        self._note(KIND_OF[stream], log.total_bytes, len(data))
        return log.append(data)

    def append_rich(self, rich: DisplayMessage, size_bytes: int) -> None:
        """Append a display message. ``size_bytes``: approximate memory of the message."""
        assert size_bytes >= 0
        self._note(Kind.RICH, len(self.rich), size_bytes)
        self.rich.append(rich)
        self.rich_bytes += size_bytes

    def note_start(self) -> None:
        """Note the start of the program."""
        self._note(Kind.STARTED)

    @property
    def events(self) -> EventIndex:
        """The index of events, unpacked if need be."""
        if self._events is None:
            packed, self._packed_events = self._packed_events, b""
            try:
                self._events = EventIndex.unpack(packed)
            except ValueError:
                return self._number_anew()
        return self._events

    def note_exit(self) -> None:
        """Note the end. A stream with an unfinished character gets a last event, of size 0."""
        for kind, offset in self._last_events():
            self._note(kind, offset)

    def _last_events(self) -> list[tuple[Kind, int]]:
        cuts = [
            (KIND_OF[stream], log.total_bytes)
            for stream, log in self.streams.items()
            if log.last_bytes and incomplete_tail_bytes(log.last_bytes)
        ]
        return [*cuts, (Kind.EXITED, 0)]

    def pack_as_exited(self) -> bytes:
        """Pack the index as the index will be after ``note_exit``, without changing the log."""
        index = EventIndex.unpack(self.events.pack())
        for kind, offset in self._last_events():
            index.append(kind, offset)
        return index.pack()

    def pack(self) -> None:
        """Pack a long index of a finished execution: few are read again, and memory is saved."""
        if self._events is not None and self._events.memory_bytes > PACKED_ABOVE_BYTES:
            self._packed_events, self._events = self._events.pack(), None

    def _note(self, kind: Kind, offset: int = 0, size_bytes: int = 0) -> None:
        self.events.append(kind, offset, size_bytes)
        if self._changed is not None:
            self._changed.set_result(None)
            self._changed = None

    @property
    def memory_bytes(self) -> int:
        """Memory of the log, in bytes."""
        if self._events is not None:
            index_bytes = self._events.memory_bytes
        else:
            index_bytes = len(self._packed_events)
        n_bytes = index_bytes + self.rich_bytes
        for log in self.streams.values():
            if log.memory.total_bytes:
                n_bytes += log.memory.memory_bytes
            if log.at_end is not None:
                n_bytes += log.at_end.memory_bytes
        return n_bytes

    @property
    def disk_bytes(self) -> int:
        """Size of both spools, in bytes."""
        return sum(log.spool.size_bytes for log in self.streams.values() if log.spool is not None)

    def finish(self) -> None:
        """Close the descriptors of the spools. No more output comes."""
        for log in self.streams.values():
            log.finish()

    async def save(self) -> None:
        """Write the bytes in memory to disk, where a later daemon finds them."""
        for log in self.streams.values():
            await log.save()
            log.free_memory()

    def restore(self, total_bytes: Mapping[str, int] | None, packed_events: bytes) -> None:
        """Restore the log of a former daemon.

        ``total_bytes``: size of each stream. None: unknown, because the former daemon died before
        the end of the execution. Without ``packed_events``, or with an index in a form of another
        version, the order is unknown too; the events then get numbers that the former daemon never
        gave.
        """
        for stream, log in self.streams.items():
            log.restore(None if total_bytes is None else total_bytes.get(stream, 0))
        if packed_events:
            self._events, self._packed_events = None, packed_events
        else:
            self._number_anew()

    def _number_anew(self) -> EventIndex:
        """Make an index for the bytes of a former daemon, whose order is unknown."""
        self._events = EventIndex(MAX_EVENTS)
        self._events.begin_after(RESTORED_SEQUENCE)
        self.note_start()
        for stream, log in self.streams.items():
            for offset in range(0, log.end_bytes, RESTORED_EVENT_BYTES):
                self._note(
                    KIND_OF[stream], offset, min(RESTORED_EVENT_BYTES, log.end_bytes - offset)
                )
        self._events.append(Kind.EXITED)
        return self._events

    def hole(self, stream: Stream) -> tuple[int, int] | None:
        """Return the offsets [start, end) of the bytes that were not kept, or None."""
        log = self.streams[stream]
        start, end = log.hole(log.total_bytes)
        return (start, end) if start < end else None

    def disk_failure(self, stream: Stream) -> str | None:
        """Return why the disk has less of the stream than ``log_bytes`` allows, or None."""
        return self.streams[stream].disk_failure

    def remove(self) -> None:
        """Remove both spools. Bytes missing in memory are a hole from now on."""
        for log in self.streams.values():
            if log.spool is not None:
                log.spool.remove()
