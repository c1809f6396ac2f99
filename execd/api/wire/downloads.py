"""Downloads, for any dialect: a file, with validators, ranges and a name (RFC 9110 §8.8, §13, §14;
RFC 6266), and the entries of a directory as JSON, a large directory in pieces."""

from __future__ import annotations

import asyncio
import re
from email.utils import formatdate
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from aiohttp import web

from execd.api.wire.replies import replace_surrogates
from execd.api.wire.streams import abort_when_stalled
from execd.api.wire.validators import is_modified_since
from execd.errors import Conflict, RangeNotSatisfiable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from multidict import MultiMapping

    from execd.engine.files.service import Entry
    from execd.engine.files.transfers import OpenedFile, OpenedListing

# A read is a trip to a thread. With pieces of this size the trip is cheap against the copy, and a
# download holds only a few pieces in memory.
CHUNK_BYTES = 512 * 1024
SENDFILE_FROM_BYTES = 512 * 1024
# Bytes per trip to a thread: one download must not keep the thread from others.
SENT_IN_A_TURN_BYTES = 32 << 20
FILE_HEADERS = ("ETag", "Last-Modified", "Accept-Ranges", "Content-Range", "Content-Disposition")
"""The headers of a reply with a file."""
# uvloop writes at the end of a turn; a second turn serves the bytes that did not fit.
FLUSH_TURNS = 4


async def send_packed(
    request: web.Request, read: Callable[[], Awaitable[bytes]], name: str, content_type: str
) -> web.StreamResponse:
    """Send an archive, or a file that is made while being sent. ``read``: returns the next bytes,
    none at the end. An error in the middle cuts the connection."""
    # Before the first header: an error in the first read can still be a proper reply.
    data = await read() if request.method == "GET" else b""
    response = web.StreamResponse(headers={"Content-Disposition": content_disposition(name)})
    response.content_type = content_type
    await response.prepare(request)
    with abort_when_stalled(request):
        while data:
            await response.write(data)
            data = await read()
        await response.write_eof()
    return response


async def send_file(
    request: web.Request,
    file: OpenedFile,
    content_type: str = "application/octet-stream",
    more_headers: Mapping[str, str] = {},  # never changed
) -> web.StreamResponse:
    """Answer GET or HEAD with ``file``: 200, 206 or 304, in constant memory.

    Raises RangeNotSatisfiable before the headers are sent. Raises Conflict in the middle of the
    body if the file became shorter: the caller must then cut the connection, since a cut is the
    only sign left for the peer.
    """
    headers = {
        "ETag": file.etag,
        "Last-Modified": http_date(file.modified_at),
        "Accept-Ranges": "bytes",
        **more_headers,
    }
    if is_not_modified(request.headers, file.etag, file.modified_at):
        return web.Response(status=304, headers=headers)
    headers["Content-Disposition"] = content_disposition(file.name)
    start, stop, http_status = 0, file.size_bytes, 200
    # RFC 9110 §14.2: a Range has a meaning with GET only.
    if request.method == "GET" and range_applies(
        request.headers, file.etag, headers["Last-Modified"]
    ):
        part = parse_range(request.headers.get("Range", ""), file.size_bytes)
        if part is not None:
            (start, stop), http_status = part, 206
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size_bytes}"
    assert 0 <= start <= stop <= file.size_bytes
    response = web.StreamResponse(status=http_status, headers=headers)
    response.content_type = content_type
    response.content_length = stop - start
    await response.prepare(request)
    if request.method == "GET":
        with abort_when_stalled(request):
            if stop - start >= SENDFILE_FROM_BYTES:
                start = await _sendfile(request, file, start, stop)
            while start < stop:
                data = await file.read(start, min(CHUNK_BYTES, stop - start))
                if not data:
                    raise Conflict(
                        f"{file.name!r} became shorter while it was being sent; repeat the request"
                    )
                await response.write(data)
                start += len(data)
    await response.write_eof()
    return response


async def _sendfile(request: web.Request, file: OpenedFile, start: int, stop: int) -> int:
    """Send [start, stop) with sendfile(2), past the transport. Return the offset reached: ``stop``,
    or ``start`` if sendfile cannot be used.

    uvloop has no sendfile. Natively sendfile is 1.6 times as fast as read and write, for 0.4 times
    the CPU time; in gVisor as fast. The transport's buffer must be empty, or the headers would
    follow the body. There is no TLS.
    """
    transport = request.transport
    socket = None if transport is None else transport.get_extra_info("socket")
    if transport is None or socket is None:
        return start
    for _ in range(FLUSH_TURNS):
        if not transport.get_write_buffer_size():
            break
        await asyncio.sleep(0)
    else:
        return start  # the peer takes not even the headers in time
    while start < stop and not transport.is_closing():
        n_sent, is_full = await file.send(
            socket.fileno(), start, min(SENT_IN_A_TURN_BYTES, stop - start)
        )
        start += n_sent
        request.writer.output_size += n_sent
        if is_full:
            await file.wait_until_sendable()
        elif not n_sent:
            raise Conflict(
                f"{file.name!r} became shorter while it was being sent; repeat the request"
            )
    return start


def is_not_modified(headers: MultiMapping[str], etag: str, modified_at: float) -> bool:
    """Return whether If-None-Match names ``etag``, by weak comparison. Without If-None-Match:
    whether If-Modified-Since is as late as the file."""
    tags = headers.getall("If-None-Match", None)
    if tags is None:
        return not is_modified_since(headers.get("If-Modified-Since"), modified_at, default=True)
    wanted = ",".join(tags)
    return wanted.strip() == "*" or etag in re.findall(r'"[^"]*"', wanted)


def range_applies(headers: MultiMapping[str], etag: str, last_modified: str) -> bool:
    """Return whether If-Range is absent or is the current validator. Only a strong validator
    matches."""
    return headers.get("If-Range", etag).strip() in (etag, last_modified)


def parse_range(header: str, size_bytes: int) -> tuple[int, int] | None:
    """Return start and stop of the requested range, or None if the whole file is to be sent.

    The whole file is sent without a range, for several ranges (RFC 9110 §14.2 allows the whole; no
    known client wants multipart/byteranges), and for a header that is no byte range. Raises
    RangeNotSatisfiable, with the file's size in its details, for an empty range.
    """
    match = re.fullmatch(
        r"\s*bytes\s*=\s*([0-9]{0,20})\s*-\s*([0-9]{0,20})\s*", header, re.ASCII | re.IGNORECASE
    )
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        start, stop = max(0, size_bytes - int(match[2])), size_bytes
    else:
        start, stop = int(match[1]), min(int(match[2] or size_bytes) + 1, size_bytes)
        if match[2] and int(match[2]) < start:
            return None
    if start >= size_bytes:
        raise RangeNotSatisfiable(f"Range: the file has {size_bytes} bytes", size_bytes=size_bytes)
    assert 0 <= start < stop <= size_bytes
    return start, stop


def http_date(seconds: float) -> str:
    # The format has four digits for the year, and no dates before the year 1.
    return formatdate(min(max(seconds, 0), 253_402_300_799), usegmt=True)


def content_disposition(name: str) -> str:
    """Return a Content-Disposition under which clients save the body as ``name``, for any name."""
    if re.fullmatch(r"[\w !#$&'()+,.;=@\[\]^`{}~-]+", name, re.ASCII):
        return f'attachment; filename="{name}"'
    fallback = re.sub(r'[^ -~]|["\\%]', "_", replace_surrogates(name))
    encoded = quote(name.encode("utf-8", "surrogateescape"), safe="")
    return f"attachment; filename=\"{fallback}\"; filename*=UTF-8''{encoded}"


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
        with abort_when_stalled(request):
            await response.write(head + (data or b""))
            while (data := await listing.read(render)) is not None:
                await response.write(b"," + data)
            await response.write(tail)
    await response.write_eof()
    return response
