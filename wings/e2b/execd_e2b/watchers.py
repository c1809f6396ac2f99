"""Watched directories: streams for clients that follow (WatchDir), and watchers for clients that
poll (CreateWatcher, GetWatcherEvents, RemoveWatcher).

A polled watcher has no task: changes wait in the kernel's queue until the client asks. A full queue
loses changes, and the answer says so. A client that vanished leaves its watcher behind, so a
watcher without a poll for IDLE_SECONDS ends when another watcher is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import secrets
from typing import TYPE_CHECKING, Any

from execd.api.wire_api import replace_surrogates
from execd.engine.engine_api import ExecdError, InvalidArgument, NotFound, Unavailable, passwd
from execd_e2b.entries import METADATA_PREFIX, OwnerNames, WatchEvent, entry_info, watch_events

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from execd.engine.engine_api import Engine, News, Watching

IDLE_SECONDS = 3600.0
ID_BYTES = 8
"""Random bytes of a watcher's id: nobody guesses the id of another client's watcher."""
WITH_ENTRY = ("EVENT_TYPE_CREATE", "EVENT_TYPE_WRITE", "EVENT_TYPE_CHMOD")


class WatchedDirectory:
    """A watched directory, and what the client wants to know. ``close`` ends the watch."""

    def __init__(
        self, engine: Engine, path: str, watching: Watching, *, includes_entry: bool
    ) -> None:
        self._engine = engine
        self._path = path
        self._includes_entry = includes_entry
        self.watching = watching
        self.polled_at = asyncio.get_running_loop().time()

    async def poll(self) -> dict[str, Any]:
        """Return the events since the last poll."""
        self.polled_at = asyncio.get_running_loop().time()
        news = await self.watching.read_now()
        events = await self.render(news)
        reply: dict[str, Any] = {"events": events} if events else {}
        if news.missing is not None:
            reply["missing"] = news.missing  # execd's own field
        return reply

    async def follow(self, keepalive_seconds: float) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the messages of a stream, until the directory is gone. Raises Unavailable when the
        daemon ends."""
        async with contextlib.aclosing(self.watching.news(0, keepalive_seconds)) as batches:
            async for news in batches:
                if news is None:
                    yield {"keepalive": {}}
                    continue
                for event in await self.render(news):
                    yield {"filesystem": event}
                if news.missing is not None:
                    yield {"missing": {"reason": news.missing}}  # execd's own event
        if self._engine.is_draining:
            raise Unavailable("execd is shutting down; start the watch again later")

    async def render(self, news: News) -> list[dict[str, Any]]:
        events = [event for change in news.changes for event in watch_events(change)]
        names = await read_names(self._engine) if self._includes_entry and events else None
        return [await self._render(event, names) for event in events]

    async def _render(self, event: WatchEvent, names: OwnerNames | None) -> dict[str, Any]:
        told: dict[str, Any] = {"name": replace_surrogates(event.name), "type": event.kind}
        if names is not None and event.kind in WITH_ENTRY:
            path = posixpath.join(self._path, event.name)
            with contextlib.suppress(ExecdError):  # gone since, or not to be seen
                found = await self._engine.tree_files.describe_entry(path, METADATA_PREFIX)
                told["entry"] = entry_info(path, found, names)
        return told

    async def close(self) -> None:
        await self.watching.__aexit__(None, None, None)


class Watchers:
    """The polled watchers by id. ``close`` ends them all."""

    def __init__(self) -> None:
        self._watched: dict[str, WatchedDirectory] = {}

    async def add(self, watched: WatchedDirectory) -> str:
        """Keep a watcher, and return its id. Ends the watchers that nobody polls any more."""
        watcher_id = secrets.token_hex(ID_BYTES)
        self._watched[watcher_id] = watched
        await self._end_idle()
        return watcher_id

    async def _end_idle(self) -> None:
        since = asyncio.get_running_loop().time() - IDLE_SECONDS
        for watcher_id, watched in list(self._watched.items()):
            if watched.polled_at < since:
                await self.remove(watcher_id)

    def get(self, watcher_id: str) -> WatchedDirectory:
        """Raises NotFound."""
        watched = self._watched.get(watcher_id)
        if watched is None:
            raise NotFound(f"watcher with id {watcher_id[:64]} not found")
        return watched

    async def remove(self, watcher_id: str) -> None:
        """Raises NotFound."""
        self.get(watcher_id)
        await self._watched.pop(watcher_id).close()

    async def close(self) -> None:
        """End all watchers. Two ports may close at once."""
        while self._watched:
            _, watched = self._watched.popitem()
            await watched.close()


async def watch_directory(
    engine: Engine, path: str, *, recursive: bool, includes_entry: bool
) -> WatchedDirectory:
    """Begin to watch; the caller closes what is returned. Raises NotFound, InvalidArgument (not a
    directory), ResourceExhausted."""
    if (await engine.tree_files.describe(path)).kind != "directory":
        raise InvalidArgument(f"path {path!r} is not a directory", field="path")
    watching = await engine.tree_files.watch(path, recursive=recursive, sums=False)
    return WatchedDirectory(engine, path, watching, includes_entry=includes_entry)


async def read_names(engine: Engine) -> OwnerNames:
    """Read the names of users and groups."""
    return await engine.files.run(
        lambda: OwnerNames(
            passwd.names_by_number(passwd.PATH), passwd.names_by_number(passwd.GROUP_PATH)
        )
    )
