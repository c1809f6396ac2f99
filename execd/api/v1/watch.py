"""Changes of files as a stream of events, below the base dir. Paths of changes are relative to the
watched directory; a single watched file has its name.

GET /v1/watch/{path}?recursive=true&debounce_seconds=0.25
    Accept: text/event-stream (also the default), or application/x-ndjson

watching  {"path","recursive","directories","complete"}     changes from now on are reported
changes   {"changes":[{"type","path","is_directory","old_path"?}]}
overflow  {"reason"}          changes were lost: the client must look at the files
gone      {}                  the watched file or directory is gone; the stream ends

A stream without ``gone`` at its end was ended by the daemon, which is shutting down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from execd.api.v1.file_reply import (
    ChangesEvent,
    GoneEvent,
    OverflowEvent,
    WatchingEvent,
    decoded,
    file_change,
    percent_encoded,
)
from execd.api.wire import encoders, streams
from execd.api.wire.encoders import WireEvent
from execd.api.wire.fields import parse_query
from execd.api.wire.keys import ENGINE
from execd.api.wire.replies import replace_surrogates
from execd.api.wire.route import PATH, RouteTable
from execd.api.wire.targets import path_below, query_of
from execd.errors import Conflict, NotFound, ResourceExhausted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from execd.engine.files.watching import Watching

ROUTE = "/v1/watch"
ROUTES = RouteTable()
# A larger batch becomes several events, because an event is encoded in a single turn of the event
# loop: 10,000 changes would take about 50 ms.
CHANGES_PER_EVENT = 500


class WatchQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    recursive: bool = False
    """Watch the directories below too."""
    debounce_seconds: Annotated[float, Meta(ge=0, le=60)] = 0.25
    """How long changes are gathered after the first one, in seconds."""


EVENTS: dict[str, type] = {
    "watching": WatchingEvent,
    "changes": ChangesEvent,
    "overflow": OverflowEvent,
    "gone": GoneEvent,
}


@ROUTES.add(
    "GET",
    {"watch_base_dir": ROUTE, "watch_path": ROUTE + PATH},
    query=WatchQuery,
    headers=("Last-Event-ID",),
    replies={},
    events=EVENTS,
    errors=(NotFound, Conflict, ResourceExhausted),
)
async def watch(request: web.Request) -> web.StreamResponse:
    """Stream the changes of files."""
    engine = request.app[ENGINE]
    query = parse_query(query_of(request.raw_path), WatchQuery)
    encoder = encoders.choose_stream_encoder(request.headers.get("Accept", ""))
    async with await engine.sandboxd_files.watch(
        path_below(request.raw_path, ROUTE), recursive=query.recursive
    ) as watching:
        if request.method == "HEAD":
            return web.Response(content_type=encoder.content_type, charset=encoder.charset)
        return await streams.send_events(
            request,
            encoder,
            _events(
                watching,
                query,
                engine.config.stream_heartbeat_seconds,
                is_continued="Last-Event-ID" in request.headers,
            ),
        )


async def _events(
    watching: Watching, query: WatchQuery, heartbeat_seconds: float, *, is_continued: bool
) -> AsyncGenerator[WireEvent | None, None]:
    sequence = 1
    place = "/" + decoded(watching.place)
    started = WatchingEvent(
        path=replace_surrogates(place),
        path_percent_encoded=percent_encoded(place),
        recursive=query.recursive,
        directories=watching.n_directories,
        complete=watching.is_complete,
    )
    yield WireEvent(sequence, "watching", started)
    if is_continued:  # a returning browser has missed changes
        sequence += 1
        yield WireEvent(sequence, "overflow", OverflowEvent(reason="reconnect"))
    async for news in watching.news(query.debounce_seconds, heartbeat_seconds):
        if news is None:
            yield None
            continue
        for begin in range(0, len(news.changes), CHANGES_PER_EVENT):
            sequence += 1
            changes = news.changes[begin : begin + CHANGES_PER_EVENT]
            told = ChangesEvent(changes=[file_change(change) for change in changes])
            yield WireEvent(sequence, "changes", told)
        if news.missing is not None:
            sequence += 1
            yield WireEvent(sequence, "overflow", OverflowEvent(reason=news.missing))
        if news.is_over:
            sequence += 1
            yield WireEvent(sequence, "gone", GoneEvent())
