"""What a program wrote, in bounded memory: head and tail of a stream, and where its characters end.
Pure.

Bytes are bytes: offsets count from the first byte the program wrote and never change. A text view
decodes UTF-8 with replacement and rewrites nothing else.
"""

from __future__ import annotations

import codecs

MAX_CHARACTER_BYTES = 4


class HeadTail:
    """The first and the newest bytes of a stream. Nothing is lost while the total fits in both
    together."""

    def __init__(self, head_bytes: int, tail_bytes: int) -> None:
        self.head_bytes = head_bytes
        self.tail_bytes = tail_bytes
        self.total_bytes = 0
        self._head = bytearray()
        self._tail = bytearray()

    def append(self, data: bytes) -> None:
        self.total_bytes += len(data)
        room = self.head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if len(data) >= self.tail_bytes:
            self._tail[:] = data[len(data) - self.tail_bytes :]
            return
        self._tail += data
        # Cut only when it has doubled: moving bytes at each append would make a flood quadratic.
        if len(self._tail) > 2 * self.tail_bytes:
            del self._tail[: len(self._tail) - self.tail_bytes]

    @property
    def head_end(self) -> int:
        """The head is the bytes before this offset."""
        return len(self._head)

    @property
    def tail_start(self) -> int:
        """The tail is the bytes from this offset on; equal to ``head_end`` while nothing is
        lost."""
        return self.total_bytes - min(len(self._tail), self.tail_bytes)

    @property
    def memory_bytes(self) -> int:
        return len(self._head) + len(self._tail)

    def read(self, offset: int, end: int) -> bytes | None:
        """The bytes [offset, end), or None if some of them are no longer here. ``end`` is at most
        the total."""
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
        """The last so many bytes, as far as they are here: half the memory at the least."""
        return self.read(max(0, self.total_bytes - size_bytes), self.total_bytes) or b""


def incomplete_tail_bytes(data: bytes) -> int:
    """How many bytes at the end begin a character that does not end here: 0 to 3. In the eyes of
    Python's decoder."""
    if not data or data[-1] < 0x80:  # what is not all that rare costs next to nothing
        return 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-(MAX_CHARACTER_BYTES - 1) :])
    return len(decoder.getstate()[0])
