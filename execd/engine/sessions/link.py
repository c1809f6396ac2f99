"""The daemon's end of a conversation with a zygote or a worker: frames over a stream socket,
descriptors with them.

Owns the socket. Nothing waits here: what the peer does not take is queued, and what it says goes to
a callback. A peer that hangs up, breaks the protocol, or floods it with frames that change nothing
is told once to ``on_lost``, after which nothing comes.

What is read at a time is bounded (``link_turns``): a peer may send tiny frames as fast as the
kernel takes them, and a frame costs the daemon more than it costs the peer.

An unfinished frame is memory of the daemon, so what all links hold of unfinished frames counts
against one budget. A link above the budget is not read for PAUSE_SECONDS at a time, and a peer that
is silent in the middle of a frame for SILENCE_SECONDS is ended, so that nobody holds the budget for
good.
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

from execd.engine.sessions import link_turns
from execd.errors import ResourceExhausted
from execd.kernel import frames

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.engine.sessions.link_turns import LinkTurns

log = logging.getLogger(__name__)

READ_BYTES = 256 * 1024
# One for all, since nothing waits between filling and emptying it: a fresh one for each read is, at
# this size, a mapping made and unmade.
_read_buffer = memoryview(bytearray(READ_BYTES))
# Between frames so much is read at once, which no more than 170 frames fit into; within a frame,
# what it lacks.
SMALL_READ_BYTES = 4096
# More than a socket holds (net.core.wmem_default), at LINK_SHARE each.
SHARES_AT_ONCE, SHARES_AT_END = 8, 256

# In a second. An honest worker sends none; a thread of an earlier cell, or a library that patches
# ours, might send some.
IGNORED_FRAMES = 1000
IGNORED_BYTES = frames.FRAME_BYTES
IGNORED_SECONDS = 1.0

PAUSE_SECONDS = 0.05
SILENCE_SECONDS = 30.0


F = TypeVar("F")


class LinkDecoder(Protocol[F]):
    """``frames.Decoder`` or ``claims.Decoder``."""

    @property
    def missing_bytes(self) -> int: ...

    @property
    def held_bytes(self) -> int: ...

    def feed(self, data: bytes | memoryview) -> list[F]: ...


class Link(Generic[F]):
    """``send`` before and after ``close`` is allowed; after it, nothing is sent."""

    def __init__(
        self,
        end: socket.socket,
        decoder: LinkDecoder[F],
        turns: LinkTurns,
        on_frame: Callable[[F, int], bool],
        on_lost: Callable[[], None],
        *,
        before_frames: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_frame`` gets the frame and about how many bytes it took, and returns whether the
        frame changed anything.

        ``before_frames`` is called when some have been read, before the first of them is handed on.
        """
        self.fault: str | None = None
        """What the peer did wrong, if that is why it was lost."""
        self._loop = asyncio.get_running_loop()
        self._socket = end
        self._decoder = decoder
        self._turns = turns
        self._on_frame = on_frame
        self._before_frames = before_frames
        self._on_lost = on_lost
        self._queue: deque[tuple[memoryview, list[int]]] = deque()
        self._is_open = True
        self._unparsed_bytes = 0
        self._ignored_frames = self._ignored_bytes = 0
        self._ignored_since = 0.0
        self._lease = turns.new_lease()
        self._is_counted = False
        self._pause: asyncio.TimerHandle | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        end.setblocking(False)
        self._loop.add_reader(end.fileno(), self._on_readable)

    def send(self, frame: dict[str, Any], descriptors: list[int] | None = None) -> None:
        """Takes over ``descriptors``, closed once they are on their way. Raises FrameError for a
        frame that is too long."""
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
            rights = (
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
                if descriptors
                else []
            )
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
        self._turns.offer(self)

    def _may_read_on(self, wanted_bytes: int) -> bool:
        """Whether there is room for more of a frame that has begun. If not, the link is read again
        after a pause."""
        try:
            self._lease.resize(self._decoder.held_bytes + wanted_bytes)
        except ResourceExhausted:
            self._loop.remove_reader(self._socket.fileno())
            self._pause = self._loop.call_later(PAUSE_SECONDS, self._end_pause)
            return False
        self._is_counted = True
        if self._silence is None:
            self._silence = self._loop.call_later(SILENCE_SECONDS, self._check_silence)
        return True

    def _end_pause(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket.fileno(), self._on_readable)

    def _check_silence(self) -> None:
        """A paused link is not silent: nobody reads what its peer says."""
        self._silence = None
        if not self._decoder.held_bytes:
            return
        left = self._heard_at + SILENCE_SECONDS - self._loop.time()
        if left <= 0 and self._pause is None:
            self._lose(f"it sent nothing for {SILENCE_SECONDS:g} s in the middle of a frame")
        else:
            self._silence = self._loop.call_later(max(left, PAUSE_SECONDS), self._check_silence)

    def read_share(self) -> int:
        """See ``link_turns.Reader``. 0: there was nothing, or the peer is lost."""
        cost = 0
        while self._is_open and self._pause is None and cost < link_turns.LINK_SHARE:
            missing_bytes = self._decoder.missing_bytes
            wanted_bytes = min(READ_BYTES, max(SMALL_READ_BYTES, missing_bytes))
            if missing_bytes and not self._may_read_on(wanted_bytes):
                break
            try:
                size = self._socket.recv_into(_read_buffer, wanted_bytes)
            except BlockingIOError:
                break
            except OSError:
                size = 0
            if not size:
                self._lose()
                return 0
            cost += size + self._take(_read_buffer[:size])
            if size < wanted_bytes:
                break
        return cost

    def _take(self, data: memoryview) -> int:
        """Decode what was read and hand on the frames. Returns what that cost, besides the
        reading."""
        try:
            found = self._decoder.feed(data)
        except frames.FrameError as error:
            self._lose(f"it broke the protocol of sessions: {error}")
            return 0
        if self._is_counted:
            self._heard_at = self._loop.time()
            if not self._decoder.missing_bytes:
                self._lease.release()
                self._is_counted = False
        self._unparsed_bytes += len(data)
        if not found:
            return 0
        all_bytes, self._unparsed_bytes = self._unparsed_bytes, 0
        size_bytes = all_bytes // len(found)
        self._before_frames()
        for frame in found:
            if not self._on_frame(frame, size_bytes):
                self._count_ignored(size_bytes)
            if not self._is_open:
                break
        return all_bytes + len(found) * link_turns.FRAME_BYTES

    def _count_ignored(self, size_bytes: int) -> None:
        now = self._loop.time()
        if now - self._ignored_since > IGNORED_SECONDS:
            self._ignored_since, self._ignored_frames, self._ignored_bytes = now, 0, 0
        self._ignored_frames += 1
        self._ignored_bytes += size_bytes
        if self._ignored_frames > IGNORED_FRAMES or self._ignored_bytes > IGNORED_BYTES:
            self._lose(
                f"it sent more than {IGNORED_FRAMES} frames, or {IGNORED_BYTES >> 20} MiB of "
                "frames, that change nothing"
                f" within {IGNORED_SECONDS:g} s"
            )

    def read_now(self) -> None:
        """Take what the peer has said by now. Not for ``on_frame`` to call."""
        for _ in range(SHARES_AT_ONCE):
            if not self.read_share():
                return

    async def read_rest(self) -> None:
        """What the peer, which has ended, said before."""
        for _ in range(SHARES_AT_END):
            if not self.read_share():
                return
            await asyncio.sleep(0)

    def _lose(self, fault: str | None = None) -> None:
        if not self._is_open:
            return
        self.fault = fault
        if fault is not None:
            log.warning("a peer of the protocol of sessions is ended: %s", fault)
        self.close()
        self._on_lost()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._lease.release()
            for timer in (self._pause, self._silence):
                if timer is not None:
                    timer.cancel()
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
