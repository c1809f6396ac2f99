"""The kept outcomes of aiohttp's router."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from execd.api.wire.plain_paths import PlainPaths

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler


class Site:
    """An application behind ``PlainPaths``; counts what goes by aiohttp's router."""

    def __init__(self) -> None:
        @web.middleware
        async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                return web.Response(status=error.status)
            response.headers["X-Seen"] = "middleware"
            return response

        async def show(request: web.Request) -> web.Response:
            assert request.app is self.app
            words = [request.path, request.query_string, *request.match_info.values()]
            return web.Response(text=" ".join(filter(None, words)))

        async def refuse(_request: web.Request) -> web.Response:
            raise web.HTTPConflict

        self.app = web.Application(middlewares=[middleware])
        self.app.router.add_get("/plain", show)
        self.app.router.add_post("/plain", refuse)
        self.app.router.add_get("/named/{name}", show)
        self.app.router.add_route("*", "/any", show)
        self.app.freeze()
        self.n_routed = 0
        self.paths = PlainPaths(self._route, middleware)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        self.n_routed += 1
        return await self.app._handle(request)

    async def get(self, path: str, method: str = "GET") -> web.Response:
        response = await self.paths.serve(make_mocked_request(method, path))
        assert isinstance(response, web.Response)
        return response


async def test_the_second_request_of_a_plain_path_does_not_meet_the_router() -> None:
    site = Site()
    for _ in range(3):
        response = await site.get("/plain")
        assert (response.text, response.headers["X-Seen"]) == ("/plain", "middleware")
    assert site.n_routed == 1
    for _ in range(3):
        assert (await site.get("/plain", "POST")).status == 409
    assert site.n_routed == 2


@pytest.mark.parametrize(
    ("method", "path", "http_status", "text"),
    [
        ("GET", "/named/a", 200, "/named/a a"),
        ("GET", "/plain?q=1", 200, "/plain q=1"),
        ("GET", "/%70lain", 200, "/plain"),
        ("GET", "/any", 200, "/any"),
        ("BREW", "/any", 200, "/any"),
        ("GET", "/nothing", 404, None),
        ("PUT", "/plain", 405, None),
    ],
    ids=["variable", "query", "escape", "any method", "strange method", "no route", "no method"],
)
async def test_any_other_request_is_routed_each_time(
    method: str, path: str, http_status: int, text: str | None
) -> None:
    """Nothing that a peer chooses makes the store of outcomes grow."""
    site = Site()
    for _ in range(2):
        response = await site.get(path, method)
        assert (response.status, response.text) == (http_status, text)
    assert site.n_routed == 2
    assert site.paths._known == {}
