"""Metrics, isolated sessions, tokens."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest
from multidict import CIMultiDict

from execd.api.wire.auth import TokenGate
from tests.api.conftest import Answer, fits_row

if TYPE_CHECKING:
    from wings.opensandbox.tests.conftest import OpenSandbox, Serve

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


async def test_right_token_opens_the_routes_and_the_ping_needs_none(
    serve_opensandbox: Serve,
) -> None:
    opensandbox = await serve_opensandbox(gate=TokenGate(SHA256))
    assert (await opensandbox.request("GET", "/ping")).http_status == 200
    answer = await opensandbox.request("GET", "/metrics", b"", {HEADER: TOKEN})
    assert answer.http_status == 200


async def test_unknown_route_is_404_in_json(opensandbox: OpenSandbox) -> None:
    assert (await opensandbox.refused("GET", "/no/such"))[:2] == (404, "NOT_FOUND")
