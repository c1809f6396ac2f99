"""The two routers of agent-sandbox as a daemon and its callers meet them, in a few lines each.

Both find the daemon by the headers X-Sandbox-Pod-IP and X-Sandbox-Port, and take ``Authorization``
away. The facts are of agent-sandbox 2fd412d55 (2026-08-22).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx
from aiohttp import web
from yarl import URL

from ..client.proxies import Router

if TYPE_CHECKING:
    from pathlib import Path

DROPPED = {"authorization", "connection", "host", "keep-alive", "te", "trailer", "upgrade"}


class GoRouter(Router):
    """``sandbox-router``: gives up when an answer has no headers within ``header_seconds`` (30 by
    default), passes on each piece of a body at once, and builds the path anew from the decoded
    path, so that ``%2F`` arrives as ``/``."""

    PREFIX = ""

    def __init__(self, header_seconds: float) -> None:
        super().__init__("", header_seconds)
        self._header_seconds = header_seconds

    def _upstream(self, request: web.Request) -> tuple[URL, dict[str, str]]:
        url = URL.build(
            scheme="http",
            host=request.headers["X-Sandbox-Pod-IP"],
            port=int(request.headers["X-Sandbox-Port"]),
            path=request.rel_url.path,
            query_string=request.rel_url.raw_query_string,
        )
        dropped = {*DROPPED, "origin", "transfer-encoding"}
        headers = {k: v for k, v in request.headers.items() if k.lower() not in dropped}
        return url, {**headers, "X-Forwarded-For": request.remote or ""}

    async def _exchange(
        self, request: web.Request, url: URL, headers: dict[str, str]
    ) -> web.StreamResponse:
        body = request.content.iter_any() if request.body_exists else None
        try:
            async with asyncio.timeout(self._header_seconds):
                reply = await self._session.request(
                    request.method, url, headers=headers, data=body, allow_redirects=False
                )
        except TimeoutError:
            return web.Response(status=502, text="Could not connect to the backend sandbox")
        async with reply:
            answered = await self._send(request, reply, None, bytearray())
            async for piece in reply.content.iter_any():
                await answered.write(piece)
            await answered.write_eof()
        return answered


class PythonRouter(Router):
    """``sandbox_router.py``, FastAPI over httpx: httpx does not know how long the body is that the
    router passes on, so that every request without Content-Length arrives in chunks, GET too."""

    PREFIX = ""
    METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH")
    TOTAL_SECONDS = 180.0

    def __init__(self) -> None:
        super().__init__("", self.TOTAL_SECONDS)

    async def begin(self, uds: Path | None = None) -> None:
        self._client = httpx.AsyncClient(timeout=self.TOTAL_SECONDS, trust_env=False)
        await super().begin(uds)

    async def end(self) -> None:
        try:
            await self._client.aclose()
        finally:
            await super().end()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        if request.method not in self.METHODS:
            raise web.HTTPMethodNotAllowed(request.method, self.METHODS)
        host, port = request.headers["X-Sandbox-Pod-IP"], request.headers["X-Sandbox-Port"]
        kept = [
            (k, v)
            for k, v in request.headers.items()
            if k.lower() not in {*DROPPED, "transfer-encoding"}
            and not k.lower().startswith("x-sandbox-")
        ]
        passed_on = self._client.build_request(
            request.method,
            f"http://{host}:{port}{request.raw_path}",
            headers=kept,
            content=request.content.iter_any(),
        )
        self.seen.append(dict(passed_on.headers))
        reply = await self._client.send(passed_on, stream=True)
        try:
            answered = web.StreamResponse(status=reply.status_code)
            for name, value in reply.headers.multi_items():
                if name not in ("connection", "transfer-encoding"):
                    answered.headers.add(name, value)
            await answered.prepare(request)
            async for piece in reply.aiter_raw():
                await answered.write(piece)
            await answered.write_eof()
        finally:
            await reply.aclose()
        return answered
