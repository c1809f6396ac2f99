"""Changes of files as a stream of events, below the base dir.

GET /v1/watch/{path}?recursive=true&debounce_seconds=0.25
    Accept: text/event-stream (also the default), or application/x-ndjson

watching  {"path","recursive","directories","complete"}     changes from now on are reported
changes   {"changes":[{"type","path","is_directory","old_path"?}]}
overflow  {"reason"}          changes were lost: the client must look at the files
gone      {}                  the watched file or directory is gone; the stream ends
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from execd.api.v1.file_operations import path_fields
from execd.api.wire import encoders, streams
from execd.api.wire.encoders import WireEvent
from execd.api.wire.fields import parse_query
from execd.api.wire.keys import ENGINE
from execd.api.wire.targets import path_below, query_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from execd.engine.files.service import Change
    from execd.engine.files.watching import Watching

ROUTE = "/v1/watch"
# A larger batch becomes several events, because an event is encoded in a single turn of the event
# loop: 10,000 changes would take about 50 ms.
CHANGES_PER_EVENT = 500


class WatchQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    recursive: bool = False
    debounce_seconds: Annotated[float, Meta(ge=0, le=60)] = 0.25


def routes() -> list[web.RouteDef]:
    return [web.get(ROUTE, watch), web.get(ROUTE + "/{path:(?s:.*)}", watch)]


async def watch(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    query = parse_query(query_of(request.raw_path), WatchQuery)
    encoder = (
        encoders.choose_encoder(request.headers.get("Accept", "")) or encoders.ServerSentEvents()
    )
    async with await engine.sandboxd_files.watch(
        path_below(request.raw_path, ROUTE), recursive=query.recursive
    ) as watching:
        if request.method == "HEAD":
            return web.Response(content_type=encoder.content_type)
        return await streams.send_events(
            request,
            encoder,
            _events(
                watching,
                query,
                engine.config.stream_heartbeat_seconds,
                is_continued="Last-Event-ID" in request.headers,
            ),
            stall_seconds=engine.config.stream_stall_seconds,
            on_stall=lambda: None,
            headers={},
        )


async def _events(
    watching: Watching, query: WatchQuery, heartbeat_seconds: float, *, is_continued: bool
) -> AsyncGenerator[WireEvent | None, None]:
    sequence = 1
    fields = {
        "recursive": query.recursive,
        "directories": watching.n_directories,
        "complete": watching.is_complete,
    }
    yield WireEvent(sequence, "watching", {**path_fields(_text(watching.place)), **fields})
    if is_continued:  # a returning browser has missed changes
        sequence += 1
        yield WireEvent(sequence, "overflow", {"reason": "reconnect"})
    async for news in watching.news(query.debounce_seconds, heartbeat_seconds):
        if news is None:
            yield None
            continue
        for begin in range(0, len(news.changes), CHANGES_PER_EVENT):
            sequence += 1
            changes = news.changes[begin : begin + CHANGES_PER_EVENT]
            yield WireEvent(
                sequence, "changes", {"changes": [_fields(change) for change in changes]}
            )
        if news.missing is not None:
            sequence += 1
            yield WireEvent(sequence, "overflow", {"reason": news.missing})
        if news.is_over:
            sequence += 1
            yield WireEvent(sequence, "gone", {})


def _fields(change: Change) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "type": change.kind,
        **path_fields(_text(change.path)),
        "is_directory": change.is_directory,
    }
    if change.old_path is not None:
        fields["old_path"] = path_fields(_text(change.old_path))["path"]
    return fields


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
