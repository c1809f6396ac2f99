"""The daemon's end of a conversation with a zygote or a worker: frames over a stream socket, descriptors with them.

Owns the socket. Nothing waits here: what the peer does not take is queued, and what it says goes to a callback. A peer that hangs
up, or breaks the protocol, is told once to ``on_lost``, after which nothing comes.
"""

from __future__ import annotations

import array
import asyncio
import logging
import os
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from execd.sessions import frames

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

READ_BYTES = 256 * 1024
# One for all, since nothing waits between filling and emptying it: a fresh one for each read is, at this size, a mapping made and unmade.
_read_buffer = memoryview(bytearray(READ_BYTES))
READS_PER_TURN = 4
READS_AT_END = 8


F = TypeVar("F")


class Decoder(Protocol[F]):
    """``frames.Decoder`` or ``claims.Decoder``."""

    def feed(self, data: bytes | memoryview) -> list[F]: ...


class Link(Generic[F]):
    """``send`` before and after ``close`` is allowed; after it, nothing is sent."""

    def __init__(
        self,
        end: socket.socket,
        decoder: Decoder[F],
        on_frame: Callable[[F, int], None],
        on_lost: Callable[[], None],
    ) -> None:
        """``on_frame`` gets the frame and about how many bytes it took."""
        self._loop = asyncio.get_running_loop()
        self._socket = end
        self._decoder = decoder
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._queue: deque[tuple[memoryview, list[int]]] = deque()
        self._is_open = True
        self._unparsed_bytes = 0
        end.setblocking(False)
        self._loop.add_reader(end.fileno(), self._on_readable)

    def send(self, frame: dict[str, Any], descriptors: list[int] | None = None) -> None:
        """Takes over ``descriptors``, closed once they are on their way. Raises FrameError for a frame that is too long."""
        descriptors = descriptors or []
        try:
            data = memoryview(_encode(frame))
        except frames.FrameError:
            _close(descriptors)
            raise
        if not self._is_open:
            _close(descriptors)
            return
        self._queue.append((data, descriptors))
        if len(self._queue) == 1:
            self._flush()
            if self._queue and self._is_open:
                self._loop.add_writer(self._socket.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        self._flush()
        if not self._queue and self._is_open:
            self._loop.remove_writer(self._socket.fileno())

    def _flush(self) -> None:
        while self._queue:
            data, descriptors = self._queue[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            try:
                sent = self._socket.sendmsg([data], rights, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError:
                self._lose()
                return
            _close(descriptors)
            descriptors.clear()
            if sent == len(data):
                self._queue.popleft()
            else:
                self._queue[0] = data[sent:], descriptors

    def _on_readable(self) -> None:
        for _ in range(READS_PER_TURN):
            try:
                size = self._socket.recv_into(_read_buffer)
            except BlockingIOError:
                return
            except OSError:
                size = 0
            if not size:
                self._lose()
                return
            try:
                found = self._decoder.feed(_read_buffer[:size])
            except frames.FrameError as error:
                log.warning("a peer broke the protocol of sessions: %s", error)
                self._lose()
                return
            self._unparsed_bytes += size
            size_bytes = self._unparsed_bytes // max(1, len(found))
            for frame in found:
                self._unparsed_bytes = 0
                self._on_frame(frame, size_bytes)
                if not self._is_open:
                    return
            if size < READ_BYTES:
                return

    def read_now(self) -> None:
        """Take what the peer has said by now."""
        if self._is_open:
            self._on_readable()

    def read_rest(self) -> None:
        """What the peer, which has ended, said before."""
        for _ in range(READS_AT_END):
            if self._is_open:
                self._on_readable()

    def _lose(self) -> None:
        if self._is_open:
            self.close()
            self._on_lost()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            while self._queue:
                _close(self._queue.popleft()[1])


def _encode(frame: dict[str, Any]) -> bytes:
    """As ``frames.encode``, which must do without a library; but faster."""
    try:
        payload = msgspec.json.encode(frame)
    except UnicodeEncodeError:  # lone surrogates, which only an escape can stand for
        return frames.encode(frame)
    return frames.with_header(payload)


def _close(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)
