"""A round of the mixed load, against the route table."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web

from benchmarks.soak.traffic import Client
from execd.api.routes import routes
from tests.conformance import aftermath
from tests.conformance.target import start

if TYPE_CHECKING:
    from pathlib import Path


class Route(NamedTuple):
    method: str
    pattern: str


class Table:
    """The routes of the daemon."""

    def __init__(self) -> None:
        app = web.Application()
        app.router.add_routes(route.definition() for route in routes())
        self._resources = list(app.router.resources())
        self.routes = {
            Route(route.method, resource.canonical)
            for resource in self._resources
            for route in resource
            if route.method != "HEAD"  # made by aiohttp for each GET
        }

    def find(self, method: str, path: str) -> Route | None:
        """The route that serves the request."""
        for resource in self._resources:
            facts = resource.get_info()
            is_served = "pattern" in facts and facts["pattern"].fullmatch(path)
            if is_served or facts.get("path") == path:
                return Route(method, resource.canonical)
        return None


TABLE = Table()


def test_round_calls_every_route_and_leaves_nothing(tmp_path: Path) -> None:
    with aftermath.judged(start(tmp_path)) as target:
        client = Client(target.url, "a")
        try:
            for _ in range(2):
                client.round()
        finally:
            client.close()
    called = {TABLE.find(method, path) for method, path in client.called}
    assert TABLE.routes - called == set()
    assert called - TABLE.routes == {None}, "an unknown path is part of the load"
