"""Headers before the body of a reply that takes long.

A router gives up on a request if no response headers come in time (the Go router of agent-sandbox:
30 s, ``--response-header-timeout``), answers 502, and closes its connection to the daemon; the
daemon then ends the command, because the caller has left. With a heartbeat the daemon sends the
headers early, and then spaces, which JSON allows before a value (RFC 8259, section 2).

The price: the status is 200 before the outcome is known, and the spaces keep a caller's read
timeout from firing. So the heartbeat is a setting, off by default and on in the image, and only
waits for an end of an execution use the heartbeat: the end is a result, never an error.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.http import HttpVersion11

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping


class EarlyHeaders:
    """One request that may wait long. ``response`` is None as long as no headers are sent."""

    def __init__(
        self,
        request: web.Request,
        interval_seconds: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Begin the first interval; 0: no early headers. ``headers`` are sent with early
        headers."""
        self._request, self._headers = request, headers or {}
        # A client of HTTP/1.0 knows no chunks (RFC 9112, section 7.1), and so no early headers.
        self._interval_seconds = interval_seconds if request.version >= HttpVersion11 else 0.0
        self._due = time.monotonic() + self._interval_seconds
        self.response: web.StreamResponse | None = None

    async def wait(
        self, end: Callable[[], Awaitable[object]], at_most_seconds: float | None = None
    ) -> bool:
        """Wait for ``end()``, and return whether the end came within ``at_most_seconds``.

        At each beat ``end()`` is cancelled and called again, so ``end`` must bear a cancel. Time
        before this call, in a queue, counts for the first beat.
        """
        if at_most_seconds is None and not self._interval_seconds:
            await end()
            return True
        until = math.inf if at_most_seconds is None else time.monotonic() + at_most_seconds
        while True:
            beat = self._due if self._interval_seconds else math.inf
            limit = min(beat, until)
            try:
                async with asyncio.timeout(None if limit == math.inf else limit - time.monotonic()):
                    await end()
                return True
            except TimeoutError:
                # Which limit it was, and not the time, decides: uvloop's timers count milliseconds,
                # so a timer may fire a moment before its time.
                if limit == until:
                    return False
                await self._beat()

    async def _beat(self) -> None:
        assert self._interval_seconds > 0, "no heartbeat is set"
        if self.response is None:
            self.response = web.StreamResponse(headers=self._headers)
            self.response.content_type = "application/json"
            self.response.enable_chunked_encoding()
            await self.response.prepare(self._request)
        await self.response.write(b" ")
        self._due = time.monotonic() + self._interval_seconds

    async def finish(self, whole: web.Response) -> web.StreamResponse:
        """Send ``whole``, or only its body if the headers are sent. Return the response sent."""
        if self.response is None:
            await whole.prepare(self._request)
            await whole.write_eof()
            return whole
        assert isinstance(whole.body, bytes), "a JSON reply is in memory"
        await self.response.write_eof(whole.body)
        return self.response
