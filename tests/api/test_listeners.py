"""The listeners and the settings of their ports."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from aiohttp.test_utils import TestClient

from execd.api.listeners import LISTENERS
from execd.api.routes import PORT_8888
from execd.api.wire.auth import TokenGate
from execd.api.wire.route import Access
from execd.config import Config
from execd.errors import Unauthenticated
from tests.api.conftest import LIMITS, ExecdServer

if TYPE_CHECKING:
    from execd.api.listeners import Listener
    from execd.api.wire.route import Route
    from tests.api.shared_engine import SharedEngine

every_listener = pytest.mark.parametrize(
    "listener", LISTENERS, ids=lambda listener: next(iter(listener.names))
)


async def answers(
    listener: Listener, engine: SharedEngine, gate: TokenGate, headers: dict[str, str]
) -> list[tuple[Route, int, bytes]]:
    """The HTTP status and the body of each route, for a request without a body."""
    dialect = listener.load()
    server = ExecdServer(engine.engine, LIMITS, is_narrow=False, dialect=dialect, gate=gate)
    found = []
    async with TestClient(server) as client, asyncio.timeout(60):
        for route in dialect.routes:
            path = re.sub(r"\{.*?\}(?:\)\})?", "x", route.path)
            method = "PUT" if route.method == "*" else route.method
            async with client.request(method, path, headers=headers) as response:
                found.append((route, response.status, await response.read()))
    return found


def test_each_listener_names_settings_and_loads_its_dialect() -> None:
    names = [name for listener in LISTENERS for name in listener.names]
    assert len(set(names)) == len(names)
    assert set(names) <= set(Config.__struct_fields__)
    assert all(listener.load().routes for listener in LISTENERS)


def test_port_8888_is_opened_last() -> None:
    assert LISTENERS[-1].load() is PORT_8888
    ports = LISTENERS[-1].ports(Config(port=1, sandboxd_rest_port=2))
    assert ports == [("sandboxd REST", 2), ("", 1)]


def test_a_dialect_whose_port_is_unset_is_not_imported() -> None:
    program = (
        "import sys, execd.server\nexecd.server.load_api()\n"
        "names = [name.split('.') for name in sys.modules if name.startswith('execd.api.')]\n"
        "print(*sorted({name[2] for name in names if len(name) > 3}))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert found.stdout.split() == [b"docs", b"probes", b"python_runtime", b"v1", b"wire"]


def test_a_listener_without_its_setting_has_no_port() -> None:
    config = Config()
    assert [len(listener.ports(config)) for listener in LISTENERS] == [
        *(0 for _ in LISTENERS[:-1]),
        1,
    ]


@every_listener
@pytest.mark.parametrize("token", [None, "wrong"])
async def test_each_route_of_a_listener_needs_the_token_as_the_table_says(
    listener: Listener, token: str | None, shared_engine: SharedEngine
) -> None:
    headers = {} if token is None else {"Authorization": f"Bearer {token}", "X-Access-Token": token}
    dialect = listener.load()
    for route, http_status, body in await answers(
        listener, shared_engine, TokenGate("0" * 64), headers
    ):
        if route.access is not Access.TOKEN:
            assert http_status != 401, route.name
            continue
        message = "a valid access token is required" if token else "an access token is required"
        expected = dialect.renderers(route.path).render(Unauthenticated(message))
        assert (http_status, body) == (expected.status, expected.body), route.name
        assert http_status == 401


@every_listener
async def test_before_an_awaited_init_a_listener_serves_probes_and_the_init_only(
    listener: Listener, shared_engine: SharedEngine
) -> None:
    gate = TokenGate(None, awaits_init=True)
    for route, http_status, body in await answers(listener, shared_engine, gate, {}):
        if route.access in (Access.PROBE, Access.INIT):
            continue
        assert http_status == 503, route.name
        assert b"waits for the init" in body
    assert gate.awaits_init
