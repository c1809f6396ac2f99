"""Request bodies: whole and bounded, or in chunks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from execd.api.wire.keys import BODY_SECONDS, ENGINE, LEASE
from execd.engine.in_flight import FREE_BYTES
from execd.errors import InvalidArgument, PayloadTooLarge, RequestTimeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from execd.api.wire.multipart import Event as MultipartEvent
    from execd.api.wire.multipart import MultipartDecoder
    from execd.engine.in_flight import Lease


KIB = 1024
# How much aiohttp reads ahead of a handler, on each connection. aiohttp pauses above twice as much.
READ_AHEAD_BYTES = 32 * KIB
# Of a file on its way in: each trip to a thread takes what has come meanwhile, and 1 MiB at a time
# is 1.4 times as fast as 256 KiB. Not the connection's own setting, or every idle one could be made
# to hold as much.
UPLOAD_READ_AHEAD_BYTES = 1024 * KIB
# uvloop reads so much at once, also when that passes the mark for a pause.
RECEIVED_AT_ONCE_BYTES = 256 * KIB
# What a connection may hold of a body that nobody reads for the moment.
PARKED_BYTES = 2 * READ_AHEAD_BYTES + RECEIVED_AT_ONCE_BYTES
# Of a body that is read in pieces: one piece on its way to a file or a program, and what comes
# meanwhile.
PIECES_BYTES = 2 * PARKED_BYTES
LARGE_PIECES_BYTES = 2 * (2 * UPLOAD_READ_AHEAD_BYTES + RECEIVED_AT_ONCE_BYTES)
# Uploads get large pieces while this much of the budget is free, and small ones then: all go on.
SHARE_OF_LARGE_PIECES = 0.25
BODILESS_METHODS = ("GET", "HEAD", "DELETE")


async def read_body(request: web.Request) -> bytes:
    """The whole body. It counts as in flight until the request is over: what was made of it is held
    as long.

    Raises PayloadTooLarge, before any of it is read if its length is declared; InvalidArgument;
    RequestTimeout; ResourceExhausted.
    """
    limit_bytes = request.app[ENGINE].config.max_body_bytes
    body = bytearray()
    if request.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        raise InvalidArgument(
            "Content-Encoding: only files may be encoded, and are kept so", field="Content-Encoding"
        )
    if request.content_length is not None and request.content_length > limit_bytes:
        raise _too_large(limit_bytes)
    while chunk := await _next_chunk(request):
        body += chunk
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
        if len(body) > FREE_BYTES:
            lease_of(request).resize(_at_most_declared(request, len(body) + PARKED_BYTES))
    if LEASE in request:
        request[LEASE].resize(len(body))
    return bytes(body)


def upload_chunks(request: web.Request) -> AsyncIterator[bytes]:
    """As ``body_chunks``, in pieces of a size to be written to a file."""
    large = _at_most_declared(request, LARGE_PIECES_BYTES)
    if not lease_of(request).has_room(large, SHARE_OF_LARGE_PIECES):
        return body_chunks(request)
    request.content.set_read_chunk_size(UPLOAD_READ_AHEAD_BYTES)
    return body_chunks(request, large)


async def form_events(
    request: web.Request, decoder: MultipartDecoder
) -> AsyncIterator[MultipartEvent]:
    """What a multipart body consists of, as the body arrives. Raises as ``body_chunks``, and
    InvalidArgument."""
    async for chunk in upload_chunks(request):
        for number, piece in enumerate(decoder.pieces(chunk)):
            if number:
                await asyncio.sleep(0)  # many delimiters: others get their turns in between
            for event in decoder.feed(piece):
                yield event


async def body_chunks(request: web.Request, held_bytes: int = PIECES_BYTES) -> AsyncIterator[bytes]:
    """The body as it arrives, in pieces of any size; reading stops while nobody asks for the next
    one.

    ``held_bytes`` count as in flight, or the length of the body, if that is less. Raises
    InvalidArgument, RequestTimeout, and before the first piece ResourceExhausted.
    """
    lease_of(request).resize(_at_most_declared(request, held_bytes))
    while chunk := await _next_chunk(request):
        yield chunk


def refuse_unread_body(request: web.Request) -> None:
    """Raises PayloadTooLarge for a body that means nothing (RFC 9110 §9.3.1) and that no handler
    reads.

    It would stay in the connection's buffer for as long as the request takes, a stream for
    instance.
    """
    if request.method in BODILESS_METHODS and (
        (request.content_length or 0) > FREE_BYTES or "Transfer-Encoding" in request.headers
    ):
        raise PayloadTooLarge(f"a {request.method} request has no body")


def lease_of(request: web.Request) -> Lease:
    """What the request counts as in flight. The middleware releases it."""
    if LEASE not in request:
        request[LEASE] = request.app[ENGINE].in_flight.lease()
    return request[LEASE]


def _at_most_declared(request: web.Request, size_bytes: int) -> int:
    """A body holds no more than its length, where that is declared."""
    return size_bytes if request.content_length is None else min(size_bytes, request.content_length)


async def _next_chunk(request: web.Request) -> bytes:
    """No bytes at the end."""
    content = request.content
    try:
        if content.is_eof():  # all has come: nothing to wait for, as with nearly every JSON body
            return await content.readany()
        async with asyncio.timeout(request.app[BODY_SECONDS]):
            return await content.readany()
    except TimeoutError:
        raise RequestTimeout(
            f"no byte of the request body came for {request.app[BODY_SECONDS]:g} s"
        ) from None
    except web.RequestPayloadError:
        raise _malformed() from None


def _malformed() -> InvalidArgument:
    return InvalidArgument("the request body breaks its own encoding")  # bad chunk sizes


def _too_large(limit_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the request body has more than {limit_bytes} bytes (max_body_bytes)")
