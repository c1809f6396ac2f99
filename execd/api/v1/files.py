"""Files by path: the REST half of sandboxd, and the same with paths as user code sees them.

    GET HEAD PUT DELETE  /v1/files/{path}        below the base dir; a leading slash is ignored;
                                                 an absolute path below the base dir is accepted
    GET HEAD PUT DELETE  /v1/fs/file?path=       the whole tree; relative paths begin at the base
                                                 dir

Clients of sandboxd use the first route, so the shapes are exactly sandboxd's: the listing, the
message for a directory that is not empty, 204 without a body. Everything beyond sandboxd needs a
header (conditions, digests, ranges) or a query parameter.
"""

from __future__ import annotations

import mimetypes
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from urllib.parse import quote

import msgspec
from aiohttp import web
from msgspec import Meta

from execd.api.wire import multipart, validators
from execd.api.wire.body import form_events, upload_chunks
from execd.api.wire.downloads import send_file
from execd.api.wire.fields import parse_query
from execd.api.wire.keys import ENGINE
from execd.api.wire.listings import send_listing
from execd.api.wire.replies import replace_surrogates
from execd.api.wire.targets import path_below, query_of, raw_path_of
from execd.engine.files.transfers import OpenedFile
from execd.errors import InvalidArgument, PreconditionFailed
from execd.model import Precondition

if TYPE_CHECKING:
    from execd.engine.files.service import Entry, Files
    from execd.engine.files.transfers import Upload

SANDBOXD_ROUTE = "/v1/files"
TREE_ROUTE = "/v1/fs/file"

# The values of strconv.ParseBool, and an empty one.
TRUE = ("1", "t", "T", "TRUE", "true", "True")
GoBool = Literal[
    "1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False", ""
]
Mode = Annotated[str, Meta(pattern=r"^(0[0-7]{3})?\Z")]
"""Octal, four digits. An empty value equals an absent value."""
Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]

# Without the machine's tables: the type of a name must not depend on the image.
TYPES = mimetypes.MimeTypes()

T = TypeVar("T")


class GetQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    content_type: Literal["", "auto"] = ""
    """"auto": the type by the file's name, instead of application/octet-stream."""


class PutQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mode: Mode = ""
    append: bool = False
    offset: Offset | None = None


class DeleteQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    recursive: GoBool = ""


def routes() -> list[web.RouteDef]:
    table: list[web.RouteDef] = []
    # "s": a name may contain a newline.
    for path in (SANDBOXD_ROUTE, SANDBOXD_ROUTE + "/{path:(?s:.*)}", TREE_ROUTE):
        table += [web.get(path, get), web.put(path, put), web.delete(path, delete)]
    return table


def _parse_target(request: web.Request, kind: type[T]) -> tuple[Files, str, T]:
    """Return the files, the path in them, and the rest of the query. Raises InvalidArgument."""
    engine, query = request.app[ENGINE], query_of(request.raw_path)
    if raw_path_of(request.raw_path) != TREE_ROUTE:
        return (
            engine.sandboxd_files,
            path_below(request.raw_path, SANDBOXD_ROUTE),
            parse_query(query, kind),
        )
    paths = query.popall("path", [])
    if len(paths) != 1:
        raise InvalidArgument("path: required, once", field="path")
    return engine.tree_files, paths[0], parse_query(query, kind)


# --- read


async def get(request: web.Request) -> web.StreamResponse:
    files, path, query = _parse_target(request, GetQuery)
    found = await files.open_or_describe(path)
    if isinstance(found, OpenedFile):
        async with found as file:
            Precondition(match=validators.parse_precondition(request.headers).match).check(
                file.etag, repr(path)
            )
            since = (
                None
                if "If-Match" in request.headers
                else request.headers.get("If-Unmodified-Since")
            )
            if validators.is_modified_since(since, file.modified_at, default=False):
                raise PreconditionFailed(
                    f"{path!r}: is later than If-Unmodified-Since", etag=file.etag
                )
            headers = {"X-Content-Type-Options": "nosniff"}
            if validators.wants_sha256(request.headers):
                headers["Repr-Digest"] = validators.format_repr_digest(await file.sha256())
            return await send_file(request, file, _content_type(file.name, query), headers)
    if request.method == "HEAD":
        # The entry exists; stat returns its kind.
        return (
            web.Response(content_type="application/json")
            if found.kind == "directory"
            else web.Response()
        )
    if found.kind != "directory":
        raise InvalidArgument(f"{path!r} is a {found.kind.replace('_', ' ')}, not a regular file")
    async with await files.open_listing(path, omits_dangling=True) as listing:
        place = msgspec.json.encode("/" + replace_surrogates(listing.place))
        head = b'{"path":' + place + b',"entries":['
        return await send_listing(request, listing, entry_fields, head, b"]}")


def _content_type(name: str, query: GetQuery) -> str:
    guessed, encoding = TYPES.guess_type(name.replace(":", "_"))  # ":" would begin a URL, "data:x"
    return (
        guessed
        if query.content_type == "auto" and guessed and not encoding
        else "application/octet-stream"
    )


def entry_fields(entry: Entry) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": replace_surrogates(entry.name),
        "size": entry.size_bytes,
        "type": entry.kind,
        "modified_at": timestamp(entry.modified_at),
        "mode": f"{entry.mode & 0o777:04o}",
    }
    if fields["name"] != entry.name:
        # JSON cannot hold the bytes: this is the name to use in requests.
        fields["name_percent_encoded"] = quote(
            entry.name.encode("utf-8", "surrogateescape"), safe=""
        )
    return fields


def timestamp(seconds: float) -> str:
    """Format as RFC 3339, UTC, whole seconds. Years outside 1 to 9999 become the nearest of
    these."""
    # From -62135596800, year 1, to the last second of year 9999.
    whole = min(max(int(seconds // 1), -62_135_596_800), 253_402_300_799)
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%SZ").rjust(20, "0")


# --- change


async def put(request: web.Request) -> web.StreamResponse:
    files, path, query = _parse_target(request, PutQuery)
    # RFC 9110 §14.5: a PUT that ignored Content-Range would replace the whole by a piece.
    if "Content-Range" in request.headers:
        raise InvalidArgument(
            "Content-Range: a piece of a file is sent with ?offset=", field="Content-Range"
        )
    validators.refuse_unmodified_since(request.headers)
    if query.append and query.offset is not None:
        raise InvalidArgument("offset: append has none", field="offset")
    boundary = multipart.boundary(request.headers.get("Content-Type", ""))
    upload = await _upload(request, files, path, query, is_form=boundary is not None)
    async with upload:
        if boundary is None:
            async for chunk in upload_chunks(request):
                await upload.write(chunk)
        else:
            await _receive_part(request, multipart.MultipartDecoder(boundary), upload)
        tag = await upload.commit()
    return web.Response(status=204, headers={"ETag": tag})


async def _upload(
    request: web.Request, files: Files, path: str, query: PutQuery, *, is_form: bool
) -> Upload:
    headers = request.headers
    precondition, mode = (
        validators.parse_precondition(headers),
        int(query.mode, 8) if query.mode else None,
    )
    size_bytes = None if is_form else request.content_length
    if "Content-Digest" in headers and (is_form or query.append or query.offset is not None):
        raise InvalidArgument(
            "Content-Digest: only for a body that is the whole file", field="Content-Digest"
        )
    whole = validators.body_sha256(headers)
    assert not (query.append and query.offset is not None), "put() refused both"
    if query.append or query.offset is not None:
        if query.append and whole is not None:
            raise InvalidArgument(
                "Repr-Digest: an append cannot know the whole; use offset", field="Repr-Digest"
            )
        return await files.extend(
            path,
            offset=query.offset,
            mode=mode,
            precondition=precondition,
            sha256=whole,
            size_bytes=size_bytes,
        )
    return await files.create(
        path, mode=mode, precondition=precondition, sha256=whole, size_bytes=size_bytes
    )


async def _receive_part(
    request: web.Request, decoder: multipart.MultipartDecoder, upload: Upload
) -> None:
    """Write the first part called "file", with a filename or, as a plain field, without. Raises
    InvalidArgument."""
    is_current, is_found = False, False
    async for event in form_events(request, decoder):
        match event:
            case bytes() if is_current:
                await upload.write(event)
            case multipart.Part(name="file") if not is_found:
                is_current = is_found = True
            case multipart.PartEnd():
                is_current = False
    if not decoder.is_complete:
        raise InvalidArgument("the multipart body ends before its closing boundary")
    if not is_found:
        raise InvalidArgument('the multipart body has no part called "file"')


async def delete(request: web.Request) -> web.StreamResponse:
    files, path, query = _parse_target(request, DeleteQuery)
    validators.refuse_unmodified_since(request.headers)
    await files.remove(
        path,
        recursive=query.recursive in TRUE,
        precondition=validators.parse_precondition(request.headers),
    )
    return web.Response(status=204)
