"""``GET /openapi.json``, and ``GET /docs``: Swagger UI, which shows the document. Read-only,
without internet. The document is the same in every pod, so ``tools/openapi`` writes a file.

All URLs of the page are relative: so the page works below any path prefix of a router. ``/docs/``
has the same page with other URLs, since no route redirects, and the policy forbids a ``<base>``.

The files are in the package. Nothing is read before the first request. From then on the files stay
in memory, half a megabyte in all, because a slow reader then holds no copy of its own. Swagger UI
and the document are stored compressed, and are decompressed for a reader who does not accept gzip.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import web

from execd.api.wire.downloads import is_not_modified
from execd.api.wire.route import Access, Route
from execd.api.wire.streams import abort_when_stalled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiohttp.typedefs import Handler
    from multidict import MultiMapping

    from execd.api.wire.route import Content

FOLDER = Path(__file__).parent
PIECE_BYTES = 16 * 1024  # at most 210 KB when decompressed

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",  # UTF-8 by RFC 8259 §8.1
}

COMPRESSED = {
    "openapi.json": "openapi.json.gz",
    "swagger-ui.css": "swagger_ui/swagger-ui.css.gz",
    "swagger-ui-bundle.js": "swagger_ui/swagger-ui-bundle.js.gz",
}

HEADERS = {
    # Swagger UI's style sheet holds its icons as data: URLs.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # A browser asks each time, since the next execd at this address may be another version. The
    # answer is 304 as a rule.
    "Cache-Control": "no-cache",
}


class StoredFile(NamedTuple):
    """A file of the page, as stored: compressed or not."""

    content: bytes
    sha256: str
    is_compressed: bool

    def size_bytes(self, *, is_decompressed: bool) -> int:
        # RFC 1952: the last four bytes are the size before the compression.
        return int.from_bytes(self.content[-4:], "little") if is_decompressed else len(self.content)

    def pieces(self, *, is_decompressed: bool) -> Iterator[bytes | memoryview]:
        view = memoryview(self.content)
        pieces = (view[start : start + PIECE_BYTES] for start in range(0, len(view), PIECE_BYTES))
        if not is_decompressed:
            yield from pieces
            return
        decompressor = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # 16: the format of gzip
        for piece in pieces:
            yield decompressor.decompress(piece)
        assert decompressor.eof


@functools.cache
def read_stored(file: str) -> StoredFile:
    """Read a file of the page from the package; no name: the page for ``/docs/``. Blocks."""
    if not file:
        content = read_stored("index.html").content.replace(b'"docs/', b'"')
        return StoredFile(content, hashlib.sha256(content).hexdigest(), is_compressed=False)
    is_compressed = file in COMPRESSED
    path = FOLDER / COMPRESSED[file] if is_compressed else FOLDER / "page" / file
    content = path.read_bytes()
    return StoredFile(content, hashlib.sha256(content).hexdigest(), is_compressed)


def accepts_gzip(headers: MultiMapping[str]) -> bool:
    """Return whether Accept-Encoding names gzip, with a weight above 0 (RFC 9110 §12.5.3)."""
    for member in ",".join(headers.getall("Accept-Encoding", ())).lower().split(","):
        name, *parameters = (part.strip() for part in member.split(";"))
        if name in ("gzip", "x-gzip"):
            return not any(re.fullmatch(r"q\s*=\s*0(\.0*)?", parameter) for parameter in parameters)
    return False


def sender(file: str, media_type: str) -> Handler:
    """Return the handler of a file of the page."""

    async def send(request: web.Request) -> web.StreamResponse:
        stored = await asyncio.to_thread(read_stored, file)
        is_decompressed = stored.is_compressed and not accepts_gzip(request.headers)
        # The bytes differ, and so do their tags.
        etag = f'"{stored.sha256}-identity"' if is_decompressed else f'"{stored.sha256}"'
        headers = {**HEADERS, "ETag": etag}
        if stored.is_compressed:
            headers["Vary"] = "Accept-Encoding"
        if "If-None-Match" in request.headers and is_not_modified(request.headers, etag, 0):
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = media_type
        if stored.is_compressed and not is_decompressed:
            headers["Content-Encoding"] = "gzip"
        response = web.StreamResponse(headers=headers)
        response.content_length = stored.size_bytes(is_decompressed=is_decompressed)
        await response.prepare(request)
        if request.method == "GET":
            with abort_when_stalled(request):
                for piece in stored.pieces(is_decompressed=is_decompressed):
                    await response.write(piece)
        await response.write_eof()
        return response

    return send


def _file(
    file: str, name: str, summary: str, path: str = "", content: Content | None = None
) -> Route:
    media_type = MEDIA_TYPES[file.rpartition(".")[2] or "html"]
    return Route(
        method="GET",
        path=path or f"/docs/{file}",
        handler=sender(file, media_type),
        name=name,
        summary=summary,
        headers=("Accept-Encoding", "If-None-Match"),
        replies={200: (content or media_type.partition(";")[0],), 304: ()},
        reply_headers=("ETag",),
        access=Access.OPEN,
    )


ROUTES = (
    _file(
        "openapi.json",
        "get_openapi",
        "The OpenAPI document of all routes of this port",
        path="/openapi.json",
        content=dict[str, Any],
    ),
    _file("index.html", "get_docs", "This reference, as a page", path="/docs"),
    _file("", "get_docs_with_slash", "This reference, as a page"),
    _file("viewer.js", "get_docs_settings", "A file of the page: the settings"),
    _file("swagger-ui.css", "get_docs_styles", "A file of the page: the styles"),
    _file("swagger-ui-bundle.js", "get_docs_viewer", "A file of the page: the viewer"),
)
