"""The daemon's end of the protocol with a zygote or a worker: frames, and descriptors, on a socket.

A link owns its socket and runs in callbacks of the event loop: nothing waits here. Frames for a
slow peer are queued; frames from the peer go to ``on_frame``. When the peer hangs up, breaks the
protocol, or floods the daemon with ignored frames, ``on_lost`` is called once, and no callback
follows.

User code runs in the peer, so a link bounds the costs of a hostile peer:

* Time. A frame costs the daemon more than the peer, and a peer can send tiny frames as fast as the
  kernel takes them. A link reads a share in each turn of the event loop (``LinkTurns``).
* Memory. The unfinished frames of all links count against one budget. A link above the budget is
  not read for PAUSE_SECONDS, then tries again. A peer that is silent in the middle of a frame for
  SILENCE_SECONDS is lost, so that no peer holds the budget for good.
"""

from __future__ import annotations

import array
import asyncio
import errno
import logging
import os
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from execd.errors import ResourceExhausted
from execd.kernel import frames

if TYPE_CHECKING:
    from collections.abc import Callable


log = logging.getLogger(__name__)

READ_BYTES = 256 * 1024
# One buffer for all links: a link fills and empties the buffer without an await between. A new
# buffer of this size for each read would cost an mmap and a munmap.
_read_buffer = memoryview(bytearray(READ_BYTES))
# Bytes read at once between frames: at most 170 frames. Within a frame, the missing bytes are read.
SMALL_READ_BYTES = 4096
# Shares read by ``read_now`` and ``read_rest``, of LINK_SHARE bytes each: more than a socket holds
# (net.core.wmem_default).
SHARES_AT_ONCE, SHARES_AT_END = 8, 256

# Bounds on ignored frames within IGNORED_SECONDS. An honest worker sends none; a thread of an
# earlier cell, or a library that patches the worker's modules, may send some.
IGNORED_FRAMES = 1000
IGNORED_BYTES = frames.FRAME_BYTES
IGNORED_SECONDS = 1.0

PAUSE_SECONDS = 0.05
SILENCE_SECONDS = 30.0

F = TypeVar("F")

# A frame of any size costs as much as so many bytes: to decode a frame and act on the frame took
# 4 us, about the time of reading 4 KiB from a socket.
FRAME_COST_BYTES = 4096
LINK_SHARE = 256 * 1024
LOOP_SHARE = 4 * LINK_SHARE


class FrameLease(Protocol):
    """The share of a link in the budget for bytes in flight (``in_flight``)."""

    def resize(self, size_bytes: int) -> None:
        """Set the size. Raises ResourceExhausted and keeps the old size."""

    def release(self) -> None:
        """Set the size to 0. Idempotent."""


class LinkTurns:
    """Turns of links: how many bytes are read from all peers together before other callbacks run.

    One link reads at most LINK_SHARE in a turn. All links together read LOOP_SHARE; then the
    remaining links wait in a queue, first come, first served, until a later turn of the event loop.
    So a flood delays all other callbacks by milliseconds, and a link with few frames waits for at
    most one share of each flooding link. An unread link blocks the peer in the socket, and the
    output of an honest peer is only delayed.

    Until LOOP_SHARE is used up, a turn adds no callback to the event loop, so small cells pay
    nothing.

    ``new_lease`` makes a lease of the budget for unfinished frames.
    """

    def __init__(self, new_lease: Callable[[], FrameLease]) -> None:
        self.new_lease = new_lease
        self._loop = asyncio.get_running_loop()
        self._left = LOOP_SHARE
        """Cost left for this turn; negative after a link's last frame."""
        self._waiting: dict[Link[Any], None] = {}
        self._will_renew = False

    def offer(self, link: Link[Any]) -> None:
        """Let a readable link read, now or in a later turn."""
        if self._left > 0 and not self._waiting:
            self._let_read(link)
        else:
            assert self._will_renew, "a queue without a callback would wait forever"
            self._waiting[link] = None  # a link in the queue keeps its place

    def _let_read(self, link: Link[Any]) -> None:
        try:
            cost = link.read_share()
            assert cost >= 0
            self._left -= cost
        finally:
            if (self._left <= 0 or self._waiting) and not self._will_renew:
                self._will_renew = True
                self._loop.call_soon(self._renew)

    def _renew(self) -> None:
        """Begin a new turn."""
        assert self._will_renew
        self._will_renew = False
        self._left = LOOP_SHARE
        while self._waiting and self._left > 0:
            link = next(iter(self._waiting))
            del self._waiting[link]
            self._let_read(link)


class Link(Generic[F]):
    """One link. ``send`` is allowed after ``close``, and then sends nothing."""

    def __init__(
        self,
        end: socket.socket,
        decode: Callable[[bytes], F],
        turns: LinkTurns,
        on_frame: Callable[[F, int], bool],
        on_lost: Callable[[], None],
        *,
        before_frames: Callable[[], None] = lambda: None,
    ) -> None:
        """``decode`` makes a frame of a payload, or raises FrameError. ``on_frame`` gets a frame
        and its approximate size in bytes.

        ``on_frame`` returns False for an ignored frame, a frame that changed nothing.
        ``before_frames`` is called after a read with complete frames, before the first frame goes
        to ``on_frame``.
        """
        self.fault: str | None = None
        """How the peer broke the rules, if the link was lost for that."""
        self._loop = asyncio.get_running_loop()
        self._socket = end
        self._splitter = frames.Splitter()
        self._decode = decode
        self._turns = turns
        self._on_frame = on_frame
        self._before_frames = before_frames
        self._on_lost = on_lost
        self._queue: deque[tuple[memoryview, list[int]]] = deque()
        self._is_open = True
        self._unparsed_bytes = 0
        """Bytes read since the last complete frame."""
        self._ignored_frames = self._ignored_bytes = 0
        self._ignored_since = 0.0
        self._lease = turns.new_lease()
        self._is_leased = False
        """Whether the lease counts bytes of a frame under way."""
        self._pause: asyncio.TimerHandle | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._received_at = 0.0
        end.setblocking(False)
        self._loop.add_reader(end.fileno(), self._on_readable)

    def send(self, frame: dict[str, Any], descriptors: list[int] | None = None) -> None:
        """Send a frame, or queue the frame. Raises FrameError for a frame that is too long.

        Takes over ``descriptors``, in every case, and closes each after the kernel took a copy.
        """
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
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS and descriptors:
                    # As in proc/channel.py: the peer misses the descriptors and refuses the frame.
                    _close(descriptors)
                    descriptors.clear()
                    continue
                self._lose()
                return
            # The kernel has taken the descriptors, even if only part of the bytes went.
            _close(descriptors)
            descriptors.clear()
            if sent == len(data):
                self._queue.popleft()
            else:
                self._queue[0] = data[sent:], descriptors

    def _on_readable(self) -> None:
        self._turns.offer(self)

    def _reserve(self, wanted_bytes: int) -> bool:
        """Lease memory for more bytes of a frame under way. False: the link pauses."""
        assert self._pause is None
        try:
            self._lease.resize(self._splitter.held_bytes + wanted_bytes)
        except ResourceExhausted:
            self._loop.remove_reader(self._socket.fileno())
            self._pause = self._loop.call_later(PAUSE_SECONDS, self._end_pause)
            return False
        self._is_leased = True
        if self._silence is None:
            self._silence = self._loop.call_later(SILENCE_SECONDS, self._check_silence)
        return True

    def _end_pause(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket.fileno(), self._on_readable)

    def _check_silence(self) -> None:
        """Lose a silent peer. A paused link does not count as silent: the link is not read."""
        self._silence = None
        if not self._splitter.held_bytes:
            return
        seconds_left = self._received_at + SILENCE_SECONDS - self._loop.time()
        if seconds_left <= 0 and self._pause is None:
            self._lose(f"it sent nothing for {SILENCE_SECONDS:g} s in the middle of a frame")
        else:
            self._silence = self._loop.call_later(
                max(seconds_left, PAUSE_SECONDS), self._check_silence
            )

    def read_share(self) -> int:
        """Read at most LINK_SHARE and a frame. Return the cost in bytes, as one number; 0: nothing
        was there, or the peer is lost."""
        cost = 0
        while self._is_open and self._pause is None and cost < LINK_SHARE:
            missing_bytes = self._splitter.missing_bytes
            wanted_bytes = min(READ_BYTES, max(SMALL_READ_BYTES, missing_bytes))
            if missing_bytes and not self._reserve(wanted_bytes):
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
        """Decode bytes and hand the frames on. Return the cost, without the cost of reading."""
        try:
            found = [self._decode(payload) for payload in self._splitter.feed(data)]
        except frames.FrameError as error:
            self._lose(f"it broke the protocol of sessions: {error}")
            return 0
        if self._is_leased:
            self._received_at = self._loop.time()
            if not self._splitter.missing_bytes:
                self._lease.release()
                self._is_leased = False
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
        return all_bytes + len(found) * FRAME_COST_BYTES

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
        """Read the frames in the socket. ``on_frame`` must not call this."""
        for _ in range(SHARES_AT_ONCE):
            if not self.read_share():
                return

    async def read_rest(self) -> None:
        """Read the last frames of an ended peer."""
        for _ in range(SHARES_AT_END):
            if not self.read_share():
                return
            await asyncio.sleep(0)

    def _lose(self, fault: str | None = None) -> None:
        """Close the link and report the loss, once."""
        if not self._is_open:
            return
        self.fault = fault
        if fault is not None:
            log.warning("a peer of the protocol of sessions is ended: %s", fault)
        self.close()
        self._on_lost()

    def close(self) -> None:
        """Close the socket and the descriptors in the queue. Idempotent."""
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
    """Encode like ``frames.encode``, but faster: msgspec is available in the daemon."""
    try:
        payload = msgspec.json.encode(frame)
    except UnicodeEncodeError:  # lone surrogates: JSON can hold them as escapes only
        return frames.encode(frame)
    return frames.with_header(payload)


def _close(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)
