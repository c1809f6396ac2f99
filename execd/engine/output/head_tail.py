"""Head and tail of a stream in bounded memory, and the borders of its characters. Pure.

Offsets count from the first byte that the program wrote and never change. A text view decodes UTF-8
with replacement and changes nothing else.
"""

from __future__ import annotations

import codecs

MAX_CHARACTER_BYTES = 4


class HeadTail:
    """The first ``head_bytes`` and the newest ``tail_bytes`` of a stream.

    No byte is lost while the stream fits in both together.
    """

    __slots__ = ("_head", "_tail", "head_bytes", "tail_bytes", "total_bytes")

    def __init__(self, head_bytes: int, tail_bytes: int) -> None:
        self.head_bytes = head_bytes
        self.tail_bytes = tail_bytes
        self.total_bytes = 0
        # Arrays from the first bytes on: most programs write to one stream only, or to none.
        self._head: bytearray | bytes = b""
        self._tail: bytearray | bytes = b""

    def copy(self) -> HeadTail:
        """Return the stream as it is now. Later bytes change only the original."""
        copy = HeadTail(self.head_bytes, self.tail_bytes)
        copy.total_bytes = self.total_bytes
        copy._head = bytes(self._head)
        copy._tail = bytes(self._tail[max(0, len(self._tail) - self.tail_bytes) :])
        return copy

    def append(self, data: bytes) -> None:
        """Append bytes to the stream."""
        self.total_bytes += len(data)
        room = self.head_bytes - len(self._head)
        if room > 0:
            if not isinstance(self._head, bytearray):
                self._head = bytearray()
            self._head += data[:room]
            data = data[room:]
            if not data:
                return
        if not isinstance(self._tail, bytearray):
            self._tail = bytearray()
        if len(data) >= self.tail_bytes:
            self._tail[:] = data[len(data) - self.tail_bytes :]
            return
        self._tail += data
        # Cut only at double the size: a cut moves bytes, and a cut at each append would make the
        # cost of a flood quadratic.
        if len(self._tail) > 2 * self.tail_bytes:
            del self._tail[: len(self._tail) - self.tail_bytes]

    @property
    def head_end(self) -> int:
        """The offset of the first byte after the head."""
        return len(self._head)

    @property
    def tail_start(self) -> int:
        """The offset of the tail's first byte; equal to ``head_end`` while no byte is lost."""
        return self.total_bytes - min(len(self._tail), self.tail_bytes)

    @property
    def memory_bytes(self) -> int:
        """Memory of head and tail, in bytes."""
        return len(self._head) + len(self._tail)

    def read(self, offset: int, end: int) -> bytes | None:
        """Return the bytes [offset, end). None: some of the bytes are lost.

        Raises ValueError for a range outside of the stream.
        """
        if not 0 <= offset <= end <= self.total_bytes:
            raise ValueError(f"[{offset}, {end}) is outside the stream's {self.total_bytes} bytes")
        if end <= self.head_end:
            return bytes(self._head[offset:end])
        base = self.total_bytes - len(self._tail)
        if offset >= self.tail_start:
            return bytes(self._tail[offset - base : end - base])
        if offset < self.head_end and self.tail_start <= self.head_end:
            return bytes(self._head[offset:]) + bytes(self._tail[: end - base])
        return None

    def newest(self, size_bytes: int) -> bytes:
        """Return the last ``size_bytes`` bytes, as far as head and tail have them."""
        return self.read(max(0, self.total_bytes - size_bytes), self.total_bytes) or b""


def incomplete_tail_bytes(data: bytes) -> int:
    """Count the bytes at the end that begin an unfinished character: 0 to 3.

    Python's UTF-8 decoder decides which bytes begin a character.
    """
    if not data or data[-1] < 0x80:  # the common case, without a decoder
        return 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-(MAX_CHARACTER_BYTES - 1) :])
    pending_bytes = len(decoder.getstate()[0])
    assert pending_bytes < MAX_CHARACTER_BYTES
    return pending_bytes
