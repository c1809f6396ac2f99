"""Directories as archives, both ways, below the base dir.

    GET /v1/archive/{path}?format=tar|tar.gz|zip[&skip_unreadable=true]
    PUT /v1/archive/{path}[?format=tar|tar.gz|zip]

Names in the archive are relative to {path}. A download is packed while being sent: an error in the
middle cuts the connection. An upload appears in its place after the whole archive has arrived and
passed all checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from execd.api.v1.file_reply import UnpackReply
from execd.api.wire import validators
from execd.api.wire.body import upload_chunks
from execd.api.wire.downloads import send_packed
from execd.api.wire.fields import parse_query
from execd.api.wire.keys import ENGINE
from execd.api.wire.replies import json_reply
from execd.api.wire.route import BYTES, PATH, RouteTable
from execd.api.wire.targets import path_below, query_of
from execd.errors import Conflict, NoSpace, NotFound, ReadOnly, ResourceExhausted
from execd.model import ArchiveFormat  # noqa: TC001  # msgspec reads the annotations at run time

if TYPE_CHECKING:
    from aiohttp import web

    from execd.engine.files.service import Files

ROUTE = "/v1/archive"
ROUTES = RouteTable()
CONTENT_TYPES: dict[ArchiveFormat, str] = {
    "tar": "application/x-tar",
    "tar.gz": "application/gzip",
    "zip": "application/zip",
}


class PackQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: ArchiveFormat = "tar"
    """The format of the archive."""
    skip_unreadable: bool = False
    """Leave out files that the daemon may not read, instead of failing."""


class UnpackQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: ArchiveFormat | None = None
    """The format of the archive. Absent: the format that the first bytes show, or tar."""


def _files(request: web.Request) -> Files:
    return request.app[ENGINE].sandboxd_files


@ROUTES.add(
    "GET",
    {"pack_base_dir": ROUTE, "pack_directory": ROUTE + PATH},
    query=PackQuery,
    replies={200: tuple(CONTENT_TYPES.values())},
    reply_headers=("Content-Disposition",),
    errors=(NotFound, Conflict, ResourceExhausted),
)
async def download(request: web.Request) -> web.StreamResponse:
    """Read a directory as an archive."""
    query = parse_query(query_of(request.raw_path), PackQuery)
    path = path_below(request.raw_path, ROUTE)
    async with await _files(request).pack(
        path, query.format, skips_unreadable=query.skip_unreadable
    ) as archive:
        name = f"{archive.name}.{query.format}"
        return await send_packed(request, archive.read, name, CONTENT_TYPES[query.format])


@ROUTES.add(
    "PUT",
    {"unpack_base_dir": ROUTE, "unpack_directory": ROUTE + PATH},
    query=UnpackQuery,
    headers=("Repr-Digest", "Content-Digest"),
    body=(*CONTENT_TYPES.values(), BYTES),
    replies={200: (UnpackReply,)},
    errors=(NotFound, Conflict, ResourceExhausted, NoSpace, ReadOnly),
)
async def upload(request: web.Request) -> web.StreamResponse:
    """Unpack an archive into a directory."""
    query = parse_query(query_of(request.raw_path), UnpackQuery)
    sha256 = validators.body_sha256(request.headers)
    path = path_below(request.raw_path, ROUTE)
    async with await _files(request).unpack(
        path, query.format, sha256=sha256, size_bytes=request.content_length
    ) as archive:
        async for chunk in upload_chunks(request):
            await archive.write(chunk)
        done = await archive.commit()
    return json_reply(
        UnpackReply(
            files=done.n_files,
            directories=done.n_directories,
            links=done.n_links,
            bytes=done.n_bytes,
        )
    )
