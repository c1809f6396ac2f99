"""The log of one execution: everything it wrote, and in which order. Every reply, stream and
download is a view on it.

A stream's bytes are in memory until they pass its share (half head, half tail). Then the spool
takes them from the first byte on, up to its bound; past that the head stays on disk and the newest
tail in memory, with a hole between that every view admits.

The pump of each stream drains the pipe from the first moment and waits for nobody but the spool: a
reader that reads slowly, or never, costs nothing. One pump writes at a time to a spool, since it
reads no further until the write is done.
"""

from __future__ import annotations

import asyncio
import functools
import os
from typing import TYPE_CHECKING

import msgspec

from execd.engine.output.event_index import EventIndex, Kind
from execd.engine.output.head_tail import MAX_CHARACTER_BYTES, HeadTail, incomplete_tail_bytes
from execd.model import STREAMS, Truncation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from execd.engine.store.state_dir import Spool
    from execd.model import DisplayMessage, Stream

READ_BYTES = 64 * 1024  # what a pipe holds
READS_PER_TURN = 4  # then others have their turn on the loop, though a flood goes on
DRAIN_READS = 16
SHORT_BYTES = 4096
MAX_EVENTS = 4096
PACKED_ABOVE_BYTES = 2048
RESTORED_EVENT_BYTES = 1 << 20
RESTORED_SEQUENCE = 1 << 40  # higher than any daemon counts, and exact in a double


class Excerpt(msgspec.Struct, frozen=True):
    """What fits into a reply: all of a stream as ``head``, or its two ends and what lies between
    them."""

    head: bytes
    tail: bytes
    truncation: Truncation | None


NOTHING = Excerpt(b"", b"", None)


class StreamLog:
    """One stream: memory first, then the spool."""

    def __init__(self, memory_bytes: int, make_spool: Callable[[], Spool]) -> None:
        self.memory = HeadTail(memory_bytes // 2, memory_bytes - memory_bytes // 2)
        self.spool: Spool | None = None
        self.last_bytes = b""
        """As many as one character may have."""
        self._writing = b""
        """What is on its way to the spool, from ``_writing_at`` on: neither there yet nor, perhaps,
        in memory any more."""
        self._writing_at = 0
        self._make_spool = make_spool

    def restore(self, total_bytes: int | None) -> None:
        """Be what a former daemon's log was: its spool, and nothing in memory. ``None``: nobody
        knows more than the spool."""
        self.spool = self._make_spool()
        self.spool.adopt()
        self.memory = HeadTail(0, 0)
        self.memory.total_bytes = self.spool.size_bytes if total_bytes is None else total_bytes

    @property
    def total_bytes(self) -> int:
        return self.memory.total_bytes

    def append(self, data: bytes) -> Awaitable[None] | None:
        """Take the bytes; what is returned must be awaited before the next call."""
        before = self.memory.total_bytes
        self.last_bytes = (self.last_bytes + data[-MAX_CHARACTER_BYTES:])[-MAX_CHARACTER_BYTES:]
        earlier = b""
        if (
            self.spool is None
            and before + len(data) > self.memory.head_bytes + self.memory.tail_bytes
        ):
            earlier = self.memory.read(0, before) or b""
            self.spool = self._make_spool()
        self.memory.append(data)
        if self.spool is None or not self.spool.accepts:
            return None
        self._writing_at = self.spool.size_bytes
        self._writing = (earlier + data)[: self.spool.max_bytes - self._writing_at]
        return self._write(self.spool)

    async def _write(self, spool: Spool) -> None:
        await spool.write(self._writing)
        self._writing = b""

    @property
    def head_end(self) -> int:
        """All bytes before this offset can be read."""
        if self.memory.tail_start == self.memory.head_end:
            return self.total_bytes
        return max(self.memory.head_end, self._stored_end)

    @property
    def _stored_end(self) -> int:
        if self.spool is None:
            return 0
        return max(
            self.spool.size_bytes, self._writing_at + len(self._writing) if self._writing else 0
        )

    async def read(self, offset: int, end: int) -> bytes | None:
        """The bytes [offset, end), or None if some are lost."""
        data = self.memory.read(offset, end)
        if data is not None or self.spool is None:
            return data
        if end <= self._stored_end:
            return await self._read_stored(self.spool, offset, end)
        middle = self.memory.tail_start
        if offset < middle <= self._stored_end:
            tail = self.memory.read(middle, end)  # before it moves on
            head = await self._read_stored(self.spool, offset, middle)
            return None if head is None or tail is None else head + tail
        return None

    @property
    def disk_failure(self) -> str | None:
        """Why less of it is on disk than ``log_bytes`` allows; None: it is not, or need not be."""
        return None if self.spool is None else self.spool.failure

    async def look(self) -> None:
        """Notice what was lost on disk, so that it is a hole from now on."""
        if self.spool is not None:
            await self.spool.look()

    async def _read_stored(self, spool: Spool, offset: int, end: int) -> bytes | None:
        if end <= spool.size_bytes:
            return await spool.read(offset, end)
        at = self._writing_at
        late = self._writing[max(0, offset - at) : end - at]
        early = await spool.read(offset, at) if offset < at else b""
        return None if early is None else early + late

    def shed(self) -> None:
        """Free the memory of what is on disk as well. A short output stays: it is a reply's, though
        the disk is needed for others."""
        if self.spool is not None and self.spool.size_bytes == self.total_bytes > SHORT_BYTES:
            total_bytes = self.total_bytes
            self.memory = HeadTail(0, 0)
            self.memory.total_bytes = total_bytes

    async def save(self) -> None:
        """Give the spool all that memory holds from the beginning, if it has not been given it."""
        if self.spool is None and self.total_bytes:
            self.spool = self._make_spool()
            whole = self.memory.read(0, self.total_bytes)
            assert whole is not None  # or the spool would have been there before
            await self.spool.write(whole)

    async def excerpt(self, limit_bytes: int) -> Excerpt:
        """All of it if it fits, else head and tail of half the limit each."""
        total = self.total_bytes
        if not total:
            return NOTHING
        if total <= limit_bytes:
            whole = await self.read(0, total)
            if whole is not None:
                return Excerpt(whole, b"", None)
        head = await self.read(0, min(limit_bytes // 2, self.head_end))
        if head is None:  # the spool has vanished: what memory has is left
            head = self.memory.read(0, min(limit_bytes // 2, self.memory.head_end)) or b""
        start = max(total - limit_bytes // 2, len(head))
        tail = await self.read(start, total)
        if tail is None:
            start = max(start, self.memory.tail_start)
            tail = self.memory.read(start, total) or b""
        return Excerpt(
            head,
            tail,
            Truncation(total_bytes=total, head_bytes=len(head), omitted_bytes=start - len(head)),
        )


KIND_OF: dict[Stream, Kind] = {"stdout": Kind.STDOUT, "stderr": Kind.STDERR}


class OutputLog:
    """Both streams of one execution and the order of what happened. Readers wait on ``changed``."""

    def __init__(self, memory_bytes: int, make_spool: Callable[[Stream], Spool]) -> None:
        self.streams = {
            stream: StreamLog(memory_bytes, functools.partial(make_spool, stream))
            for stream in STREAMS
        }
        self._events = EventIndex(MAX_EVENTS)
        self._packed_events: bytes | None = None
        """Instead of the index, while nobody reads an execution that is over."""
        self.rich: list[DisplayMessage] = []
        self.rich_bytes = 0
        self._changed: asyncio.Future[None] | None = None

    def changed(self) -> asyncio.Future[None]:
        """Done at the next change. Take it before you look, so that no change falls between looking
        and waiting.

        One future for all who wait, replaced at each change: readers have no queues, and none can
        hold up the writer. Wait with ``asyncio.wait``, which does not cancel it for the others.
        """
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def append(self, stream: Stream, data: bytes) -> Awaitable[None] | None:
        log = self.streams[stream]
        self._note(KIND_OF[stream], log.total_bytes, len(data))
        return log.append(data)

    def append_rich(self, rich: DisplayMessage, size_bytes: int) -> None:
        """``size_bytes``: about what it takes to keep."""
        self._note(Kind.RICH, len(self.rich), size_bytes)
        self.rich.append(rich)
        self.rich_bytes += size_bytes

    def started(self) -> None:
        self._note(Kind.STARTED)

    @property
    def events(self) -> EventIndex:
        if self._packed_events is not None:
            self._events, self._packed_events = EventIndex.unpack(self._packed_events), None
        return self._events

    def exited(self) -> None:
        """No more comes. What a stream has of an unfinished character is not waited for any
        longer."""
        for kind, offset in self._last_events():
            self._note(kind, offset)

    def _last_events(self) -> list[tuple[Kind, int]]:
        cut = [
            stream
            for stream, log in self.streams.items()
            if log.last_bytes and incomplete_tail_bytes(log.last_bytes)
        ]
        return [
            *((KIND_OF[stream], self.streams[stream].total_bytes) for stream in cut),
            (Kind.EXITED, 0),
        ]

    def packed_to_the_end(self) -> bytes:
        """The index, packed, as it will be when ``exited`` has been called."""
        index = EventIndex.unpack(self.events.pack())
        for kind, offset in self._last_events():
            index.append(kind, offset)
        return index.pack()

    def pack(self) -> None:
        """It is over: a long index, which is seldom read again, takes less memory until then."""
        if self._packed_events is None and self._events.memory_bytes > PACKED_ABOVE_BYTES:
            self._packed_events = self._events.pack()
            self._events = EventIndex(0)

    def _note(self, kind: Kind, offset: int = 0, size_bytes: int = 0) -> None:
        self.events.append(kind, offset, size_bytes)
        if self._changed is not None:
            self._changed.set_result(None)
            self._changed = None

    @property
    def memory_bytes(self) -> int:
        index_bytes = (
            self._events.memory_bytes if self._packed_events is None else len(self._packed_events)
        )
        return (
            index_bytes
            + self.rich_bytes
            + sum(log.memory.memory_bytes for log in self.streams.values())
        )

    @property
    def disk_bytes(self) -> int:
        return sum(log.spool.size_bytes for log in self.streams.values() if log.spool is not None)

    def finish(self) -> None:
        for log in self.streams.values():
            if log.spool is not None:
                log.spool.finish()

    async def save(self) -> None:
        """Put on disk what is in memory only, so that another daemon finds it."""
        for log in self.streams.values():
            await log.save()
            log.shed()

    def restore(self, total_bytes: Mapping[str, int] | None, packed_events: bytes) -> None:
        """Be what a former daemon's log was.

        ``None``, or no events: it did not live to write that down. How much there was is then not
        known, nor the order in which it came, and its numbers are not these.
        """
        for stream, log in self.streams.items():
            log.restore(None if total_bytes is None else total_bytes.get(stream, 0))
        if packed_events:
            self._packed_events = packed_events
            return
        self.events.begin_after(RESTORED_SEQUENCE)
        self.started()
        for stream, log in self.streams.items():
            for offset in range(0, log.total_bytes, RESTORED_EVENT_BYTES):
                self._note(
                    KIND_OF[stream], offset, min(RESTORED_EVENT_BYTES, log.total_bytes - offset)
                )
        self.events.append(Kind.EXITED)

    def hole(self, stream: Stream) -> tuple[int, int] | None:
        """Return the offsets [start, end) of the bytes that were not kept, or None."""
        log = self.streams[stream]
        start, end = log.head_end, log.memory.tail_start
        return (start, end) if start < end else None

    def disk_failure(self, stream: Stream) -> str | None:
        """Return why the disk has less of the stream than ``log_bytes`` allows, or None."""
        return self.streams[stream].disk_failure

    def remove(self) -> None:
        """Give the disk back. What memory has not is a hole from now on."""
        for log in self.streams.values():
            if log.spool is not None:
                log.spool.remove()


class Pump:
    """Moves bytes from a pipe's read end into the log. Owns the descriptor; ``close`` or the end of
    the stream ends it.

    Most programs have ended when their start is heard of. Then all they wrote is in the pipe,
    ``drain_now`` reads it, and ``start``, with its dealings with the event loop, is never needed.
    """

    def __init__(self, fd: int, append: Callable[[bytes], Awaitable[None] | None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._append = append
        self._writing: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._is_started = False
        os.set_blocking(fd, False)

    def start(self) -> None:
        """From now on read whenever there is something."""
        if not self._is_started and not self.ended.done():
            self._is_started = True
            if self._writing is None:
                self._loop.add_reader(self._fd, self._on_readable)

    def _on_readable(self) -> None:
        for _ in range(READS_PER_TURN):
            if not self._read_once():
                return

    def _read_once(self) -> bool:
        """Whether there may be more to read right now."""
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            # EIO: the other end of a terminal is closed, which is its way of saying end of file
            data = b""
        if not data:
            self._end()
            return False
        write = self._append(data)
        if write is not None:
            if self._is_started:
                self._loop.remove_reader(self._fd)
            self._writing = asyncio.ensure_future(self._finish_write(write))
            return False
        return True

    async def _finish_write(self, write: Awaitable[None]) -> None:
        await write
        self._writing = None
        if self._is_started and not self.ended.done():
            self._loop.add_reader(self._fd, self._on_readable)

    def drain_now(self) -> None:
        """Read what is there, without waiting for the loop to say so. Bounded: a survivor may write
        on for ever."""
        for _ in range(DRAIN_READS):
            if self.ended.done() or self._writing is not None or not self._read_once():
                return

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
            if self._is_started:
                self._loop.remove_reader(self._fd)
            os.close(self._fd)

    def close(self) -> None:
        """Read no more."""
        self._end()

    async def take_rest(self) -> None:
        """Until the write under way is done, and what the pipe held meanwhile is read too.

        The disk's delay must not cost what the program wrote before it ended. Bounded, as
        ``drain_now`` is.
        """
        for _ in range(DRAIN_READS):
            if self._writing is None:
                return
            await asyncio.wait((self._writing,))
            self.drain_now()
