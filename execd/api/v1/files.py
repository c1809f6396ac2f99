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
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta

from execd.api.v1.file_reply import ListingReply, entry_reply
from execd.api.wire import multipart, validators
from execd.api.wire.body import form_events, upload_chunks
from execd.api.wire.downloads import FILE_HEADERS, send_file, send_listing
from execd.api.wire.fields import parse_query
from execd.api.wire.keys import ENGINE
from execd.api.wire.replies import replace_surrogates
from execd.api.wire.route import BYTES, FORM, PATH, Route
from execd.api.wire.targets import path_below, query_of, raw_path_of
from execd.engine.files.transfers import OpenedFile
from execd.errors import (
    Conflict,
    InvalidArgument,
    NoSpace,
    NotFound,
    PreconditionFailed,
    RangeNotSatisfiable,
    ReadOnly,
    ResourceExhausted,
)
from execd.model import Precondition

if TYPE_CHECKING:
    from execd.engine.files.service import Files
    from execd.engine.files.transfers import Upload

SANDBOXD_ROUTE = "/v1/files"
TREE_ROUTE = "/v1/fs/file"

# The values of strconv.ParseBool, and an empty one.
TRUE = ("1", "t", "T", "TRUE", "true", "True")
GoBool = Literal[
    "1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False", ""
]
Mode = Annotated[str, Meta(pattern=r"^(0[0-7]{3})?\Z")]
Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]

# Without the machine's tables: the type of a name must not depend on the image.
TYPES = mimetypes.MimeTypes()

T = TypeVar("T")


class GetQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    content_type: Literal["", "auto"] = ""
    """`auto`: the type by the file's name, instead of application/octet-stream."""


class PutQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mode: Mode = ""
    """Permission bits of the file: four octal digits. Empty or absent: those of the file before,
    and those of the daemon's umask for a new file."""
    append: bool = False
    """Add the body to the end of the file, instead of replacing it."""
    offset: Offset | None = None
    """Write the body at this place of the file, in bytes."""
    in_place: bool = False
    """Write into a file that is there, as a program that opens the file does: the inode stays, and
    a file that the daemon may not write is refused. A new file replaces the old one otherwise."""


class DeleteQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    recursive: GoBool = ""
    """Delete a directory with everything in it. Empty: false. The other spellings of Go's
    `strconv.ParseBool` are accepted too."""


TreePath = str
"""The path as user code sees it: absolute, or relative to the base dir."""


class TreeGetQuery(GetQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: TreePath


class TreePutQuery(PutQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: TreePath


class TreeDeleteQuery(DeleteQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: TreePath


def _rows(
    noun: str,
    path: str,
    get_query: type[msgspec.Struct],
    put_query: type[msgspec.Struct],
    delete_query: type[msgspec.Struct],
) -> list[Route]:
    return [
        Route(
            method="GET",
            path=path,
            handler=get,
            name=f"read_{noun}",
            summary="Read a file, or list a directory",
            query=get_query,
            headers=(
                "Range",
                "If-Range",
                "If-Match",
                "If-None-Match",
                "If-Modified-Since",
                "If-Unmodified-Since",
                "Want-Repr-Digest",
            ),
            replies={200: (ListingReply, BYTES, "*/*"), 206: (BYTES, "*/*"), 304: ()},
            reply_headers=(*FILE_HEADERS, "Repr-Digest"),
            errors=(
                NotFound,
                Conflict,
                PreconditionFailed,
                RangeNotSatisfiable,
                ResourceExhausted,
            ),
        ),
        Route(
            method="PUT",
            path=path,
            handler=put,
            name=f"write_{noun}",
            summary="Write a file, as a whole or in part",
            query=put_query,
            headers=("If-Match", "If-None-Match", "Repr-Digest", "Content-Digest"),
            body=(BYTES, FORM),
            is_body_optional=True,
            replies={204: ()},
            reply_headers=("ETag",),
            errors=(NotFound, Conflict, PreconditionFailed, ResourceExhausted, NoSpace, ReadOnly),
        ),
        Route(
            method="DELETE",
            path=path,
            handler=delete,
            name=f"delete_{noun}",
            summary="Delete a file or a directory",
            query=delete_query,
            headers=("If-Match", "If-None-Match"),
            replies={204: ()},
            errors=(NotFound, Conflict, PreconditionFailed, ResourceExhausted, NoSpace, ReadOnly),
        ),
    ]


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
                    f"{path!r}: is later than If-Unmodified-Since; read the file again",
                    etag=file.etag,
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
        path = "/" + replace_surrogates(listing.place)
        empty = msgspec.json.encode(ListingReply(path=path, entries=[]))
        head, tail = empty[:-2], empty[-2:]
        assert tail == b"]}", "the entries are the last field"
        return await send_listing(request, listing, entry_reply, head, tail)


def _content_type(name: str, query: GetQuery) -> str:
    guessed, encoding = TYPES.guess_type(name.replace(":", "_"))  # ":" would begin a URL, "data:x"
    return (
        guessed
        if query.content_type == "auto" and guessed and not encoding
        else "application/octet-stream"
    )


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
    if query.in_place and (query.append or query.offset is not None):
        raise InvalidArgument(
            "in_place: replaces the whole content; append and offset write in place anyway",
            field="in_place",
        )
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
        path,
        mode=mode,
        precondition=precondition,
        sha256=whole,
        size_bytes=size_bytes,
        in_place=query.in_place,
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


ROUTES = (
    *_rows("base_dir", SANDBOXD_ROUTE, GetQuery, PutQuery, DeleteQuery),
    *_rows("file", SANDBOXD_ROUTE + PATH, GetQuery, PutQuery, DeleteQuery),
    *_rows("fs_file", TREE_ROUTE, TreeGetQuery, TreePutQuery, TreeDeleteQuery),
)
