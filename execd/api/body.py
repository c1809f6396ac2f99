"""Request bodies: whole and bounded, or in chunks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from execd.api.keys import BODY_SECONDS
from execd.errors import InvalidArgument, PayloadTooLarge, RequestTimeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


# Of a file on its way in: each trip to a thread takes what has come meanwhile, and 1 MiB at a time is 1.4 times as fast as 256 KiB.
# Not the connection's own setting, or every idle one could be made to hold as much.
UPLOAD_READ_AHEAD_BYTES = 1 << 20


async def read_body(request: web.Request, limit_bytes: int) -> bytes:
    """The whole body. Raises PayloadTooLarge, before any of it is read if its length is declared; InvalidArgument; RequestTimeout."""
    body = bytearray()
    if request.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        raise InvalidArgument("Content-Encoding: only files may be encoded, and are kept so", field="Content-Encoding")
    if request.content_length is not None and request.content_length > limit_bytes:
        raise _too_large(limit_bytes)
    while chunk := await _next_chunk(request):
        body += chunk
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
    return bytes(body)


def upload_chunks(request: web.Request) -> AsyncIterator[bytes]:
    """As ``body_chunks``, in pieces of a size to be written to a file."""
    request.content.set_read_chunk_size(UPLOAD_READ_AHEAD_BYTES)
    return body_chunks(request)


async def body_chunks(request: web.Request) -> AsyncIterator[bytes]:
    """The body as it arrives, in pieces of any size; reading stops while nobody asks for the next one.

    Raises InvalidArgument, RequestTimeout.
    """
    while chunk := await _next_chunk(request):
        yield chunk


async def _next_chunk(request: web.Request) -> bytes:
    """No bytes at the end."""
    content = request.content
    try:
        if content.is_eof():  # all has come: nothing to wait for, as with nearly every JSON body
            return await content.readany()
        async with asyncio.timeout(request.app[BODY_SECONDS]):
            return await content.readany()
    except TimeoutError:
        raise RequestTimeout(f"no byte of the request body came for {request.app[BODY_SECONDS]:g} s") from None
    except web.RequestPayloadError:
        raise _malformed() from None


def _malformed() -> InvalidArgument:
    return InvalidArgument("the request body breaks its own encoding")  # bad chunk sizes


def _too_large(limit_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the request body has more than {limit_bytes} bytes (max_body_bytes)")
