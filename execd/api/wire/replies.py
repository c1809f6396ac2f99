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
INSTANCE_HEADER = "X-Execd-Instance"
JSON = "application/json"
MAX_JOINED_BYTES = 16 * 1024
"""A longer body is not copied behind its head."""
_SURROGATES = re.compile("[\ud800-\udfff]")


def json_reply(
    body: Any, http_status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return a reply whose body is ``body`` as JSON: any value that msgspec encodes."""
    data = msgspec.json.encode(body)
    if http_status == 200 and headers is None and len(data) <= MAX_JOINED_BYTES:
        return UsualReply(body=data)
    # The type is passed as a header: aiohttp would parse a ``content_type`` argument and join its
    # parts again.
    all_headers = {"Content-Type": JSON, **(headers or {})}
    return web.Response(body=data, status=http_status, headers=all_headers)


class SentReply(web.StreamResponse):
    """Stands for a reply that the handler has sent as a whole. aiohttp sends the response of a
    handler once more, and asks whether the connection stays open."""

    status = 200
    keep_alive = True

    def __init__(self) -> None:
        """Not as aiohttp's: there are no headers to be added any more."""
        self.is_whole = False

    def force_close(self) -> None:
        self.keep_alive = False

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        if not self.is_whole:
            raise ConnectionResetError("the peer has left before the reply")
        return None

    async def write_eof(self, data: bytes = b"") -> None: ...


async def send_json(request: web.Request, body: Any) -> web.StreamResponse:
    """Send a reply of 200 with JSON at once."""
    data = msgspec.json.encode(body)
    if len(data) > MAX_JOINED_BYTES or not _has_usual_head(request):
        response = json_reply(body)
        await response.prepare(request)
        await response.write_eof()
        return response
    sent = request[FACTS].started = SentReply()
    await request.writer.write_eof(_usual_head(request, data) + data)
    sent.is_whole = True
    return sent


def _has_usual_head(request: web.BaseRequest) -> bool:
    """Whether no rule of HTTP changes the head of a reply of 200."""
    return (
        request.version == HttpVersion11
        and request.keep_alive
        and request.method not in ("HEAD", "CONNECT")
    )


def _usual_head(request: web.BaseRequest, body: bytes) -> bytes:
    """Return the head of a reply of 200 with JSON, and without headers of its own.

    The heads of such replies differ in few values, so the head is written down here: a twentieth
    of the CPU of a command less than by aiohttp.
    """
    facts = request[FACTS]
    return (
        f"HTTP/1.1 200 OK\r\nContent-Type: {JSON}\r\nContent-Length: {len(body)}\r\n"
        f"Date: {_date(int(time.time()))}\r\nServer: {SERVER}\r\n"
        f"X-Request-ID: {facts.id}\r\n"
        f"{INSTANCE_HEADER}: {facts.restores.instance_id}\r\n\r\n"
    ).encode("ascii")


class UsualReply(web.Response):
    """A reply with a usual head. aiohttp makes the head all the same where a rule of HTTP, or a
    header that somebody has added, changes the head.
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
        request[FACTS].started = self
        await request.writer.write_eof(_usual_head(request, body) + body)
        self._is_sent = True  # a write that failed fails again, and aiohttp learns of the failure
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        if not self._is_sent:
            await super().write_eof(data)

    def _has_usual_head(self, request: web.BaseRequest) -> bool:
        return (
            _has_usual_head(request)
            and self.keep_alive is None
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
