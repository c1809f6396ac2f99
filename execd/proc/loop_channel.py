"""A ``Channel`` that the daemon's event loop reads and writes.

Tasks. None: all work happens in callbacks of the loop, in the loop's thread.

Loss. ``lost`` is set once, when the peer has closed its end or broken the protocol, and never
cleared: each warden gets a new channel. After a loss nothing more is received, and ``send`` drops
messages.

What can race. The peer may close its end between two sends. If the reader runs first,
``_on_readable`` sets ``lost``, and a later ``send`` fails in the kernel and sets ``lost`` again. If
``send`` runs first, ``send`` sets ``lost``, and the reader then meets the end of the stream. Both
orders end in the same state.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

from execd.proc.channel import Channel, Closed
from execd.proc.messages import ProtocolError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from execd.proc.messages import Message

log = logging.getLogger(__name__)


class LoopChannel:
    """The daemon's end of the socket pair to one warden. Owns the socket."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        end: socket.socket,
        on_message: Callable[[Message], None],
    ) -> None:
        """``on_message`` may raise ProtocolError for a message that the warden must not send."""
        self.lost = asyncio.Event()
        self.was_used = asyncio.Event()
        """Set by each message to the warden, and by a loss; cleared by the owner."""
        self.has_received = False
        """Whether a message has come since the owner last cleared the flag."""
        self._loop = loop
        self._on_message = on_message
        self._channel = Channel(end)
        self._is_open = True
        loop.add_reader(self._channel.fileno(), self._on_readable)

    def send(self, message: Message, descriptors: list[int] | None = None) -> None:
        """Send or queue the message; drop the message after a loss.

        Takes over ``descriptors`` and closes them. Raises OSError if a long message gets no memfd,
        and ValueError as ``message_codec.encode``.
        """
        assert self._is_open, "the owner forgets a channel before it closes the channel"
        self.was_used.set()
        try:
            self._channel.send(message, descriptors)
        except Closed:
            self._lose()
            return
        if self._channel.queued:
            self._loop.add_writer(self._channel.fileno(), self._on_writable)

    def close(self) -> None:
        """Close the socket and the descriptors that wait in the queue. To be called once."""
        assert self._is_open, "closed twice"
        self._is_open = False
        self._loop.remove_reader(self._channel.fileno())
        self._loop.remove_writer(self._channel.fileno())
        self._channel.close()

    async def wait_for(self, event: asyncio.Event) -> None:
        """Wait until the event is set or the channel is lost."""
        waits = [asyncio.create_task(each.wait()) for each in (event, self.lost)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _on_readable(self) -> None:
        assert self._is_open, "close() removes the reader"
        try:
            # A single message: the loop calls again at once if another has come, and as a rule none
            # has, so asking for the next would only cost a call and an exception.
            received = self._channel.receive()
            if received is None:
                return
            message, descriptors = received
            # The warden sends no descriptors. A negative number is a descriptor that was lost.
            for fd in descriptors:
                if fd >= 0:
                    os.close(fd)
            self.has_received = True
            self._on_message(message)
        except Closed:
            self._stop_reading()
        except ProtocolError:
            log.exception("the warden broke the protocol")
            self._stop_reading()

    def _stop_reading(self) -> None:
        self._loop.remove_reader(self._channel.fileno())
        self._lose()

    def _lose(self) -> None:
        self.lost.set()
        self.was_used.set()

    def _on_writable(self) -> None:
        assert self._is_open, "close() removes the writer"
        try:
            self._channel.flush()
        except Closed:
            self._lose()
        if not self._channel.queued or self.lost.is_set():
            self._loop.remove_writer(self._channel.fileno())
