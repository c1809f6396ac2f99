"""Sending the entries of a directory as JSON: a small directory at once, a large one in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from execd.api.wire.keys import ENGINE
from execd.api.wire.streams import abort_when_stalled

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.engine.files.service import Entry
    from execd.engine.files.transfers import OpenedListing


async def send_listing(
    request: web.Request,
    listing: OpenedListing,
    reply: Callable[[Entry], Any],
    head: bytes,
    tail: bytes,
) -> web.StreamResponse:
    """Answer GET or HEAD with ``head``, the reply of each entry, separated by commas, and ``tail``.

    Raises what reading the directory raises. After the first piece such an error cuts the
    connection, since the status has been sent.
    """

    def render(entries: list[Entry]) -> bytes:
        return msgspec.json.encode([reply(entry) for entry in entries])[1:-1]

    data = await listing.read(render)
    if not listing.is_large:
        return web.Response(body=head + (data or b"") + tail, content_type="application/json")
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    if request.method == "GET":
        with abort_when_stalled(request, request.app[ENGINE].config.stream_stall_seconds):
            await response.write(head + (data or b""))
            while (data := await listing.read(render)) is not None:
                await response.write(b"," + data)
            await response.write(tail)
    await response.write_eof()
    return response
