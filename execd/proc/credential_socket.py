"""A pair of sockets by which a process learns the pid of another process from the kernel.

The receiver's end has SO_PASSCRED set: the kernel stamps each message with the sender's pid, in the
numbering of the receiver's PID namespace (unix(7)). A sender cannot forge the stamp.
"""

from __future__ import annotations

import array
import os
import socket
import struct

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_MESSAGE_BYTES = 16


def make_pair() -> tuple[socket.socket, socket.socket]:
    """Return the receiver's end and the sender's end. The caller closes both."""
    receiver, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Before the first message: the kernel stamps a message at the send, not at the receive.
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return receiver, sender


def receive_pid(receiver: socket.socket) -> int:
    """Return the pid of the process that sent the next message.

    Returns 0 if the sender's end was closed or the message has no stamp. Does not block. Raises
    OSError. Descriptors in the message are closed.
    """
    receiver.setblocking(False)
    space = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(array.array("i").itemsize)
    data, ancillary, _, _ = receiver.recvmsg(_MESSAGE_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    pid = 0
    for level, kind, content in ancillary:
        if level != socket.SOL_SOCKET:
            continue
        if kind == socket.SCM_RIGHTS:
            _close_all(content)
        elif kind == socket.SCM_CREDENTIALS and len(content) == _CREDENTIALS.size:
            pid = _CREDENTIALS.unpack(content)[0]
    return pid if data else 0


def _close_all(content: bytes) -> None:
    descriptors = array.array("i")
    descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    for fd in descriptors:
        os.close(fd)
