"""``/files`` of envd: uploads and downloads with paths as user code sees them, and the join of
uploaded parts.

An upload is written beside the target and renamed at its end, so no reader sees half a file. The
headers ``X-Metadata-KEY`` become extended attributes of the new file.
"""

from __future__ import annotations

import mimetypes
import posixpath
import zlib
from typing import TYPE_CHECKING, Any

import msgspec

from execd.api.wire_api import (
    BYTES,
    CHUNK_BYTES,
    ENGINE,
    FILE_HEADERS,
    FORM,
    Route,
    json_reply,
    multipart,
    parse_json,
    query_of,
    read_body,
    replace_surrogates,
    send_file,
    upload_chunks,
)
from execd.engine.engine_api import (
    InvalidArgument,
    NoSpace,
    NotFound,
    OpenedFile,
    RangeNotSatisfiable,
    ResourceExhausted,
)
from execd_e2b.entries import METADATA_PREFIX
from execd_e2b.sandbox import SANDBOX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web

    from execd.engine.engine_api import Upload
    from execd_e2b.sandbox import Sandbox

INFLATED_BYTES = 256 * 1024
"""Bytes of an uncompressed piece: a gzip of zeros grows a thousandfold."""
TYPES = mimetypes.MimeTypes()
METADATA_HEADER = "x-metadata-"
METADATA_BYTES = 4096
"""All keys and values of an upload together, as in envd."""
METADATA_KEY_BYTES = 255 - len(METADATA_PREFIX)
"""Linux allows 255 bytes in the name of an extended attribute (XATTR_NAME_MAX)."""


class ComposeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``/files/compose``."""

    source_paths: list[str]
    """In the order of the content."""
    destination: str
    username: str | None = None


COMPOSE = msgspec.json.Decoder(ComposeRequest)


async def download(request: web.Request) -> web.StreamResponse:
    query = query_of(request.raw_path)
    sandbox = request.app[SANDBOX]
    path = await sandbox.path_of(query.get("path", ""), query.get("username"))
    found = await sandbox.engine.tree_files.open_or_describe(path)
    if not isinstance(found, OpenedFile):
        kind = found.kind.replace("_", " ")
        raise InvalidArgument(f"path {path!r} is a {kind}, not a regular file", field="path")
    async with found as file:
        headers = {"X-Content-Type-Options": "nosniff"}
        return await send_file(request, file, _content_type(file.name), headers)


def _content_type(name: str) -> str:
    guessed, encoding = TYPES.guess_type(name.replace(":", "_"))  # ":" would begin a URL, "data:x"
    return guessed if guessed and not encoding else BYTES


async def upload(request: web.Request) -> web.StreamResponse:
    query = query_of(request.raw_path)
    user = query.get("username")
    content_type = request.headers.get("Content-Type", "")
    boundary = multipart.boundary(content_type)
    if boundary is not None:
        form = _Form(request.app[SANDBOX], query.get("path"), user, read_metadata(request))
        return json_reply(await form.receive(request, multipart.MultipartDecoder(boundary)))
    if content_type.partition(";")[0].strip().lower() != BYTES:
        raise InvalidArgument(
            f"Content-Type: {content_type[:64]!r} is neither multipart/form-data nor {BYTES}",
            field="Content-Type",
        )
    if not query.get("path"):
        raise InvalidArgument("path: required in the query of a raw body", field="path")
    sandbox = request.app[SANDBOX]
    path = await sandbox.path_of(query["path"], user)
    metadata = read_metadata(request)
    is_plain = _coding(request) == "identity"
    size_bytes = request.content_length if is_plain else None
    async with await sandbox.engine.tree_files.create(
        path, size_bytes=size_bytes, attributes=attributes_of(metadata)
    ) as written:
        async for chunk in _decoded_chunks(request):
            await written.write(chunk)
        await written.commit()
    return json_reply([_written(path, metadata if written.has_attributes else {})])


class _Form:
    """The files of a multipart body. Each file is in its place when its part has ended; parts
    before a broken part stay."""

    def __init__(
        self, sandbox: Sandbox, path: str | None, user: str | None, metadata: dict[str, str]
    ) -> None:
        """``path``: the target of a single file; None: the filename of each part. ``metadata``: of
        every file."""
        self._sandbox = sandbox
        self._path = path
        self._user = user
        self._metadata = metadata
        self._written: dict[str, dict[str, str]] = {}
        """The metadata that each file has, by path."""

    async def receive(
        self, request: web.Request, decoder: multipart.MultipartDecoder
    ) -> list[dict[str, Any]]:
        current: Upload | None = None
        try:
            async for event in _form_events(request, decoder):
                match event:
                    case multipart.Part(name="file"):
                        current = await self._begin(event.filename)
                    case bytes() if current is not None:
                        await current.write(event)
                    case multipart.PartEnd() if current is not None:
                        await current.commit()
                        await current.__aexit__()
                        current = None
        finally:
            if current is not None:
                await current.__aexit__()
        if not decoder.is_complete:
            raise InvalidArgument("the multipart body ends before its closing boundary")
        if not self._written:
            raise InvalidArgument('the multipart body has no part called "file"')
        return [_written(path, metadata) for path, metadata in self._written.items()]

    async def _begin(self, filename: str | None) -> Upload:
        """Begin the file of a part; the caller ends the upload. Raises InvalidArgument."""
        name = self._path or filename
        if not name:
            raise InvalidArgument("file: has no filename, and the query has no path", field="file")
        path = await self._sandbox.path_of(name, self._user)
        if path in self._written:
            raise InvalidArgument(
                f"file: a second file for {path!r} in one upload; only the first was written"
            )
        started = await self._sandbox.engine.tree_files.create(
            path, attributes=attributes_of(self._metadata)
        )
        self._written[path] = self._metadata if started.has_attributes else {}
        return started


def _written(path: str, metadata: dict[str, str]) -> dict[str, Any]:
    shown = replace_surrogates(path)
    entry = {"path": shown, "name": posixpath.basename(shown), "type": "file"}
    return entry | ({"metadata": metadata} if metadata else {})


def read_metadata(request: web.Request) -> dict[str, str]:
    """Return the metadata of an upload by key, in lower case as in envd. Raises InvalidArgument.

    Of two headers for a key the first counts.
    """
    found: dict[str, str] = {}
    for header, value in request.headers.items():
        key = header.lower()
        if not key.startswith(METADATA_HEADER):
            continue
        key = key.removeprefix(METADATA_HEADER)
        if not 0 < len(key) <= METADATA_KEY_BYTES:
            raise InvalidArgument(
                f"{header[:64]}: the key must have 1 to {METADATA_KEY_BYTES} bytes", field=header
            )
        if not (value.isascii() and value.isprintable()):
            raise InvalidArgument(f"{header[:64]}: only printable ASCII is allowed", field=header)
        found.setdefault(key, value)
    n_bytes = sum(len(key) + len(value) for key, value in found.items())
    if n_bytes > METADATA_BYTES:
        raise InvalidArgument(
            f"X-Metadata-: {n_bytes} bytes in all keys and values; at most {METADATA_BYTES}"
        )
    return found


def attributes_of(metadata: dict[str, str]) -> dict[str, bytes]:
    return {METADATA_PREFIX + key: value.encode() for key, value in metadata.items()}


async def _form_events(
    request: web.Request, decoder: multipart.MultipartDecoder
) -> AsyncIterator[multipart.Event]:
    async for chunk in _decoded_chunks(request):
        for event in decoder.feed(chunk):
            yield event
        while decoder.is_behind:
            for event in decoder.feed(b""):
                yield event


def _coding(request: web.Request) -> str:
    return request.headers.get("Content-Encoding", "").strip().lower() or "identity"


async def _decoded_chunks(request: web.Request) -> AsyncIterator[bytes]:
    """Yield the body without its gzip. Raises InvalidArgument."""
    coding = _coding(request)
    if coding not in ("identity", "gzip"):
        raise InvalidArgument(
            f"Content-Encoding: {coding[:32]!r} is neither gzip nor identity",
            field="Content-Encoding",
        )
    if coding == "identity":
        async for chunk in upload_chunks(request):
            yield chunk
        return
    inflate = zlib.decompressobj(wbits=31)  # gzip only
    try:
        async for chunk in upload_chunks(request):
            rest = chunk
            while rest:
                if inflate.eof:  # another member: RFC 1952 §2.2
                    inflate = zlib.decompressobj(wbits=31)
                yield inflate.decompress(rest, INFLATED_BYTES)
                rest = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
        while not inflate.eof and (data := inflate.decompress(b"", INFLATED_BYTES)):
            yield data
    except zlib.error as error:
        raise InvalidArgument(f"body: not gzip: {error}", field="body") from None
    if not inflate.eof:
        raise InvalidArgument("body: the gzip stream ends too early", field="body")


async def compose(request: web.Request) -> web.StreamResponse:
    asked = parse_json(await read_body(request), COMPOSE)
    sandbox, files = request.app[SANDBOX], request.app[ENGINE].tree_files
    if not asked.source_paths:
        raise InvalidArgument("source_paths: empty; name the files to join", field="source_paths")
    if not asked.destination:
        raise InvalidArgument("destination: required", field="destination")
    target = await sandbox.path_of(asked.destination, asked.username)
    sources = [await sandbox.path_of(path, asked.username) for path in asked.source_paths]
    if target in sources:
        raise InvalidArgument(
            f"source_paths: {target!r} is the destination too", field="source_paths"
        )
    async with await files.create(target) as joined:
        for source in sources:
            async with await files.open(source) as file:
                await _append(joined, file)
        await joined.commit()
    for source in dict.fromkeys(sources):
        try:
            await files.remove(source)
        except NotFound:
            pass  # user code was faster
    return json_reply(_written(target, {}))


async def _append(joined: Upload, file: OpenedFile) -> None:
    offset = 0
    while data := await file.read(offset, CHUNK_BYTES):
        await joined.write(data)
        offset += len(data)


ROUTES = (
    Route(
        method="GET",
        path="/files",
        handler=download,
        name="download_file",
        summary="Read a file",
        headers=("Range", "If-Range", "If-None-Match", "If-Modified-Since"),
        replies={200: ("*/*",), 206: ("*/*",), 304: ()},
        reply_headers=FILE_HEADERS,
        errors=(NotFound, RangeNotSatisfiable, ResourceExhausted),
    ),
    Route(
        method="POST",
        path="/files",
        handler=upload,
        name="upload_files",
        summary="Write files",
        body=(FORM, BYTES),
        replies={200: (list[dict[str, Any]],)},
        errors=(NoSpace, ResourceExhausted),
    ),
    Route(
        method="POST",
        path="/files/compose",
        handler=compose,
        name="compose_files",
        summary="Join files into one, and remove the parts",
        body=(ComposeRequest,),
        replies={200: (dict[str, str],)},
        errors=(NotFound, NoSpace, ResourceExhausted),
    ),
)
