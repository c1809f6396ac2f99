"""Directories as archives, both ways, below the base dir.

    GET /v1/archive/{path}?format=tar|tar.gz|zip[&skip_unreadable=true]
    PUT /v1/archive/{path}?format=tar|tar.gz|zip

Names in the archive are relative to {path}. A download is packed while being sent: an error in the
middle cuts the connection. An upload appears in its place after the whole archive has arrived and
passed all checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from execd.api.wire import validators
from execd.api.wire.body import upload_chunks
from execd.api.wire.downloads import content_disposition
from execd.api.wire.fields import parse_query
from execd.api.wire.keys import ENGINE
from execd.api.wire.replies import json_reply
from execd.api.wire.streams import abort_when_stalled
from execd.api.wire.targets import path_below, query_of
from execd.model import ArchiveFormat  # noqa: TC001  # msgspec reads the annotations at run time

if TYPE_CHECKING:
    from execd.engine.files.service import Files

ROUTE = "/v1/archive"
CONTENT_TYPES: dict[ArchiveFormat, str] = {
    "tar": "application/x-tar",
    "tar.gz": "application/gzip",
    "zip": "application/zip",
}
FORMATS = {content_type: kind for kind, content_type in CONTENT_TYPES.items()}


class PackQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: ArchiveFormat = "tar"
    skip_unreadable: bool = False
    """Leave out files that the daemon may not read, instead of failing."""


class UnpackQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: ArchiveFormat | None = None
    """None: the format of the Content-Type, or tar."""


def routes() -> list[web.RouteDef]:
    table: list[web.RouteDef] = []
    for path in (ROUTE, ROUTE + "/{path:(?s:.*)}"):
        table += [web.get(path, download), web.put(path, upload)]
    return table


def _files(request: web.Request) -> Files:
    return request.app[ENGINE].sandboxd_files


async def download(request: web.Request) -> web.StreamResponse:
    query = parse_query(query_of(request.raw_path), PackQuery)
    path = path_below(request.raw_path, ROUTE)
    async with await _files(request).pack(
        path, query.format, skips_unreadable=query.skip_unreadable
    ) as archive:
        # Before the first header: an error in the first read can still be a proper reply.
        data = await archive.read() if request.method == "GET" else b""
        response = web.StreamResponse(
            headers={"Content-Disposition": content_disposition(f"{archive.name}.{query.format}")}
        )
        response.content_type = CONTENT_TYPES[query.format]
        await response.prepare(request)
        with abort_when_stalled(request, request.app[ENGINE].config.stream_stall_seconds):
            while data:
                await response.write(data)
                data = await archive.read()
            await response.write_eof()
    return response


async def upload(request: web.Request) -> web.StreamResponse:
    query = parse_query(query_of(request.raw_path), UnpackQuery)
    kind = query.format or FORMATS.get(request.content_type, "tar")
    sha256 = validators.body_sha256(request.headers)
    path = path_below(request.raw_path, ROUTE)
    async with await _files(request).unpack(
        path, kind, sha256=sha256, size_bytes=request.content_length
    ) as archive:
        async for chunk in upload_chunks(request):
            await archive.write(chunk)
        done = await archive.commit()
    return json_reply(
        {
            "files": done.n_files,
            "directories": done.n_directories,
            "links": done.n_links,
            "bytes": done.n_bytes,
        }
    )
