"""JSON replies, and text that JSON can hold."""

from __future__ import annotations

import functools
import re
import time
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web
from aiohttp.http import HttpVersion11

from execd import __version__
from execd.api.wire.keys import FACTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp.abc import AbstractStreamWriter

SERVER = f"execd/{__version__}"
JSON = "application/json"
MAX_JOINED_BYTES = 16 * 1024
"""A longer body is not copied behind its head."""
_SURROGATES = re.compile("[\ud800-\udfff]")


def json_reply(
    body: Any, http_status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    data = msgspec.json.encode(body)
    if http_status == 200 and headers is None and len(data) <= MAX_JOINED_BYTES:
        return UsualReply(body=data)
    # The type is passed as a header: aiohttp would parse a ``content_type`` argument and join its
    # parts again.
    all_headers = {"Content-Type": JSON, **(headers or {})}
    return web.Response(body=data, status=http_status, headers=all_headers)


class UsualReply(web.Response):
    """A reply of 200 with JSON, and without headers of its own.

    The heads of such replies differ in three values, so the head is written down here: a twentieth
    of the CPU of a command less than by aiohttp. aiohttp makes the head all the same where a rule
    of HTTP, or a header that somebody has added, changes the head.
    """

    _is_sent = False

    @property
    def keep_alive(self) -> bool | None:
        keep_alive = super().keep_alive
        return True if keep_alive is None and self._is_sent else keep_alive

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send the whole reply. aiohttp calls again after the handler, and gets None."""
        if self._is_sent:
            return None
        if not self._has_usual_head(request):
            self.headers.setdefault("Content-Type", JSON)
            return await super().prepare(request)
        body = self.body
        assert isinstance(body, bytes), "json_reply gives bytes"
        facts = request[FACTS]
        facts.started = self
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: {JSON}\r\nContent-Length: {len(body)}\r\n"
            f"Date: {_date(int(time.time()))}\r\nServer: {SERVER}\r\n"
            f"X-Request-ID: {facts.id}\r\n\r\n"
        )
        await request.writer.write_eof(head.encode("ascii") + body)
        self._is_sent = True  # a write that failed fails again, and aiohttp learns of the failure
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        if not self._is_sent:
            await super().write_eof(data)

    def _has_usual_head(self, request: web.BaseRequest) -> bool:
        return (
            request.version == HttpVersion11
            and request.keep_alive
            and self.keep_alive is None
            and request.method not in ("HEAD", "CONNECT")
            and self.status == 200
            and not (self.headers or self.chunked or self.compression)
        )


@functools.lru_cache(maxsize=1)
def _date(seconds: int) -> str:
    """RFC 9110 §5.6.7, of a Unix time."""
    return formatdate(seconds, usegmt=True)


def replace_surrogates(text: str) -> str:
    """Replace each surrogate, which stands for a byte that is not UTF-8. JSON in UTF-8 cannot hold
    surrogates."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)
