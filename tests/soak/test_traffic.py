"""A round of the mixed load, against the route table, and against wrong replies."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING, NamedTuple

import httpx
import pytest
from aiohttp import web

from benchmarks.soak.traffic import Client
from execd.api.routes import routes
from tests.conformance import aftermath
from tests.conformance.target import start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conformance.target import Target

JSON, NDJSON = "application/json", "application/x-ndjson"
COMPLAINTS = (AssertionError, KeyError, TypeError, ValueError, tarfile.TarError)
STORIES = [story.__name__ for story in Client("http://nowhere", "nobody").stories]


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


class Planting(httpx.HTTPTransport):
    """Replaces the bodies of the replies of a route."""

    def __init__(self, planted: Route | None = None) -> None:
        super().__init__()
        self.planted = planted
        self.replied: set[Route] = set()
        """The routes whose replies had a body."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        reply = super().handle_request(request)
        route = TABLE.find(request.method, request.url.path)
        kind = reply.headers.get("content-type", "")
        if route is None or reply.headers.get("content-length") == "0" or reply.status_code == 204:
            return reply
        self.replied.add(route)
        if route != self.planted:
            return reply
        reply.close()
        content = b'{"event": "planted"}\n' if kind in (JSON, NDJSON) else b"planted"
        return httpx.Response(reply.status_code, headers={"content-type": kind}, content=content)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Target]:
    target = start(tmp_path)
    yield target
    target.stop()


@pytest.mark.parametrize("story", STORIES)
def test_wrong_reply_of_each_route_ends_the_load(daemon: Target, story: str) -> None:
    """The viewer of a terminal is left out: a WebSocket takes another way."""

    def tell(transport: Planting, name: str) -> None:
        client = Client(daemon.url, name, transport)
        try:
            getattr(client, story)()
        finally:
            client.close()

    tell(plain := Planting(), "plain")
    assert plain.replied
    for number, route in enumerate(sorted(plain.replied)):
        with pytest.raises(COMPLAINTS):  # noqa: PT012
            tell(Planting(route), f"planted-{number}")
            pytest.fail(f"{story} does not compare the replies of {route}")
