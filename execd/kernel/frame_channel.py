"""Frames over a blocking stream socket: the end of a worker or of the zygote.

Cells send frames (display) in any of their threads. A signal handler of user code may run between
any two bytecodes of ``send``: the handler may raise, or send a frame itself. Two faults would turn
the rest of the stream into garbage: half a frame left unsent, and bytes sent twice.

The rule that prevents both: a frame is queued first, and each frame keeps the sizes of its sends.
Reading the sizes, sending the rest and recording the new size are a single call into C
(``extend(map(send, …))``). Python runs no signal handler inside that call, because the system call
never waits (MSG_DONTWAIT). The two orders of events:

* The handler runs before the call: the handler's own ``send`` finishes the queued frame. The
  interrupted ``send`` then finds nothing left of the frame.
* The handler runs after the call: the new size is recorded. The next sender, the handler included,
  continues after the bytes already sent.

Runs in the user's interpreter: standard library only, Python 3.9.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import socket
import threading
from collections import deque
from operator import getitem
from typing import TYPE_CHECKING, Any

from execd.kernel import frames
from execd.kernel.descriptors import DescriptorLost, PrivateDescriptor, is_of_a_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

READ_BYTES = 256 * 1024
POLL_MILLISECONDS = 200
"""Longest single wait. A signal that arrives just before a waiting system call does not end the
wait, so the handler would run late."""
_SEND_FLAGS = int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
_DESCRIPTOR_BYTES = array.array("i").itemsize
_ANCILLARY_BYTES = socket.CMSG_SPACE(4 * frames.MAX_BRANCHES * _DESCRIPTOR_BYTES)


class FrameChannelClosed(Exception):
    """The daemon has closed its end, or user code has taken the descriptor."""


class _OutgoingFrame:
    """A queued frame and the number of bytes taken by each send. Compared by identity."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.sent_sizes: list[int] = []


class FrameChannel:
    """A worker's or the zygote's protocol socket.

    Owns ``fd``, moved to a private number, and received descriptors until ``take_descriptors``.
    """

    def __init__(self, fd: int, direction: dict[str, dict[str, Callable[[object], bool]]]) -> None:
        self._descriptor = PrivateDescriptor(fd)
        # Gives methods only: ``_descriptor`` closes the descriptor.
        self._socket = socket.socket(fileno=self._descriptor.number)
        self._socket.setblocking(True)
        self._decoder = frames.FrameDecoder(direction)
        self._frames: deque[dict[str, Any]] = deque()
        self._descriptors: list[int] = []
        self._outgoing: deque[_OutgoingFrame] = deque()
        self._lock = threading.RLock()

    def fileno(self) -> int:
        """Return the descriptor's number. Raises FrameChannelClosed."""
        try:
            return self._descriptor.number
        except DescriptorLost:
            raise FrameChannelClosed from None

    def wait_for_frame(self) -> None:
        """Wait until ``receive`` has work. Signal handlers run at least every POLL_MILLISECONDS.

        Raises FrameChannelClosed.
        """
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        while not self._frames and not poll.poll(POLL_MILLISECONDS):
            pass

    def receive(self) -> dict[str, Any]:
        """Wait for the next frame. Raises FrameChannelClosed, FrameError."""
        while not self._frames:
            self.fileno()
            try:
                data, ancillary, _, _ = self._socket.recvmsg(
                    READ_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
                )
            except OSError as error:
                if is_of_a_handler(error):
                    raise
                if isinstance(error, BlockingIOError):
                    # Some programs make every descriptor they hold non-blocking.
                    self._socket.setblocking(True)
                    continue
                raise FrameChannelClosed from error
            for level, kind, rights in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    numbers = array.array("i")
                    numbers.frombytes(rights[: len(rights) - len(rights) % _DESCRIPTOR_BYTES])
                    for number in numbers:
                        self._take_over(number)
            if not data:
                raise FrameChannelClosed
            self._frames.extend(self._decoder.feed(data))
        return self._frames.popleft()

    def _take_over(self, number: int) -> None:
        """Keep a received descriptor, at a number above 2.

        User code may have closed a standard descriptor. The kernel then gives its number to the
        received descriptor, and a new worker would overwrite the descriptor with its own standard
        descriptors.
        """
        if number > 2:
            self._descriptors.append(number)
            return
        try:
            self._descriptors.append(fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3))
        except OSError:
            pass  # no free number: ``take_descriptors`` notices the missing descriptor
        finally:
            os.close(number)

    def take_descriptors(self, count: int) -> list[int]:
        """Hand the received descriptors over to the caller.

        Raises OSError, and closes all of them, if fewer than ``count`` have arrived: the kernel
        drops descriptors beyond RLIMIT_NOFILE.
        """
        assert count > 0
        taken, self._descriptors = self._descriptors, []
        if len(taken) == count:
            return taken
        for fd in taken:
            os.close(fd)
        raise OSError(f"{count} descriptors were sent, {len(taken)} came")

    def send(self, frame: dict[str, Any]) -> None:
        """Send a frame; return when the kernel has taken the last byte.

        Raises FrameChannelClosed; TypeError, ValueError, RecursionError or FrameError for a frame
        that cannot be encoded.
        """
        self.send_encoded(frames.encode(frame))

    def send_encoded(self, data: bytes) -> None:
        """Send the bytes of a whole frame. Raises FrameChannelClosed."""
        assert len(data) >= frames.HEADER_BYTES
        self._outgoing.append(_OutgoingFrame(data))
        with self._lock:
            while self._outgoing:
                self._send_some()

    def _send_some(self) -> None:
        try:
            frame = self._outgoing[0]
        except IndexError:
            return  # a signal handler has sent and removed the frame
        if sum(frame.sent_sizes) < len(frame.data):
            self._send_rest(frame)
        n_sent = sum(frame.sent_sizes)
        assert n_sent <= len(frame.data)
        if n_sent == len(frame.data):
            try:
                self._outgoing.remove(frame)
            except ValueError:
                pass  # a signal handler has removed the frame

    def _send_rest(self, frame: _OutgoingFrame) -> None:
        """Send as much as the socket takes, or wait. Sends nothing of a frame that a signal handler
        has sent meanwhile."""
        fd = self.fileno()
        rest: Iterator[Any] = map(
            getitem, (memoryview(frame.data),), map(slice, map(sum, (frame.sent_sizes,)), (None,))
        )
        try:
            frame.sent_sizes.extend(map(self._socket.send, rest, (_SEND_FLAGS,)))
        except OSError as error:
            if is_of_a_handler(error):
                raise
            if not isinstance(error, BlockingIOError):
                raise FrameChannelClosed from error
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll(POLL_MILLISECONDS)

    def detach(self) -> None:
        """Close all descriptors in this process. The connection lives on in the process that forked
        this process."""
        self._descriptor.close()
        self._socket.detach()
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors.clear()
