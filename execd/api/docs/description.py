"""GET /openapi.json: the OpenAPI document of all routes of this application."""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from aiohttp import web

from execd.api.wire.downloads import is_not_modified
from execd.api.wire.keys import ENGINE, TABLE
from execd.api.wire.route import Access, Route

if TYPE_CHECKING:
    from collections.abc import Sequence


class Encoded(NamedTuple):
    """A document, as sent."""

    body: bytes
    etag: str


def routes() -> list[Route]:
    return [
        Route(
            method="GET",
            path="/openapi.json",
            handler=openapi,
            name="get_openapi",
            summary="The OpenAPI document of all routes of this port",
            headers=("If-None-Match",),
            replies={200: (dict[str, Any],), 304: ()},
            reply_headers=("ETag",),
            access=Access.OPEN,
        ),
    ]


async def openapi(request: web.Request) -> web.Response:
    table = request.app[TABLE]
    # In a thread: the first time takes some 50 ms.
    found = await request.app[ENGINE].tree_files.run(lambda: encoded(table))
    headers = {"ETag": found.etag, "Cache-Control": "no-cache"}
    if "If-None-Match" in request.headers and is_not_modified(request.headers, found.etag, 0):
        return web.Response(status=304, headers=headers)
    return web.Response(body=found.body, headers=headers, content_type="application/json")


@functools.lru_cache(maxsize=1)
def encoded(table: Sequence[Route]) -> Encoded:
    """Return the document of a table, made once."""
    # Imported at the first request: most pods never get one.
    from execd.api.docs.openapi import document

    body = msgspec.json.encode(document(table))
    return Encoded(body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
