"""How much of a command's output the peer of one connection has taken.

A frame that was written is not received: the kernel's buffers hold megabytes that a peer may never
read. So the bytes of a frame count only when the peer's machine has acknowledged the frame
(``unacknowledged_bytes``). A connection tells that only while it is open. Two looks make sure that
little is left undecided when the connection breaks: a look after each frame, and a look
CHECK_SECONDS after a frame that was not acknowledged at once. What is undecided then is sent again
to the next client: better twice than never.

What the peer's machine has acknowledged and its program has never read counts as taken. No server
can know better.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from execd.api.wire_api import unacknowledged_bytes

if TYPE_CHECKING:
    from aiohttp import web

    from execd.engine.engine_api import Stream

CHECK_SECONDS = 0.2


class Receipts:
    """The frames of one reply. The last timer ends when all frames are acknowledged, or the
    connection is closed."""

    def __init__(self, request: web.Request, received: dict[Stream, int]) -> None:
        """``received``: by stream, how many bytes some client has. Grows with each receipt."""
        self._transport = request.transport
        self._writer = request.writer
        self._received = received
        self._sent: deque[tuple[int, Stream, int]] = deque()
        """Frames without a receipt: the place of the frame's end in the reply, the stream, and the
        offset of the end of the frame's bytes in the stream."""
        self._timer: asyncio.TimerHandle | None = None

    def sent(self, stream: Stream, end: int) -> None:
        """The bytes of the stream up to ``end`` have been written."""
        self._sent.append((self._writer.output_size, stream, end))
        self.look()

    def look(self) -> None:
        """Count what the peer's machine has acknowledged."""
        if self._transport is None or self._transport.is_closing():
            return
        taken = self._writer.output_size - unacknowledged_bytes(self._transport)
        while self._sent and self._sent[0][0] <= taken:
            _, stream, end = self._sent.popleft()
            self._received[stream] = max(self._received.get(stream, 0), end)
        if self._sent and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.look()
