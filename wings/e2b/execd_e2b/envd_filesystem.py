"""``filesystem.Filesystem`` of envd, for the whole tree as user code sees the tree.

envd acts as root for every user. execd acts as its own user, and the kernel checks each access.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from execd.engine.engine_api import Conflict, InvalidArgument, NotFound
from execd_e2b.connect import AlreadyExists, frame, parse_keepalive, parse_timeout
from execd_e2b.entries import METADATA_PREFIX, entry_info
from execd_e2b.rpc import send_frames, stream, unary
from execd_e2b.watchers import read_names, watch_directory

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from aiohttp import web

    from execd.engine.engine_api import DescribedEntry
    from execd_e2b.sandbox import Sandbox
    from execd_e2b.watchers import WatchedDirectory

SERVICE = "/filesystem.Filesystem/"
MAX_ENTRIES = 50_000
"""Entries in a reply of ListDir: about 15 MB of JSON. More are ``resource_exhausted``."""


class PathRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of Stat, MakeDir, Remove and ListDir."""

    path: str = ""
    depth: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0


class RenameRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of Move."""

    source: str = ""
    destination: str = ""


class WatchRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The request of WatchDir and CreateWatcher."""

    path: str = ""
    recursive: bool = False
    include_entry: bool = False


class WatcherRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The request of GetWatcherEvents and RemoveWatcher."""

    watcher_id: str = ""


PATH = msgspec.json.Decoder(PathRequest)
MOVE = msgspec.json.Decoder(RenameRequest)
WATCH = msgspec.json.Decoder(WatchRequest)
WATCHER = msgspec.json.Decoder(WatcherRequest)


async def _path(request: web.Request, sandbox: Sandbox, path: str) -> str:
    return await sandbox.path(path, request.headers.get("Authorization"))


async def _entry(sandbox: Sandbox, path: str) -> dict[str, Any]:
    found = await sandbox.engine.tree_files.describe_entry(path, METADATA_PREFIX)
    return {"entry": entry_info(path, found, await read_names(sandbox.engine))}


async def stat(request: web.Request, sandbox: Sandbox, asked: PathRequest) -> dict[str, Any]:
    return await _entry(sandbox, await _path(request, sandbox, asked.path))


async def list_directory(
    request: web.Request, sandbox: Sandbox, asked: PathRequest
) -> dict[str, Any]:
    path = await _path(request, sandbox, asked.path)
    names = await read_names(sandbox.engine)
    top = path.rstrip("/")

    def render(entries: list[DescribedEntry]) -> msgspec.Raw:
        infos = [entry_info(f"{top}/{entry.path}", entry, names) for entry in entries]
        return msgspec.Raw(msgspec.json.encode(infos))

    files = sandbox.engine.tree_files
    try:
        entries = await files.describe_tree(
            path,
            render,
            attribute_prefix=METADATA_PREFIX,
            depth=max(1, asked.depth),
            limit=MAX_ENTRIES,
        )
    except NotFound:
        await _refuse_loop(sandbox, path)
        raise
    return {"entries": entries}


async def _refuse_loop(sandbox: Sandbox, path: str) -> None:
    """Raise Conflict if the path is a link to itself, which envd tells from a missing path."""
    own = (await sandbox.engine.tree_files.describe(path, follow=False)).target
    if own is not None and posixpath.join(posixpath.dirname(path), own) == path:
        raise Conflict(f"{path!r}: is a link to itself; remove the link")


async def make_directory(
    request: web.Request, sandbox: Sandbox, asked: PathRequest
) -> dict[str, Any]:
    path = await _path(request, sandbox, asked.path)
    try:
        found = await sandbox.engine.tree_files.describe(path)
    except NotFound:
        await sandbox.engine.tree_files.make_directory(path)
        return await _entry(sandbox, path)
    if found.kind == "directory":
        raise AlreadyExists(f"directory already exists: {path!r}; use the directory")
    raise InvalidArgument(f"path already exists but it is not a directory: {path!r}", field="path")


async def move(request: web.Request, sandbox: Sandbox, asked: RenameRequest) -> dict[str, Any]:
    if not asked.source or not asked.destination:
        field = "destination" if asked.source else "source"
        raise InvalidArgument(f"{field}: required", field=field)
    source = await _path(request, sandbox, asked.source)
    destination = await _path(request, sandbox, asked.destination)
    await sandbox.engine.tree_files.move(source, destination, overwrite=True)
    return await _entry(sandbox, destination)


async def remove(request: web.Request, sandbox: Sandbox, asked: PathRequest) -> dict[str, Any]:
    if not asked.path:
        raise Conflict("path: the home is not removed without its name; name the path")
    path = await _path(request, sandbox, asked.path)
    try:
        await sandbox.engine.tree_files.remove(path, recursive=True)
    except NotFound:
        pass  # as in envd: nothing is there, and nothing was wanted there
    return {}


async def _watched(request: web.Request, sandbox: Sandbox, asked: WatchRequest) -> WatchedDirectory:
    path = await _path(request, sandbox, asked.path)
    return await watch_directory(
        sandbox.engine, path, recursive=asked.recursive, includes_entry=asked.include_entry
    )


async def watch(request: web.Request, sandbox: Sandbox, asked: WatchRequest) -> web.StreamResponse:
    parse_timeout(request.headers.get("Connect-Timeout-Ms"))  # the caller's own deadline
    keepalive_seconds = parse_keepalive(request.headers.get("Keepalive-Ping-Interval"))
    watched = await _watched(request, sandbox, asked)
    try:
        return await send_frames(request, _frames(watched, keepalive_seconds))
    finally:
        await watched.close()


async def _frames(
    watched: WatchedDirectory, keepalive_seconds: float
) -> AsyncGenerator[bytes, None]:
    yield frame({"start": {}})
    async for message in watched.follow(keepalive_seconds):
        yield frame(message)


async def create_watcher(
    request: web.Request, sandbox: Sandbox, asked: WatchRequest
) -> dict[str, Any]:
    watched = await _watched(request, sandbox, asked)
    return {"watcherId": await sandbox.watchers.add(watched)}


async def poll(_request: web.Request, sandbox: Sandbox, asked: WatcherRequest) -> dict[str, Any]:
    return await sandbox.watchers.get(asked.watcher_id).poll()


async def remove_watcher(
    _request: web.Request, sandbox: Sandbox, asked: WatcherRequest
) -> dict[str, Any]:
    await sandbox.watchers.remove(asked.watcher_id)
    return {}


ROUTES = (
    unary(SERVICE + "Stat", PATH, stat, "Describe a file"),
    unary(SERVICE + "ListDir", PATH, list_directory, "Describe the files of a directory"),
    unary(SERVICE + "MakeDir", PATH, make_directory, "Make a directory with its parents"),
    unary(SERVICE + "Move", MOVE, move, "Rename a file or a directory"),
    unary(SERVICE + "Remove", PATH, remove, "Remove a file or a directory with its content"),
    stream(SERVICE + "WatchDir", WATCH, watch, "Stream the changes in a directory"),
    unary(SERVICE + "CreateWatcher", WATCH, create_watcher, "Gather changes for polls"),
    unary(SERVICE + "GetWatcherEvents", WATCHER, poll, "The changes since the last poll"),
    unary(SERVICE + "RemoveWatcher", WATCHER, remove_watcher, "Stop gathering changes"),
)
