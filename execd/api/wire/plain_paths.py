"""The way of a request to its handler, for paths without variables.

aiohttp's router and its chain of middlewares make 27 calls for each request, 3 % of the CPU of a
command, and for a path without variables the outcome is always the same. So the outcome of the
first request is kept, and the second request of the same method and path goes straight to the
middleware and the handler. aiohttp alone decides which route serves a path.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp.typedefs import Handler, Middleware


class PlainPaths:
    """Outcomes of the router, at most one for each route. For an application with one middleware.

    Sets ``Request._match_info``, a private name of aiohttp. Reason: handlers read ``Request.app``,
    and aiohttp's hooks run by this name; only ``Application._handle`` sets the name, with the 27
    calls.
    """

    def __init__(
        self,
        route: Callable[[web.Request], Awaitable[web.StreamResponse]],
        middleware: Middleware,
    ) -> None:
        """``route``: aiohttp's own way of a request."""
        self._route = route
        self._middleware = middleware
        self._known: dict[tuple[str, str], tuple[web.UrlMappingMatchInfo, Handler]] = {}

    def serve(self, request: web.Request) -> Awaitable[web.StreamResponse]:
        # The path as sent, with the query: any other spelling is another key, and aiohttp's affair.
        key = request.method, request.raw_path
        known = self._known.get(key)
        if known is None:
            return self._serve_first(request, key)
        request._match_info, handler = known
        return handler(request)

    async def _serve_first(self, request: web.Request, key: tuple[str, str]) -> web.StreamResponse:
        response = await self._route(request)
        found = request.match_info
        assert len(found.apps) == 1, "a sub-application would have a middleware of its own"
        resource = found.route.resource
        if isinstance(resource, web.PlainResource) and key == (
            found.route.method,
            resource.canonical,
        ):
            self._known[key] = found, functools.partial(self._middleware, handler=found.handler)
        return response
