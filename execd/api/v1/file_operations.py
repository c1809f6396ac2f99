"""Operations on files, with paths as user code sees them: absolute, or relative to the base dir.

    GET  /v1/fs/stat?path=&follow=       the entry at the path; follow=false: a link itself
    POST /v1/fs/mkdir   {"path", "mode"?, "parents"?}
    POST /v1/fs/move    {"src", "dest", "overwrite"?}
    POST /v1/fs/copy    {"src", "dest", "overwrite"?}
    POST /v1/fs/chmod   {"path", "mode"}
    POST /v1/fs/search  {"path"?, "glob", "type"?, "limit"?}

A change answers with the changed entry, in the form of stat. ``dest`` is always the new name
itself, never a directory to move into.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from urllib.parse import quote

import msgspec
from aiohttp import web
from msgspec import Meta

from execd.api.v1.files import timestamp
from execd.api.wire.body import read_body
from execd.api.wire.fields import NoQuery, parse_json, parse_query
from execd.api.wire.keys import ENGINE
from execd.api.wire.replies import json_reply, replace_surrogates
from execd.api.wire.targets import query_of

if TYPE_CHECKING:
    from execd.engine.files.service import Description, Files, SearchResult

Kind = Literal["file", "directory", "symlink", "fifo", "socket", "character_device", "block_device"]
Mode = Annotated[str, Meta(pattern="^[0-7]{3,4}$")]
"""Octal, three digits or four."""
DEFAULT_MATCHES, MAX_MATCHES = 1000, 10_000
# Routers give up on a reply if no header has come for 30 s.
SEARCH_SECONDS = 20.0

T = TypeVar("T")


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class StatQuery(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str
    follow: bool = True


class MkdirRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str
    mode: Mode | None = None
    parents: bool = True
    """Make missing parents too, and accept an existing directory."""


class MoveRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    src: str
    dest: str
    overwrite: bool = False


class ChmodRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str
    mode: Mode


class SearchRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    glob: str
    path: str = "."
    type: Kind | tuple[Kind, ...] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_MATCHES)] = DEFAULT_MATCHES


MKDIR = msgspec.json.Decoder(MkdirRequest)
MOVE = msgspec.json.Decoder(MoveRequest)
CHMOD = msgspec.json.Decoder(ChmodRequest)
SEARCH = msgspec.json.Decoder(SearchRequest)


def routes() -> list[web.RouteDef]:
    return [
        web.get("/v1/fs/stat", show),
        web.post("/v1/fs/mkdir", mkdir),
        web.post("/v1/fs/move", move),
        web.post("/v1/fs/copy", copy),
        web.post("/v1/fs/chmod", chmod),
        web.post("/v1/fs/search", search),
    ]


async def show(request: web.Request) -> web.StreamResponse:
    query = parse_query(query_of(request.raw_path), StatQuery)
    return json_reply(
        description_fields(await _files(request).describe(query.path, follow=query.follow))
    )


async def mkdir(request: web.Request) -> web.StreamResponse:
    parsed, files = await _body(request, MKDIR), _files(request)
    await files.make_directory(
        parsed.path,
        mode=None if parsed.mode is None else int(parsed.mode, 8),
        parents=parsed.parents,
    )
    return await _description_reply(files, parsed.path)


async def move(request: web.Request) -> web.StreamResponse:
    parsed, files = await _body(request, MOVE), _files(request)
    await files.move(parsed.src, parsed.dest, overwrite=parsed.overwrite)
    return await _description_reply(files, parsed.dest)


async def copy(request: web.Request) -> web.StreamResponse:
    parsed, files = await _body(request, MOVE), _files(request)
    done = await files.copy(parsed.src, parsed.dest, overwrite=parsed.overwrite)
    copied = {
        "files": done.n_files,
        "directories": done.n_directories,
        "links": done.n_links,
        "bytes": done.n_bytes,
        "skipped": done.n_skipped,
    }
    return await _description_reply(files, parsed.dest, copied=copied)


async def chmod(request: web.Request) -> web.StreamResponse:
    parsed, files = await _body(request, CHMOD), _files(request)
    await files.change_mode(parsed.path, int(parsed.mode, 8))
    return json_reply(description_fields(await files.describe(parsed.path)))


async def search(request: web.Request) -> web.StreamResponse:
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
    body = await files.run(lambda: msgspec.json.encode(_search_fields(found)))
    return web.Response(body=body, content_type="application/json")


def _files(request: web.Request) -> Files:
    return request.app[ENGINE].tree_files


async def _body(request: web.Request, decoder: msgspec.json.Decoder[T]) -> T:
    parse_query(query_of(request.raw_path), NoQuery)
    return parse_json(await read_body(request), decoder)


async def _description_reply(files: Files, path: str, **more: Any) -> web.Response:
    return json_reply({**description_fields(await files.describe(path, follow=False)), **more})


def description_fields(found: Description) -> dict[str, Any]:
    fields: dict[str, Any] = {
        **path_fields(found.place),
        "type": found.kind,
        "size": found.size_bytes,
        "modified_at": timestamp(found.modified_at),
        "mode": f"{found.mode:04o}",
        "uid": found.uid,
        "gid": found.gid,
        "links": found.n_links,
    }
    if found.kind == "file":
        fields["etag"] = found.etag
    if found.target is not None:
        fields["target"] = replace_surrogates(found.target)
    return fields


def _search_fields(found: SearchResult) -> dict[str, Any]:
    items = [
        {
            **path_fields(match.place),
            "type": match.kind,
            "size": match.size_bytes,
            "modified_at": timestamp(match.modified_at),
            "mode": f"{match.mode:04o}",
        }
        for match in found.matches
    ]
    return {
        "items": items,
        "truncated": found.truncated is not None,
        "truncated_by": found.truncated,
        "scanned": found.n_scanned,
        "unreadable": found.n_unreadable,
    }


def path_fields(place: str) -> dict[str, str]:
    """Return a path below the root. A path that is not UTF-8 has a percent-encoded form too, for
    requests."""
    fields = {"path": "/" + replace_surrogates(place)}
    if fields["path"][1:] != place:
        fields["path_percent_encoded"] = quote("/" + place, errors="surrogateescape")
    return fields
