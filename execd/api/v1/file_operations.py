"""Operations on files, with paths as user code sees them: absolute, or relative to the base dir.

    GET  /v1/fs/stat?path=&follow=       the entry at the path; follow=false: a link itself
    POST /v1/fs/mkdir   {"path", "mode"?, "parents"?}
    POST /v1/fs/move    {"src", "dest", "overwrite"?}
    POST /v1/fs/copy    {"src", "dest", "overwrite"?}
    POST /v1/fs/chmod   {"path", "mode"}
    POST /v1/fs/search  {"path"?, "glob", "type"?, "limit"?}    paths are relative to ``path``

A change answers with the changed entry, in the form of stat. ``dest`` is always the new name
itself, never a directory to move into.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta

from execd.api.v1.file_reply import (
    CopiedCounts,
    CopyReply,
    DescriptionReply,
    SearchReply,
    description_reply,
    search_reply,
)
from execd.api.wire.body import read_body
from execd.api.wire.fields import NoQuery, parse_json, parse_query
from execd.api.wire.keys import ENGINE
from execd.api.wire.replies import json_reply
from execd.api.wire.route import RouteTable
from execd.api.wire.targets import query_of
from execd.engine.files.service import FileKind  # noqa: TC001  # msgspec reads it at run time
from execd.errors import Conflict, NoSpace, NotFound, ReadOnly, ResourceExhausted

if TYPE_CHECKING:
    from execd.engine.files.service import Files

Mode = Annotated[str, Meta(pattern="^[0-7]{3,4}$")]
PathOfUser = str
"""A path as user code sees it: absolute, or relative to the base dir."""
DEFAULT_MATCHES, MAX_MATCHES = 1000, 10_000
# Routers give up on a reply if no header has come for 30 s.
SEARCH_SECONDS = 20.0

T = TypeVar("T")


class StatQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: PathOfUser
    follow: bool = True
    """Describe the target of a link; false: the link itself."""


class MkdirRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A directory to make."""

    path: PathOfUser
    mode: Mode | None = None
    """Permission bits: three or four octal digits. Null: those of the umask."""
    parents: bool = True
    """Make missing parents too, and accept an existing directory."""


class MoveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A path to move or copy, and the new name."""

    src: PathOfUser
    dest: str
    """The new name itself, never a directory to put `src` into."""
    overwrite: bool = False
    """Replace files that exist at `dest`."""


class ChmodRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A path, and new permission bits."""

    path: PathOfUser
    mode: Mode
    """Permission bits: three or four octal digits."""


class SearchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to search for, and where."""

    glob: str
    """A pattern for paths relative to `path`; `**` stands for any directories."""
    path: str = "."
    """The directory to search. A path as user code sees it: absolute, or relative to the base
    dir."""
    type: FileKind | tuple[FileKind, ...] | None = None
    """Only files of this kind, or of these kinds. Null: all."""
    limit: Annotated[int, Meta(ge=1, le=MAX_MATCHES)] = DEFAULT_MATCHES
    """The most matches in the reply."""


READ_ERRORS = (NotFound, Conflict, ResourceExhausted)
ROUTES = RouteTable(query=NoQuery, errors=(*READ_ERRORS, NoSpace, ReadOnly))

MKDIR = msgspec.json.Decoder(MkdirRequest)
MOVE = msgspec.json.Decoder(MoveRequest)
CHMOD = msgspec.json.Decoder(ChmodRequest)
SEARCH = msgspec.json.Decoder(SearchRequest)


@ROUTES.add(
    "GET", "/v1/fs/stat", query=StatQuery, replies={200: (DescriptionReply,)}, errors=READ_ERRORS
)
async def stat_path(request: web.Request) -> web.StreamResponse:
    """The facts of one path."""
    query = parse_query(query_of(request.raw_path), StatQuery)
    found = await _files(request).describe(query.path, follow=query.follow)
    return json_reply(description_reply(found))


@ROUTES.add("POST", "/v1/fs/mkdir", body=(MkdirRequest,), replies={200: (DescriptionReply,)})
async def make_directory(request: web.Request) -> web.StreamResponse:
    """Make a directory."""
    parsed, files = await _body(request, MKDIR), _files(request)
    await files.make_directory(
        parsed.path,
        mode=None if parsed.mode is None else int(parsed.mode, 8),
        parents=parsed.parents,
    )
    return await _description_reply(files, parsed.path)


@ROUTES.add("POST", "/v1/fs/move", body=(MoveRequest,), replies={200: (DescriptionReply,)})
async def move_path(request: web.Request) -> web.StreamResponse:
    """Rename a file or directory."""
    parsed, files = await _body(request, MOVE), _files(request)
    await files.move(parsed.src, parsed.dest, overwrite=parsed.overwrite)
    return await _description_reply(files, parsed.dest)


@ROUTES.add("POST", "/v1/fs/copy", body=(MoveRequest,), replies={200: (CopyReply,)})
async def copy_path(request: web.Request) -> web.StreamResponse:
    """Copy a file or directory."""
    parsed, files = await _body(request, MOVE), _files(request)
    done = await files.copy(parsed.src, parsed.dest, overwrite=parsed.overwrite)
    copied = CopiedCounts(
        files=done.n_files,
        directories=done.n_directories,
        links=done.n_links,
        bytes=done.n_bytes,
        skipped=done.n_skipped,
    )
    copy = description_reply(await files.describe(parsed.dest, follow=False))
    return json_reply(CopyReply(**msgspec.structs.asdict(copy), copied=copied))


@ROUTES.add("POST", "/v1/fs/chmod", body=(ChmodRequest,), replies={200: (DescriptionReply,)})
async def change_mode(request: web.Request) -> web.StreamResponse:
    """Set the mode of a path."""
    parsed, files = await _body(request, CHMOD), _files(request)
    await files.change_mode(parsed.path, int(parsed.mode, 8))
    return json_reply(description_reply(await files.describe(parsed.path)))


@ROUTES.add(
    "POST",
    "/v1/fs/search",
    body=(SearchRequest,),
    replies={200: (SearchReply,)},
    errors=READ_ERRORS,
)
async def search_paths(request: web.Request) -> web.StreamResponse:
    """Find paths by a pattern."""
    parsed, files = await _body(request, SEARCH), _files(request)
    kinds = (
        None
        if parsed.type is None
        else frozenset((parsed.type,) if isinstance(parsed.type, str) else parsed.type)
    )
    found = await files.search(
        parsed.path, parsed.glob, kinds=kinds, limit=parsed.limit, seconds=SEARCH_SECONDS
    )
    # ten thousand matches take a while
    body = await files.run(lambda: msgspec.json.encode(search_reply(found)))
    return web.Response(body=body, content_type="application/json")


def _files(request: web.Request) -> Files:
    return request.app[ENGINE].tree_files


async def _body(request: web.Request, decoder: msgspec.json.Decoder[T]) -> T:
    parse_query(query_of(request.raw_path), NoQuery)
    return parse_json(await read_body(request), decoder)


async def _description_reply(files: Files, path: str) -> web.Response:
    return json_reply(description_reply(await files.describe(path, follow=False)))
