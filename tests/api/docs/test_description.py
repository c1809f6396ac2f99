"""GET /openapi.json."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from execd.api.docs.openapi import document
from execd.api.routes import routes
from execd.api.wire.http_server import HttpRunner

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


def test_server_does_not_load_the_document_before_the_first_request() -> None:
    program = "import sys, execd.server; execd.server.load_api(); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "execd.api.docs.description" in loaded
    assert not {"execd.api.docs.openapi", "execd.api.docs.examples"} & set(loaded)
