"""Files and directories.

    GET    /files/info?path=&path=        facts             DELETE /files?path=&path=
    POST   /files/permissions             owner and mode    POST /files/mv
    POST   /files/replace                 a text in files   GET /files/search?path=&pattern=
    GET    /directories/list?path=&depth= POST /directories DELETE /directories?path=

Paths are paths as user code sees them (``path_expansion``). All routes exist a second time below
/v1/filesystem/{uid}/{gid}, for the user that commands run as; other users are refused.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from execd.api.wire_api import BYTES, ENGINE, FORM, Route, json_reply, query_of, replace_surrogates
from execd.engine.engine_api import (
    Conflict,
    InvalidArgument,
    NoSpace,
    NotFound,
    NotSupported,
    PayloadTooLarge,
    RangeNotSatisfiable,
    ReadOnly,
    Replacement,
    ResourceExhausted,
    replace_text,
)
from execd_opensandbox import file_transfer
from execd_opensandbox.file_info import FileInfo, Permission, absolute, change_owner, file_info
from execd_opensandbox.name_patterns import name_globs
from execd_opensandbox.owner_names import read_owner_names
from execd_opensandbox.requests import expanded, int_query, parse_body, paths_of, required_query

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp.typedefs import Handler

    from execd.engine.engine_api import Engine, FileKind, SearchResult

IDENTITY = "/v1/filesystem/{uid}/{gid}"
FILES: frozenset[FileKind] = frozenset(("file",))
MAX_FOUND = 100_000
# Routers give up on a reply if no header has come for 30 s.
FIND_SECONDS = 20.0


class MovedPath(msgspec.Struct, frozen=True, kw_only=True):
    """A file to move."""

    src: str
    dest: str


class ReplacedText(msgspec.Struct, frozen=True, kw_only=True):
    """A text to replace in a file."""

    old: str
    new: str = ""


class ReplacedReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How often the text was found."""

    replaced_count: int


PERMISSIONS = msgspec.json.Decoder(dict[str, Permission])
MOVES = msgspec.json.Decoder(list[MovedPath])
REPLACEMENTS = msgspec.json.Decoder(dict[str, ReplacedText])
CHANGES = (NotFound, Conflict, ResourceExhausted, NoSpace, ReadOnly)


def _rows(prefix: str, suffix: str) -> Iterable[Route]:
    def row(
        method: str, path: str, handler: Handler, name: str, summary: str, **more: object
    ) -> Route:
        return Route(
            method=method,
            path=prefix + path,
            handler=_for_own_user(handler) if prefix else handler,
            name=f"opensandbox_{name}{suffix}",
            summary=summary,
            **more,  # type: ignore[arg-type]  # the fields of a Route, by name
        )

    yield row(
        *("GET", "/files/info", info, "file_info", "Facts of files"),
        replies={200: (dict[str, FileInfo],)},
        errors=(NotFound,),
    )
    yield row(
        *("DELETE", "/files", remove_files, "delete_files", "Delete files"),
        replies={200: ()},
        errors=CHANGES,
    )
    yield row(
        *("POST", "/files/permissions", permissions, "set_permissions", "Set owner and mode"),
        body=(dict[str, Permission],),
        replies={200: ()},
        errors=CHANGES,
    )
    yield row(
        *("POST", "/files/mv", move, "move_files", "Move files"),
        body=(list[MovedPath],),
        replies={200: ()},
        errors=CHANGES,
    )
    yield row(
        *("POST", "/files/replace", replace, "replace_text", "Replace a text in files"),
        body=(dict[str, ReplacedText],),
        replies={200: (dict[str, ReplacedReply],)},
        errors=(*CHANGES, PayloadTooLarge),
    )
    yield row(
        *("GET", "/files/search", search, "search_files", "Find files by their names"),
        replies={200: (list[FileInfo],)},
        errors=(NotFound, PayloadTooLarge),
    )
    yield row(
        *("GET", "/directories/list", list_directory, "list_directory", "List a directory"),
        replies={200: (list[FileInfo],)},
        errors=(NotFound, PayloadTooLarge),
    )
    yield row(
        *("POST", "/directories", make_directories, "make_directories", "Make directories"),
        body=(dict[str, Permission],),
        replies={200: ()},
        errors=CHANGES,
    )
    yield row(
        *("DELETE", "/directories", remove_directories, "delete_directories"),
        "Delete directories with all content",
        replies={200: ()},
        errors=CHANGES,
    )
    yield row(
        *("POST", "/files/upload", file_transfer.upload, "upload", "Write files"),
        body=(FORM,),
        replies={200: ()},
        errors=CHANGES,
    )
    yield row(
        *("GET", "/files/download", file_transfer.download, "download", "Read a file"),
        replies={200: (BYTES, "text/plain"), 206: (BYTES,), 304: ()},
        errors=(NotFound, Conflict, RangeNotSatisfiable),
    )


def _for_own_user(handler: Handler) -> Handler:
    @wraps(handler)
    async def serve(request: web.Request) -> web.StreamResponse:
        uid, gid = request.app[ENGINE].owner
        if (request.match_info["uid"], request.match_info["gid"]) != (str(uid), str(gid)):
            raise NotSupported(
                f"files: this daemon reads and writes files as {uid}:{gid} only; use that identity"
            )
        return await handler(request)

    return serve


# --- files


async def info(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    accounts = await engine.files.run(read_owner_names)
    found = {}
    for path in paths_of(request):
        place = expanded(engine, path)
        described = await engine.tree_files.describe(place, follow=False)
        found[replace_surrogates(path)] = file_info(absolute(engine, place), described, accounts)
    return json_reply(found)


async def remove_files(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    for path in paths_of(request):
        place = expanded(engine, path)
        if await _kind(engine, place) == "directory":
            raise InvalidArgument(f"path: {path!r} is a directory; DELETE /directories removes it")
        await _remove(engine, place)
    return web.Response()


async def permissions(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    for path, wanted in (await parse_body(request, PERMISSIONS)).items():
        place, bits = expanded(engine, path), wanted.bits
        await engine.tree_files.describe(place)  # NotFound before anything is changed
        await change_owner(engine, place, wanted)
        if bits is not None:
            await engine.tree_files.change_mode(place, bits)
    return web.Response()


async def move(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    for moved in await parse_body(request, MOVES):
        source, target = expanded(engine, moved.src), expanded(engine, moved.dest)
        try:
            await engine.tree_files.move(source, target)
        except Conflict as error:
            if absolute(engine, source) == absolute(engine, target):
                raise
            raise Conflict(
                f"dest: there is something already at {moved.dest!r}; delete it, or name another "
                "dest"
            ) from error
    return web.Response()


async def replace(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    asked = await parse_body(request, REPLACEMENTS)
    for path, text in asked.items():
        if not text.old:
            raise InvalidArgument(f"old: empty for {path!r}", field="old")
    counts = {}
    for path, text in asked.items():
        replacement = Replacement(text.old.encode(), text.new.encode())
        place = expanded(engine, path)
        count = await replace_text(engine.tree_files, place, replacement)
        counts[path] = ReplacedReply(replaced_count=count)
    is_verbose = query_of(request.raw_path).get("verbose") == "true"
    return json_reply(counts) if is_verbose else web.Response()


async def search(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    place = expanded(engine, required_query(request, "path"))
    pattern = query_of(request.raw_path).get("pattern") or "**"
    found: dict[str, FileInfo] = {}
    for glob in name_globs(pattern):
        result = await engine.tree_files.search(
            place, glob, limit=MAX_FOUND, seconds=FIND_SECONDS, kinds=FILES
        )
        found.update({one.path: one for one in await _infos(engine, place, result)})
    return json_reply(sorted(found.values(), key=lambda one: one.path.split("/")))


# --- directories


async def list_directory(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    path = required_query(request, "path")
    place, depth = expanded(engine, path), int_query(request, "depth", 1)
    described = await engine.tree_files.describe(place, follow=False)
    if described.kind != "directory":
        raise InvalidArgument(f"path: {path!r} is no directory, but a {described.kind}")
    if depth == 0:
        return json_reply([])
    result = await engine.tree_files.search(
        place, "**", limit=MAX_FOUND, seconds=FIND_SECONDS, max_depth=depth
    )
    return json_reply(await _infos(engine, place, result))


async def _infos(engine: Engine, place: str, result: SearchResult) -> list[FileInfo]:
    """Return the found files. Raises PayloadTooLarge if there are more: a list that ends early
    would look complete."""
    if result.truncated is not None:
        raise PayloadTooLarge(
            f"path: more than {MAX_FOUND} files, or more than {FIND_SECONDS:g} s; name a directory "
            "further down"
        )
    root, accounts = absolute(engine, place).rstrip("/"), await engine.files.run(read_owner_names)
    return await engine.files.run(
        lambda: [file_info(f"{root}/{one.path}", one, accounts) for one in result.matches]
    )


async def make_directories(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    for path, wanted in (await parse_body(request, PERMISSIONS)).items():
        place, bits = expanded(engine, path), wanted.bits
        is_new = not await engine.tree_files.exists(place)
        await engine.tree_files.make_directory(place, mode=bits)
        if is_new:
            await change_owner(engine, place, wanted)
    return web.Response()


async def remove_directories(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    for path in paths_of(request):
        place = expanded(engine, path)
        kind = await _kind(engine, place)
        if kind not in (None, "directory"):
            raise InvalidArgument(f"path: {path!r} is no directory; DELETE /files removes it")
        await _remove(engine, place, recursive=True)
    return web.Response()


async def _kind(engine: Engine, place: str) -> str | None:
    """Return the kind of the file itself; None: there is no file."""
    try:
        return (await engine.tree_files.describe(place, follow=False)).kind
    except NotFound:
        return None


async def _remove(engine: Engine, place: str, *, recursive: bool = False) -> None:
    """Remove the file. No file is no error."""
    try:
        await engine.tree_files.remove(place, recursive=recursive)
    except NotFound:
        return


ROUTES = (*_rows("", ""), *_rows(IDENTITY, "_as_user"))
