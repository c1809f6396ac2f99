"""Messages over a SEQPACKET socket, in both directions, without blocking. The warden and the daemon
use the same class.

Ownership of descriptors. The kernel duplicates a sent descriptor into the peer. ``Channel`` closes
the sender's copy as soon as the kernel has taken the message, also on failure. A received
descriptor belongs to the caller of ``receive``, and the caller closes the descriptor.

Too many descriptors in flight. Linux counts the descriptors in flight of a user, and refuses more
while the count is above the sender's RLIMIT_NOFILE (unix(7), ETOOMANYREFS). User code of the same
user adds to the count. ``Channel`` then sends the message without the descriptors: the receiver
meets lost descriptors, as in gVisor, and only this request fails.

Order. Messages leave in the order of ``send``. The queue holds the messages that the kernel has not
taken; ``flush`` sends from the head and never skips a message.
"""

from __future__ import annotations

import array
import errno
import os
import socket
from collections import deque
from typing import TYPE_CHECKING

from execd.proc import message_codec
from execd.proc.messages import MemfdLost, ProtocolError

if TYPE_CHECKING:
    from execd.proc.messages import Message

# Room for a single SCM_RIGHTS block with the largest number of descriptors of a message.
_ANCILLARY_BYTES = socket.CMSG_SPACE(message_codec.MAX_DESCRIPTORS * array.array("i").itemsize)


class Closed(Exception):
    """The peer is gone."""


class Channel:
    """One end of the pair. Owns the socket and the descriptors of queued messages."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._queue: deque[tuple[bytes, list[int]]] = deque()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def queued(self) -> int:
        """The number of messages that the kernel has not taken yet."""
        return len(self._queue)

    def send(self, message: Message, descriptors: list[int] | None = None) -> None:
        """Send or queue the message.

        Takes over ``descriptors`` and closes them, also on failure. Raises Closed; OSError if a
        long message gets no memfd; ValueError as ``message_codec.encode``.
        """
        owned = list(descriptors or [])
        try:
            payload = message_codec.encode(message)
        except ValueError:
            _close(owned)
            raise
        in_memfd = len(payload) > message_codec.MAX_INLINE_BYTES
        if in_memfd:
            try:
                owned.insert(0, _memfd(payload))
            except OSError:
                _close(owned)
                raise
        datagram = message_codec.header(in_memfd=in_memfd, n_descriptors=len(owned)) + (
            message_codec.encode_tag(message) if in_memfd else payload
        )
        if not self._queue and not owned and self._send_at_once(datagram):
            return
        self._queue.append((datagram, owned))
        if len(self._queue) == 1:
            self.flush()

    def _send_at_once(self, datagram: bytes) -> bool:
        """Send a message without descriptors. Returns whether the kernel has taken the message; if
        not, ``flush`` meets the reason again."""
        try:
            self._socket.send(datagram, socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

    def flush(self) -> None:
        """Send queued messages until the kernel takes no more. Raises Closed."""
        while self._queue:
            datagram, descriptors = self._queue[0]
            rights = (
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
                if descriptors
                else []
            )
            try:
                self._socket.sendmsg([datagram], rights, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS and descriptors:
                    _close(descriptors)
                    self._queue[0] = datagram, []
                    continue
                raise Closed from error
            self._queue.popleft()
            _close(descriptors)

    def receive(self) -> tuple[Message, list[int]] | None:
        """Return the next message and its descriptors, or None if no message has come yet.

        The descriptors belong to the caller; -1 stands for a descriptor that was lost on the way.
        Raises Closed and MemfdLost. After any further ProtocolError the caller must not use the
        channel: the bytes are of an unknown sender or version.
        """
        try:
            datagram, ancillary, _, _ = self._socket.recvmsg(
                message_codec.MAX_INLINE_BYTES + message_codec.HEADER_BYTES,
                _ANCILLARY_BYTES,
                socket.MSG_CMSG_CLOEXEC,
            )
        except BlockingIOError:
            return None
        except OSError as error:
            raise Closed from error
        descriptors: list[int] = []
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                rights = array.array("i")
                rights.frombytes(data[: len(data) - len(data) % rights.itemsize])
                descriptors.extend(rights)
        return self.unpack(datagram, descriptors)

    def unpack(self, datagram: bytes, descriptors: list[int]) -> tuple[Message, list[int]]:
        """Return the message of a datagram that has come, as ``receive`` does and with the same
        errors. Takes over ``descriptors``."""
        try:
            if not datagram:
                raise Closed
            in_memfd, n_descriptors, payload = message_codec.split(datagram)
            if in_memfd:
                tag = message_codec.decode_tag(payload)
                if not descriptors:
                    raise MemfdLost(tag)
                memfd = descriptors.pop(0)
                n_descriptors -= 1
                assert n_descriptors >= 0, "split() refuses a memfd without a descriptor"
                payload = _contents(memfd)
            message = message_codec.decode(payload)
            if len(descriptors) != n_descriptors:
                # gVisor drops descriptors silently when the receiver is at its descriptor limit.
                # The message stays valid, its files are lost.
                _close(descriptors)
                descriptors = [-1] * n_descriptors
        except BaseException:
            _close(descriptors)
            raise
        return message, descriptors

    def close(self) -> None:
        """Close the socket and the descriptors of queued messages."""
        self._socket.close()
        while self._queue:
            _close(self._queue.popleft()[1])


def _memfd(payload: bytes) -> int:
    fd = os.memfd_create("execd-message", os.MFD_CLOEXEC)
    try:
        view = memoryview(payload)
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        os.close(fd)
        raise
    return fd


def _contents(memfd: int) -> bytes:
    """Read and close the memfd.

    The read is at an offset: a pipe in place of the memfd gives an error (ESPIPE) instead of a
    wait.
    """
    try:
        payload = os.pread(memfd, message_codec.MAX_MESSAGE_BYTES + 1, 0)
    except OSError:
        raise ProtocolError("a message that cannot be read") from None
    finally:
        os.close(memfd)
    if len(payload) > message_codec.MAX_MESSAGE_BYTES:
        raise ProtocolError("a message over the size limit")
    return payload


def _close(descriptors: list[int]) -> None:
    for fd in descriptors:
        if fd >= 0:
            os.close(fd)
