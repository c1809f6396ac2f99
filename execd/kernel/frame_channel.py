"""Frames over a stream socket, blocking: the end of a worker or of the zygote.

Sending happens in the middle of cells (display), in any thread of theirs, and any signal handler of
theirs may run in any line of it: raise there, or send something itself. Half a frame must not stay
behind, nor any of it go out twice, or the next would be garbage. So what is to be sent is queued
first, and each frame has a record of what went out of it. To look at the record, to send what it
leaves and to enter that are one call into C (``extend(map(send, …))``), in whose midst Python runs
no handler: it does in a system call that waits, and this one never does. Whoever sends next, a
handler too, goes on where the last one was stopped.

Runs in the user's interpreter: standard library only, Python 3.9.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import threading
from collections import deque
from operator import getitem
from typing import TYPE_CHECKING, Any

from execd.kernel import frames
from execd.kernel.descriptors import DescriptorLost, PrivateDescriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

READ_BYTES = 256 * 1024
POLL_MILLISECONDS = 200
_SEND_FLAGS = int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
_DESCRIPTOR_BYTES = array.array("i").itemsize
_ANCILLARY_BYTES = socket.CMSG_SPACE(4 * frames.MAX_BRANCHES * _DESCRIPTOR_BYTES)


class FrameChannelClosed(Exception):
    """The daemon is gone, or the descriptor is."""


class _OutgoingFrame:
    """A frame on its way, equal to no other, and what each send of it took."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.sent_sizes: list[int] = []


class FrameChannel:
    """Owns the descriptor ``fd``, which it moves, and those that come with frames until they are
    taken."""

    def __init__(self, fd: int, direction: dict[str, dict[str, Callable[[object], bool]]]) -> None:
        self._descriptor = PrivateDescriptor(fd)
        # for its methods; the descriptor is closed by _descriptor
        self._socket = socket.socket(fileno=self._descriptor.number)
        self._socket.setblocking(True)
        self._decoder = frames.FrameDecoder(direction)
        self._frames: deque[dict[str, Any]] = deque()
        self._descriptors: list[int] = []
        self._outgoing: deque[_OutgoingFrame] = deque()
        self._lock = threading.RLock()

    def fileno(self) -> int:
        """Raises Closed."""
        try:
            return self._descriptor.number
        except DescriptorLost:
            raise FrameChannelClosed from None

    def wait_for_frame(self) -> None:
        """Until ``receive`` has something to do. Comes up for air: a signal that arrives just
        before a system call waits for its end."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        while not self._frames and not poll.poll(POLL_MILLISECONDS):
            pass

    def receive(self) -> dict[str, Any]:
        """Wait for the next frame. Raises Closed, FrameError."""
        while not self._frames:
            self.fileno()
            try:
                data, ancillary, _, _ = self._socket.recvmsg(
                    READ_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                # user code has changed it, as programs do that make all they hold non-blocking
                self._socket.setblocking(True)
                continue
            except OSError as error:
                raise FrameChannelClosed from error
            for level, kind, rights in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    numbers = array.array("i")
                    numbers.frombytes(rights[: len(rights) - len(rights) % _DESCRIPTOR_BYTES])
                    self._descriptors.extend(numbers)
            if not data:
                raise FrameChannelClosed
            self._frames.extend(self._decoder.feed(data))
        return self._frames.popleft()

    def take_descriptors(self, count: int) -> list[int]:
        """Those that came with a frame, now the caller's. Raises OSError if some got lost: all are
        closed then."""
        taken, self._descriptors = self._descriptors, []
        if len(taken) == count:
            return taken
        for fd in taken:
            os.close(fd)
        raise OSError(f"{count} descriptors were sent, {len(taken)} came")

    def send(self, frame: dict[str, Any]) -> None:
        """Returns when the kernel has taken all of it. Raises Closed; TypeError, ValueError or
        FrameError for what is no frame."""
        self.send_encoded(frames.encode(frame))

    def send_encoded(self, data: bytes) -> None:
        self._outgoing.append(_OutgoingFrame(data))
        with self._lock:
            while self._outgoing:
                self._send_some()

    def _send_some(self) -> None:
        try:
            frame = self._outgoing[0]
        except IndexError:
            return  # a handler has sent it
        if sum(frame.sent_sizes) == len(frame.data):
            with contextlib.suppress(ValueError):  # a handler has done so
                self._outgoing.remove(frame)
            return
        fd = self.fileno()
        rest: Iterator[Any] = map(
            getitem, (memoryview(frame.data),), map(slice, map(sum, (frame.sent_sizes,)), (None,))
        )
        try:
            frame.sent_sizes.extend(map(self._socket.send, rest, (_SEND_FLAGS,)))
        except BlockingIOError:
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll(POLL_MILLISECONDS)
        except OSError as error:
            raise FrameChannelClosed from error

    def detach(self) -> None:
        """Close the descriptor in this process; the peer notices only when nobody else has it."""
        self._descriptor.close()
        self._socket.detach()
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors.clear()
