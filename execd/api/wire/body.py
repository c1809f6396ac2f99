"""Request bodies: whole and bounded, or in chunks.

A peer that waits for "100 Continue" gets the line when a handler asks for the first bytes of the
body, not earlier: a request that is refused without a look at the body (no route, no token, a
precondition, a declared length) costs the peer no gigabytes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.http import HttpVersion11

from execd.api.wire.keys import BODY_SECONDS, ENGINE, FACTS
from execd.engine.in_flight import FREE_BYTES
from execd.errors import (
    ExpectationFailed,
    InvalidArgument,
    NotSupported,
    PayloadTooLarge,
    RequestTimeout,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from execd.api.wire.multipart import Event as MultipartEvent
    from execd.api.wire.multipart import MultipartDecoder
    from execd.engine.in_flight import Lease


KIB = 1024
# Bytes that aiohttp reads ahead of a handler, on each connection. aiohttp pauses reading above
# twice as many.
READ_AHEAD_BYTES = 32 * KIB
# The same for an upload. Each trip to a thread takes all that has arrived meanwhile, and 1 MiB at a
# time is 1.4 times as fast as 256 KiB. Not the setting of all connections: every idle connection
# could then be made to hold as much.
UPLOAD_READ_AHEAD_BYTES = 1024 * KIB
# uvloop reads up to so many bytes at once, also past the mark for a pause.
RECEIVED_AT_ONCE_BYTES = 256 * KIB
# Bytes that a connection may hold of a body while nobody reads.
PARKED_BYTES = 2 * READ_AHEAD_BYTES + RECEIVED_AT_ONCE_BYTES
# The same while a body is read in pieces: one piece on the way to a file or a program, and the
# bytes that arrive meanwhile.
PIECES_BYTES = 2 * PARKED_BYTES
LARGE_PIECES_BYTES = 2 * (2 * UPLOAD_READ_AHEAD_BYTES + RECEIVED_AT_ONCE_BYTES)
# Uploads get large pieces while this share of the budget is free, and small pieces otherwise. With
# small pieces every upload makes progress.
SHARE_OF_LARGE_PIECES = 0.25
BODILESS_METHODS = ("GET", "HEAD", "DELETE")
CONTINUE = "100-continue"


async def read_body(request: web.Request) -> bytes:
    """Read the whole body. The body counts as in flight until the end of the request, as the
    decoded values live as long.

    Raises PayloadTooLarge (at once if the declared length is too large), InvalidArgument,
    RequestTimeout, ResourceExhausted.
    """
    limit_bytes = request.client_max_size
    encoding = request.headers.get("Content-Encoding")
    if encoding is not None and encoding.strip().lower() not in ("", "identity"):
        raise InvalidArgument(
            "Content-Encoding: only files may be encoded, and are kept so", field="Content-Encoding"
        )
    declared_bytes, content = request.content_length, request.content
    if declared_bytes is not None and declared_bytes > limit_bytes:
        raise _too_large(limit_bytes)
    if (declared_bytes or FREE_BYTES + 1) <= FREE_BYTES and content.is_eof():
        # All bytes are here, as with nearly every JSON body, and too few to count as in flight.
        try:
            return content.read_nowait()
        except web.RequestPayloadError:
            raise _malformed() from None
    body = bytearray()
    while chunk := await _next_chunk(request):
        body += chunk
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
        if len(body) > FREE_BYTES:
            lease_of(request).resize(_at_most_declared(request, len(body) + PARKED_BYTES))
    if (lease := request[FACTS].lease) is not None:
        lease.resize(len(body))
    return bytes(body)


def upload_chunks(request: web.Request) -> AsyncIterator[bytes]:
    """Yield the body as ``body_chunks`` does, in pieces whose size suits a file."""
    large = _at_most_declared(request, LARGE_PIECES_BYTES)
    if not lease_of(request).has_room(large, SHARE_OF_LARGE_PIECES):
        return body_chunks(request)
    request.content.set_read_chunk_size(UPLOAD_READ_AHEAD_BYTES)
    return body_chunks(request, large)


async def form_events(
    request: web.Request, decoder: MultipartDecoder
) -> AsyncIterator[MultipartEvent]:
    """Yield the parts of a multipart body as the body arrives. Raises as ``body_chunks``, and
    InvalidArgument."""
    async for chunk in upload_chunks(request):
        for event in decoder.feed(chunk):
            yield event
        while decoder.is_behind:  # much text like the delimiter
            await asyncio.sleep(0)
            for event in decoder.feed(b""):
                yield event


async def body_chunks(request: web.Request, held_bytes: int = PIECES_BYTES) -> AsyncIterator[bytes]:
    """Yield the body as the body arrives, in pieces of any size. Reading pauses between the
    requests for pieces.

    ``held_bytes``, or the length of the body if less, count as in flight. Raises InvalidArgument,
    RequestTimeout, and before the first piece ResourceExhausted.
    """
    lease_of(request).resize(_at_most_declared(request, held_bytes))
    while chunk := await _next_chunk(request):
        yield chunk


async def drop_body(request: web.Request) -> None:
    """Read past the body of a method whose body has no meaning (RFC 9110 §9.3.1). Raises
    PayloadTooLarge, InvalidArgument, RequestTimeout.

    A proxy that does not know the length of a body announces chunks, on GET too: httpx does so for
    every body that it gets as an iterator, and the Python router of agent-sandbox passes bodies on
    so. A body of bytes would stay in the connection's buffer for the whole request, which may be a
    stream; therefore the end is awaited here, and FREE_BYTES at most may come before the end. A
    peer that waits for "100 Continue" has bytes to send, and is refused at once.
    """
    if request.method not in BODILESS_METHODS:
        return
    n_bytes = request.content_length or 0
    if "Transfer-Encoding" in request.headers:
        if awaits_continue(request):
            raise PayloadTooLarge(f"a {request.method} request has no body")
        while n_bytes <= FREE_BYTES and (chunk := await _next_chunk(request)):
            n_bytes += len(chunk)
    if n_bytes > FREE_BYTES:
        raise PayloadTooLarge(f"a {request.method} request has no body")


def refuse_transfer_coding(request: web.Request) -> None:
    """Refuse a transfer coding beside "chunked" (RFC 9112 §6.1). Raises NotSupported.

    aiohttp removes the chunks and leaves "gzip": a file would be stored compressed.
    """
    codings = request.headers.get("Transfer-Encoding")
    if codings is not None and codings.strip().lower() != "chunked":
        raise NotSupported(
            "Transfer-Encoding: the only transfer coding of this server is chunked; send the bytes "
            "of the body as they are",
            field="Transfer-Encoding",
        )


def refuse_unknown_expectation(request: web.Request) -> None:
    """Refuse an Expect header that asks for anything but "100 Continue" (RFC 9110 §10.1.1). Raises
    ExpectationFailed."""
    unknown = request[FACTS].expectations - {CONTINUE}
    if unknown:
        raise ExpectationFailed(
            f"Expect: {min(unknown)!r} is unknown; the only expectation is {CONTINUE}, and a "
            "request without the header is served too",
            field="Expect",
        )


def awaits_continue(request: web.Request) -> bool:
    """Return whether the peer waits for "100 Continue" before sending the body."""
    # RFC 9110 §10.1.1: the expectation of an HTTP/1.0 client is ignored.
    return CONTINUE in request[FACTS].expectations and request.version >= HttpVersion11


def lease_of(request: web.Request) -> Lease:
    """Return the request's lease on the bytes in flight. The middleware releases the lease."""
    facts = request[FACTS]
    if facts.lease is None:
        facts.lease = request.app[ENGINE].in_flight.lease()
    return facts.lease


def _at_most_declared(request: web.Request, size_bytes: int) -> int:
    """Bound ``size_bytes`` by the length of the body, if the length is declared."""
    return size_bytes if request.content_length is None else min(size_bytes, request.content_length)


async def _next_chunk(request: web.Request) -> bytes:
    """Return the next bytes of the body, or no bytes at the end."""
    content = request.content
    if request[FACTS].expectations:
        await _continue(request)
    try:
        if content.is_eof():  # all bytes are here, as with nearly every JSON body
            return await content.readany()
        async with asyncio.timeout(request.app[BODY_SECONDS]):
            return await content.readany()
    except TimeoutError:
        raise RequestTimeout(
            f"no byte of the request body came for {request.app[BODY_SECONDS]:g} s"
        ) from None
    except web.RequestPayloadError:
        raise _malformed() from None


async def _continue(request: web.Request) -> None:
    """Ask for the body, once. Raises ConnectionError if the peer has hung up."""
    is_due = awaits_continue(request) and not request.content.is_eof()
    facts = request[FACTS]
    facts.expectations = frozenset()
    if is_due:
        assert facts.started is None, "an interim reply comes before the reply"
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0


def _malformed() -> InvalidArgument:
    return InvalidArgument(
        "body: breaks its own encoding; a chunk is its size in hexadecimal digits, CR LF, the "
        "bytes, CR LF (RFC 9112 §7.1)",
        field="body",
    )


def _too_large(limit_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the request body has more than {limit_bytes} bytes (max_body_bytes)")
