"""GET /openapi.json, which `make reference` has written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from execd.api.routes import routes
from execd.api.wire.http_server import HttpRunner
from tools.openapi.document import document

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.api.conftest import Wire


async def test_document_is_that_of_the_table(wire: Wire) -> None:
    answer = await wire.request("GET", "/openapi.json")
    assert answer.http_status == 200
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json() == document(routes())


async def test_document_has_every_route_of_the_application(wire: Wire) -> None:
    paths = (await wire.request("GET", "/openapi.json")).json()["paths"]
    documented = {(method.upper(), path) for path, item in paths.items() for method in item}
    runner = wire.client.server.runner
    assert isinstance(runner, HttpRunner)
    registered = {
        (route.method, route.resource.canonical)
        for route in runner.app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert documented == registered


async def test_document_needs_no_token_and_is_the_same_for_everyone(
    serve: Callable[..., Awaitable[Wire]],
) -> None:
    guarded = await serve(token_sha256="0" * 64)
    answer = await guarded.request("GET", "/openapi.json")
    assert (answer.http_status, answer.json()) == (200, document(routes()))


async def test_document_is_sent_once_to_a_caller_who_keeps_it(wire: Wire) -> None:
    first = await wire.request("GET", "/openapi.json")
    tag = {"If-None-Match": first.headers["ETag"]}
    again = await wire.request("GET", "/openapi.json", headers=tag)
    assert (again.http_status, again.body) == (304, b"")
    assert again.headers["ETag"] == first.headers["ETag"]
    other = await wire.request("GET", "/openapi.json", headers={"If-None-Match": '"other"'})
    assert (other.http_status, other.body) == (200, first.body)
