"""Messages over a SEQPACKET socket, both directions, non-blocking. Used by the warden and by its
client.

The socket's descriptors: whatever is sent is duplicated by the kernel into the peer, and the sender
closes its own when ``send`` has returned or the queue has taken them. Whatever is received belongs
to the receiver, who closes it.
"""

from __future__ import annotations

import array
import os
import socket
from collections import deque

from execd.proc import messages
from execd.proc.messages import MemfdLost, Message, ProtocolError

# One SCM_RIGHTS block of the most descriptors a message may have.
_ANCILLARY_BYTES = socket.CMSG_SPACE(messages.MAX_DESCRIPTORS * array.array("i").itemsize)


class Closed(Exception):
    """The peer is gone."""


class Channel:
    """One end of the pair. Owns the socket and the descriptors that wait in its queue."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._queue: deque[tuple[bytes, list[int]]] = deque()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def queued(self) -> int:
        """Messages that the kernel has not taken yet."""
        return len(self._queue)

    def send(self, message: Message, descriptors: list[int] | None = None) -> None:
        """Send or queue. Takes over ``descriptors`` and closes them, also on failure. Raises
        Closed."""
        owned = list(descriptors or [])
        payload = messages.encode(message)
        in_memfd = len(payload) > messages.MAX_INLINE_BYTES
        if in_memfd:
            try:
                owned.insert(0, _memfd(payload))
            except OSError:
                _close(owned)
                raise
        datagram = messages.header(in_memfd=in_memfd, n_descriptors=len(owned)) + (
            messages.encode_tag(message) if in_memfd else payload
        )
        self._queue.append((datagram, owned))
        if len(self._queue) == 1:
            self.flush()

    def flush(self) -> None:
        """Send what the kernel takes now. Raises Closed."""
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
                raise Closed from error
            self._queue.popleft()
            _close(descriptors)

    def receive(self) -> tuple[Message, list[int]] | None:
        """The next message and its descriptors, now the caller's; None if there is none yet.

        Raises Closed; MemfdLost; any other ProtocolError, after which the channel must not be used:
        what came is not to be guessed at.
        """
        try:
            datagram, ancillary, _, _ = self._socket.recvmsg(
                messages.MAX_INLINE_BYTES + messages.HEADER_BYTES,
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
        try:
            if not datagram:
                raise Closed
            in_memfd, n_descriptors, payload = messages.split(datagram)
            if in_memfd:
                tag = messages.decode_tag(payload)
                if not descriptors:
                    raise MemfdLost(tag)
                memfd = descriptors.pop(0)
                n_descriptors -= 1
                payload = _contents(memfd)
            message = messages.decode(payload)
            if len(descriptors) != n_descriptors:
                # gVisor drops them without a word when the receiver has no room: the message stays,
                # its files do not.
                _close(descriptors)
                descriptors = [-1] * n_descriptors
        except BaseException:
            _close(descriptors)
            raise
        return message, descriptors

    def close(self) -> None:
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
    """Read and close it. At an offset, so that a pipe in its place is an error and not a wait."""
    try:
        payload = os.pread(memfd, messages.MAX_MESSAGE_BYTES + 1, 0)
    except OSError:
        raise ProtocolError("a message that cannot be read") from None
    finally:
        os.close(memfd)
    if len(payload) > messages.MAX_MESSAGE_BYTES:
        raise ProtocolError("a message over the size limit")
    return payload


def _close(descriptors: list[int]) -> None:
    for fd in descriptors:
        if fd >= 0:
            os.close(fd)
