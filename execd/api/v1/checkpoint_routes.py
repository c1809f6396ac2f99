"""Checkpoints of directories: make, list, delete, compare, restore.

    POST   /v1/checkpoints   {"id"?, "roots"?, "watched"?, "exclude"?}
    GET    /v1/checkpoints, /v1/checkpoints/{id}
    DELETE /v1/checkpoints/{id}
    GET    /v1/checkpoints/{id}/changes?path=&limit=&cursor=
    GET    /v1/checkpoints/{id}/changes?format=patch|tar|tar.gz&path=
    POST   /v1/checkpoints/{id}/restore

Paths of requests are as user code sees them: absolute, or relative to the base dir. Paths of
replies are absolute, without links.
"""

from __future__ import annotations

import base64
import binascii
import time
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta

from execd.api.v1.execution_request import ID_RULE
from execd.api.v1.file_reply import PercentEncodedPath, percent_encoded
from execd.api.wire.body import read_body
from execd.api.wire.downloads import send_packed
from execd.api.wire.fields import NoQuery, parse_json, parse_query
from execd.api.wire.keys import ENGINE
from execd.api.wire.replies import json_reply, replace_surrogates
from execd.api.wire.route import RouteTable
from execd.api.wire.targets import query_of
from execd.engine.exports import ExportFormat, export
from execd.errors import Conflict, InvalidArgument, NoSpace, NotFound, PayloadTooLarge
from execd.model import EntryChange, EntryType, rfc3339

if TYPE_CHECKING:
    from execd.engine.checkpoints import Checkpoint, CheckpointRoot, Checkpoints, TreeChange

ROUTE = "/v1/checkpoints"
ROUTES = RouteTable(query=NoQuery, errors=(NotFound, Conflict))
EXPORT_TYPES: dict[ExportFormat, str] = {
    "patch": "text/x-patch",
    "tar": "application/x-tar",
    "tar.gz": "application/gzip",
}
DEFAULT_PAGE, MAX_PAGE = 1000, 10_000
MAX_ROOTS, MAX_PATTERNS = 64, 256


class CheckpointRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A checkpoint to make."""

    id: Annotated[
        str | None,
        Meta(description=f"The name of the checkpoint; {ID_RULE} Null: execd makes one."),
    ] = None
    roots: Annotated[list[str], Meta(max_length=MAX_ROOTS)] = msgspec.field(
        default_factory=lambda: ["."]
    )
    """The directories whose files are kept: absolute, or relative to the base dir."""
    watched: Annotated[list[str], Meta(max_length=MAX_ROOTS)] = []
    """Directories whose files are compared and not kept."""
    exclude: Annotated[list[str], Meta(max_length=MAX_PATTERNS)] = []
    """Patterns for paths relative to each directory; `**` stands for any directories. What matches
    is left out with all below."""


class ChangesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str | None = None
    """Only this file, or what is below this directory."""
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = DEFAULT_PAGE
    """The most changes in the reply."""
    cursor: str | None = None
    """The `next_cursor` of the page before. Absent: the first page."""
    format: Literal["json", "patch", "tar", "tar.gz"] = "json"
    """`json`: the list, in pages. `patch`: a patch for `git apply`; comment lines before the first
    diff name what the patch cannot have. `tar`, `tar.gz`: the new content; the first member,
    `.execd-deleted`, has the names of what is gone, each with a zero byte at its end. Names begin
    below the root of the checkpoint; with several roots, below `/`."""


class CheckpointRootReply(msgspec.Struct, frozen=True, kw_only=True):
    """A directory of a checkpoint."""

    path: str
    """Absolute, without links."""
    path_percent_encoded: PercentEncodedPath = UNSET
    files: int
    """The number of regular files."""
    bytes: int
    """The bytes of all regular files."""


class CheckpointReply(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint."""

    id: str
    """The name of the checkpoint."""
    created_at: str
    """When the checkpoint was begun (RFC 3339)."""
    roots: list[CheckpointRootReply]
    """The directories whose files are kept. A directory below another is part of that one."""
    watched: list[CheckpointRootReply]
    """The directories whose files are compared and not kept."""
    exclude: list[str]
    """The patterns of paths that are left out."""
    bytes: int
    """The bytes of all files that are kept."""
    duration_seconds: float
    """How long it took to make the checkpoint."""


class CheckpointsReply(msgspec.Struct, frozen=True, kw_only=True):
    """All checkpoints."""

    items: list[CheckpointReply]
    """The oldest first."""


class ChangeItem(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is not as in the checkpoint."""

    path: str
    """Absolute, without links."""
    path_percent_encoded: PercentEncodedPath = UNSET
    change: EntryChange
    """`created`, `deleted`; `type`: a file of another type has the name; `mode`: other permission
    bits alone; `modified`: other content, owner, attributes or hard links."""
    type: EntryType
    """The type of the present file; of a deleted file, the former type."""
    size_bytes: int | None
    """The size of a regular file; null: it is deleted, or no regular file."""
    was_size_bytes: int | None
    """The size in the checkpoint; null: it is new, or was no regular file."""


class ChangesReply(msgspec.Struct, frozen=True, kw_only=True):
    """What has changed since a checkpoint."""

    items: list[ChangeItem]
    """By path; a directory before its content."""
    next_cursor: str | None
    """For the next page; null: there is none."""


class FailedItem(msgspec.Struct, frozen=True, kw_only=True):
    """A file that could not be restored."""

    path: str
    """Absolute, without links."""
    path_percent_encoded: PercentEncodedPath = UNSET
    message: str
    """The reason in words."""


class RestoreReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore did."""

    restored: int
    """Files and directories that were made again, or got their content or attributes back."""
    removed: int
    """Files and directories that were not in the checkpoint."""
    unchanged: int
    """Files and directories that were as in the checkpoint."""
    failed: list[FailedItem]
    """What could not be restored; at most 1,000."""
    duration_seconds: float
    """How long the restore took."""


CREATE = msgspec.json.Decoder(CheckpointRequest)
MAX_FAILED = 1000


@ROUTES.add(
    "POST",
    ROUTE,
    body=(CheckpointRequest,),
    is_body_optional=True,
    replies={201: (CheckpointReply,)},
    reply_headers=("Location",),
    errors=(NotFound, Conflict, PayloadTooLarge, NoSpace),
)
async def create_checkpoint(request: web.Request) -> web.Response:
    """Keep the files of directories, to compare and to restore them later."""
    parse_query(query_of(request.raw_path), NoQuery)
    parsed = parse_json(await read_body(request) or b"{}", CREATE)
    made = await _checkpoints(request).create(
        parsed.id, parsed.roots, parsed.watched, parsed.exclude
    )
    return json_reply(checkpoint_reply(made), 201, {"Location": f"{ROUTE}/{made.id}"})


@ROUTES.add("GET", ROUTE, replies={200: (CheckpointsReply,)}, errors=())
async def list_checkpoints(request: web.Request) -> web.Response:
    """All checkpoints."""
    parse_query(query_of(request.raw_path), NoQuery)
    found = _checkpoints(request).list()
    return json_reply(CheckpointsReply(items=[checkpoint_reply(each) for each in found]))


@ROUTES.add("GET", ROUTE + "/{id}", replies={200: (CheckpointReply,)})
async def get_checkpoint(request: web.Request) -> web.Response:
    """One checkpoint."""
    parse_query(query_of(request.raw_path), NoQuery)
    return json_reply(checkpoint_reply(_checkpoints(request).get(request.match_info["id"])))


@ROUTES.add("DELETE", ROUTE + "/{id}", replies={204: ()})
async def delete_checkpoint(request: web.Request) -> web.Response:
    """Remove a checkpoint with its content. Never the checkpoint `start`."""
    parse_query(query_of(request.raw_path), NoQuery)
    await _checkpoints(request).delete(request.match_info["id"])
    return web.Response(status=204)


@ROUTES.add(
    "GET",
    ROUTE + "/{id}/changes",
    query=ChangesQuery,
    replies={200: (ChangesReply, *EXPORT_TYPES.values())},
    reply_headers=("Content-Disposition",),
    errors=(NotFound, Conflict, PayloadTooLarge),
)
async def get_changes(request: web.Request) -> web.StreamResponse:
    """What has changed since a checkpoint."""
    query = parse_query(query_of(request.raw_path), ChangesQuery)
    checkpoints, checkpoint_id = _checkpoints(request), request.match_info["id"]
    if query.format != "json":
        if query.cursor is not None:
            raise InvalidArgument("cursor: only the format json has pages", field="cursor")
        async with await export(checkpoints, checkpoint_id, query.format, query.path) as exported:
            name = f"{checkpoint_id}.{query.format}"
            return await send_packed(request, exported.read, name, EXPORT_TYPES[query.format])
    after = None if query.cursor is None else decode_cursor(query.cursor)
    changes = await checkpoints.changes(checkpoint_id, query.path)
    # ten thousand changes take a while
    body = await checkpoints.threads.run(
        lambda: msgspec.json.encode(_page(changes, after, query.limit))
    )
    return web.Response(body=body, content_type="application/json")


@ROUTES.add("POST", ROUTE + "/{id}/restore", replies={200: (RestoreReply,)})
async def restore_checkpoint(request: web.Request) -> web.Response:
    """Make the files of a checkpoint as they were. Processes and watched directories stay as they
    are."""
    parse_query(query_of(request.raw_path), NoQuery)
    began_at = time.monotonic()
    done = await _checkpoints(request).restore(request.match_info["id"])
    return json_reply(
        RestoreReply(
            restored=done.restored,
            removed=done.removed,
            unchanged=done.unchanged,
            failed=[
                FailedItem(
                    path=replace_surrogates(trouble.path),
                    path_percent_encoded=percent_encoded(trouble.path),
                    message=trouble.message,
                )
                for trouble in done.troubles[:MAX_FAILED]
            ],
            duration_seconds=round(time.monotonic() - began_at, 6),
        )
    )


def _checkpoints(request: web.Request) -> Checkpoints:
    return request.app[ENGINE].checkpoints


def checkpoint_reply(found: Checkpoint) -> CheckpointReply:
    return CheckpointReply(
        id=found.id,
        created_at=rfc3339(found.created_at),
        roots=[_root_reply(root) for root in found.roots],
        watched=[_root_reply(root) for root in found.watched],
        exclude=[replace_surrogates(pattern) for pattern in found.exclude],
        bytes=found.n_bytes,
        duration_seconds=round(found.duration_seconds, 6),
    )


def _root_reply(root: CheckpointRoot) -> CheckpointRootReply:
    return CheckpointRootReply(
        path=replace_surrogates(root.path),
        path_percent_encoded=percent_encoded(root.path),
        files=root.n_files,
        bytes=root.n_bytes,
    )


def _page(changes: list[TreeChange], after: bytes | None, limit: int) -> ChangesReply:
    """``after``: the full path of the last change of the page before."""
    left = [each for each in sorted(changes, key=_key) if after is None or _key(each) > after]
    page = left[:limit]
    return ChangesReply(
        items=[_change_item(change) for change in page],
        next_cursor=encode_cursor(_key(page[-1])) if len(left) > limit else None,
    )


def _key(change: TreeChange) -> bytes:
    """The full path, in an order in which a directory comes just before its content."""
    return change.full_path.encode("utf-8", "surrogateescape").replace(b"/", b"\0")


def encode_cursor(key: bytes) -> str:
    return base64.urlsafe_b64encode(key).decode()


def decode_cursor(cursor: str) -> bytes:
    """Raises InvalidArgument."""
    try:
        key = base64.b64decode(cursor, b"-_", validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if not key.startswith(b"\0"):
        raise InvalidArgument(
            "cursor: not the next_cursor of a page: give back the string as it came", field="cursor"
        )
    return key


def _change_item(change: TreeChange) -> ChangeItem:
    path, old, new = change.full_path, change.old, change.new
    return ChangeItem(
        path=replace_surrogates(path),
        path_percent_encoded=percent_encoded(path),
        change=change.kind,
        type=change.last.type,
        size_bytes=new.size_bytes if new is not None and new.type == "file" else None,
        was_size_bytes=old.size_bytes if old is not None and old.type == "file" else None,
    )
