"""Upload and download.

An upload is a form with pairs of parts: ``metadata``, a JSON object with the path, the owner and
the mode, then ``file`` with the content. Each file takes its place in one step when its part is
complete. A download is the file, with ranges; with ``offset`` (from 1) or ``limit`` it is lines of
text.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from execd.api.wire_api import ENGINE, form_events, multipart, parse_json, query_of, send_file
from execd.engine.engine_api import InvalidArgument, OpenedFile, read_lines
from execd_opensandbox.file_info import Permission, change_owner
from execd_opensandbox.requests import expanded, int_query, required_query

if TYPE_CHECKING:
    from execd.engine.engine_api import Engine, Upload

MAX_METADATA_BYTES = 64 * 1024
"""A path of 4,096 bytes, escaped, and the rest."""


class UploadMetadata(Permission, frozen=True, kw_only=True):
    """The place and the owner of an uploaded file."""

    path: str


METADATA = msgspec.json.Decoder(UploadMetadata)


async def upload(request: web.Request) -> web.StreamResponse:
    boundary = multipart.boundary(request.headers.get("Content-Type", ""))
    if boundary is None:
        raise _invalid("Content-Type: must be multipart/form-data")
    form = _UploadForm(request.app[ENGINE])
    decoder = multipart.MultipartDecoder(boundary)
    try:
        async for event in form_events(request, decoder):
            match event:
                case bytes():
                    await form.take(event)
                case multipart.Part(name="metadata"):
                    form.begin_metadata()
                case multipart.Part(name="file"):
                    await form.begin_file()
                case multipart.PartEnd():
                    await form.end_part()
        if not decoder.is_complete:
            raise _invalid("the form ends before its closing boundary")
        form.end()
    finally:
        await form.close()
    return web.Response()


class _UploadForm:
    """The state of one upload. End with ``close``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._metadata: bytearray | None = None
        self._waiting: deque[UploadMetadata] = deque()
        """Metadata whose files have not come."""
        self._upload: Upload | None = None
        self._target: UploadMetadata | None = None
        self._n_files = 0

    def begin_metadata(self) -> None:
        self._metadata = bytearray()

    async def begin_file(self) -> None:
        """Raises InvalidArgument, and the errors of ``Files.create``."""
        if not self._waiting:
            raise _invalid("metadata: each part called file needs a part called metadata before it")
        self._target = self._waiting.popleft()
        self._upload = await self._engine.tree_files.create(
            expanded(self._engine, self._target.path), mode=self._target.bits
        )

    async def take(self, data: bytes) -> None:
        if self._metadata is not None:
            self._metadata += data
            if len(self._metadata) > MAX_METADATA_BYTES:
                raise _invalid(f"metadata: over {MAX_METADATA_BYTES} bytes")
        elif self._upload is not None:
            await self._upload.write(data)

    async def end_part(self) -> None:
        """Raises InvalidArgument, and the errors of ``Upload.commit``."""
        if self._metadata is not None:
            try:
                parsed = parse_json(bytes(self._metadata), METADATA, "metadata")
            except InvalidArgument as error:
                raise _invalid(error.message) from None
            self._waiting.append(parsed)
            self._metadata = None
        elif self._upload is not None:
            assert self._target is not None
            await self._upload.commit()
            await self.close()
            path = expanded(self._engine, self._target.path)
            await change_owner(self._engine, path, self._target)
            self._n_files += 1

    def end(self) -> None:
        """The form is complete. Raises InvalidArgument."""
        if self._waiting:
            raise _invalid("file: each part called metadata needs a part called file behind it")
        if not self._n_files:
            raise _invalid("metadata: the form has no part of this name")

    async def close(self) -> None:
        """End the file that is being written. Idempotent."""
        upload, self._upload = self._upload, None
        if upload is not None:
            await upload.__aexit__()


def _invalid(message: str) -> InvalidArgument:
    return InvalidArgument(message, opensandbox_code="INVALID_FILE_METADATA")


async def download(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    path = expanded(engine, required_query(request, "path"))
    query = query_of(request.raw_path)
    are_lines = "offset" in query or "limit" in query
    if are_lines and "Range" in request.headers:
        raise InvalidArgument("Range: does not go with offset and limit", field="Range")
    found = await engine.tree_files.open_or_describe(path)
    if not isinstance(found, OpenedFile):
        raise InvalidArgument(f"path: {path!r} is a {found.kind}, not a regular file", field="path")
    async with found as file:
        if not are_lines:
            return await send_file(request, file)
        first, count = int_query(request, "offset", 1), int_query(request, "limit", 0)
        text = await read_lines(file, max(1, first), count or None)
        return web.Response(body=text, content_type="text/plain", charset="utf-8")
