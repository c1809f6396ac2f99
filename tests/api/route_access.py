"""What each dialect promises: its routes need the token, and wait for an awaited init, as its table
says."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from aiohttp.test_utils import TestClient

from execd.api.wire.auth import TokenGate
from execd.api.wire.route import Access
from execd.errors import Unauthenticated
from tests.api.conftest import LIMITS, ExecdServer

if TYPE_CHECKING:
    from execd.api.wire.port import HttpService
    from execd.api.wire.route import Route
    from tests.api.shared_engine import SharedEngine


async def answers(
    dialect: HttpService, engine: SharedEngine, gate: TokenGate, headers: dict[str, str]
) -> list[tuple[Route, int, bytes]]:
    """The HTTP status and the body of each route, for a request without a body."""
    server = ExecdServer(engine.engine, LIMITS, is_narrow=False, dialect=dialect, gate=gate)
    found = []
    async with TestClient(server) as client, asyncio.timeout(60):
        for route in dialect.routes:
            path = re.sub(r"\{.*?\}(?:\)\})?", "x", route.path)
            method = "PUT" if route.method == "*" else route.method
            async with client.request(method, path, headers=headers) as response:
                found.append((route, response.status, await response.read()))
    return found


async def assert_the_token_is_needed(
    dialect: HttpService, engine: SharedEngine, token: str | None
) -> None:
    """``token``: a wrong one, or none."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}", "X-Access-Token": token}
    for route, http_status, body in await answers(dialect, engine, TokenGate("0" * 64), headers):
        if not route.needs_token:
            assert http_status != 401, route.name
            continue
        message = "a valid access token is required" if token else "an access token is required"
        expected = dialect.renderers(route.path).render(Unauthenticated(message))
        assert (http_status, body) == (expected.status, expected.body), route.name
        assert http_status == 401


async def assert_the_init_is_awaited(dialect: HttpService, engine: SharedEngine) -> None:
    gate = TokenGate(None)
    gate.await_init()
    for route, http_status, body in await answers(dialect, engine, gate, {}):
        if route.access in (Access.PROBE, Access.INIT):
            continue
        assert http_status == 503, route.name
        assert b"waits for the init" in body
    assert gate.awaits_init
