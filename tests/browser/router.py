"""A router in front of a daemon, as a cluster has one: a path prefix leads to the daemon."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web
from yarl import URL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


@dataclass
class Router:
    """What the router saw."""

    prefix: str
    url: str = ""
    passed: list[str] = field(default_factory=list)
    """Method and path of each request for the daemon."""
    strayed: list[str] = field(default_factory=list)
    """Requests outside of the prefix."""


@contextlib.asynccontextmanager
async def open_router(
    daemon_url: str,
    prefix: str,
    planted: Mapping[str, str] = {},  # never changed
) -> AsyncIterator[Router]:
    """``planted``: JavaScript by path, which the router sends in place of the daemon's."""
    router = Router(prefix)

    async def serve(request: web.Request) -> web.Response:
        path = request.rel_url.raw_path
        if not path.startswith(f"{prefix}/"):
            router.strayed.append(f"{request.method} {path}")
            raise web.HTTPNotFound
        path = path.removeprefix(prefix)
        router.passed.append(f"{request.method} {path}")
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP
        }
        async with client.request(
            request.method,
            URL(daemon_url + path, encoded=True),
            headers=headers,
            allow_redirects=False,
        ) as reply:
            kept = [
                (name, value)
                for name, value in reply.headers.items()
                if name.lower() not in HOP_BY_HOP
            ]
            if path in planted:
                return web.Response(text=planted[path], content_type="text/javascript")
            return web.Response(status=reply.status, headers=kept, body=await reply.read())

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", serve)
    runner = web.AppRunner(app, access_log=None)
    async with aiohttp.ClientSession(auto_decompress=False) as client:
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            router.url = f"http://{host}:{port}"
            yield router
        finally:
            await runner.cleanup()
