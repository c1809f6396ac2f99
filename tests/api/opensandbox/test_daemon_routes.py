"""Ping, metrics, isolated sessions, tokens."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest
from multidict import CIMultiDict

from execd.api.opensandbox.opensandbox_dialect import OPENSANDBOX
from execd.api.wire.auth import TokenGate
from execd.api.wire.route import Access
from tests.api.conftest import Answer, fits_row

if TYPE_CHECKING:
    from execd.api.wire.route import Route
    from tests.api.opensandbox.conftest import OpenSandbox, Serve

TOKEN = "right"
SHA256 = hashlib.sha256(TOKEN.encode()).hexdigest()
HEADER = "X-EXECD-ACCESS-TOKEN"


async def test_metrics_are_watched_line_by_line(opensandbox: OpenSandbox) -> None:
    async with opensandbox.client.get("/metrics/watch") as response:
        lines = [await response.content.readline() for _ in range(2)]
    first, second = (json.loads(line)["timestamp"] for line in lines)
    assert first < second
    # A stream without an end: ``request`` could not check the reply.
    answer = Answer(response.status, CIMultiDict(response.headers), lines[0])
    assert fits_row(answer, opensandbox.dialect, "GET", "/metrics/watch")


async def test_isolation_is_said_not_to_be_there(opensandbox: OpenSandbox) -> None:
    found = await opensandbox.get("/v1/isolated/capabilities")
    assert found["available"] is False
    assert "pod of its own" in found["message"]
    assert "runtimeInit" not in found


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PUT"])
@pytest.mark.parametrize("path", ["session", "sessions", "session/x/run", "session/x/files/info"])
async def test_everything_else_of_isolation_is_501(
    opensandbox: OpenSandbox, method: str, path: str
) -> None:
    refusal = await opensandbox.refused(method, f"/v1/isolated/{path}")
    assert refusal[:2] == (501, "NOT_SUPPORTED")


CLOSED = [route for route in OPENSANDBOX.routes if route.access is Access.TOKEN]


@pytest.mark.parametrize("route", CLOSED, ids=lambda route: route.name)
async def test_wrong_and_missing_tokens_are_401_on_every_route(
    serve_opensandbox: Serve, route: Route
) -> None:
    opensandbox = await serve_opensandbox(gate=TokenGate(SHA256))
    method = "PATCH" if route.method == "*" else route.method
    path = route.path.replace(":.*", "").replace(":[0-9]+", "").replace("{port}", "1")
    for headers in ({}, {HEADER: "wrong"}, {HEADER: ""}, {"Authorization": "Bearer wrong"}):
        answer = await opensandbox.request(method, path, b"", headers)
        assert answer.http_status == 401
        assert answer.json()["error"] == f"Unauthorized: invalid or missing header {HEADER}"
        assert answer.json().keys() == {"error", "code", "message"}


async def test_right_token_opens_the_routes_and_the_ping_needs_none(
    serve_opensandbox: Serve,
) -> None:
    opensandbox = await serve_opensandbox(gate=TokenGate(SHA256))
    assert (await opensandbox.request("GET", "/ping")).http_status == 200
    answer = await opensandbox.request("GET", "/metrics", b"", {HEADER: TOKEN})
    assert answer.http_status == 200


async def test_unknown_route_is_404_in_json(opensandbox: OpenSandbox) -> None:
    assert (await opensandbox.refused("GET", "/no/such"))[:2] == (404, "NOT_FOUND")
