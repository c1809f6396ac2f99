from __future__ import annotations

from typing import TYPE_CHECKING

from tests.api.route_access import assert_the_init_is_awaited, assert_the_token_is_needed

if TYPE_CHECKING:
    from tests.api.shared_engine import SharedEngine
import pytest

from execd_opensandbox.opensandbox_dialect import make_service, runs_something
from execd_opensandbox.settings import Settings


@pytest.mark.parametrize(
    ("method", "canonical", "runs"),
    [
        ("POST", "/command", True),
        ("DELETE", "/command", False),
        ("POST", "/session/{id}/run", True),
        ("POST", "/code", True),
        ("DELETE", "/code", False),
        ("GET", "/metrics/watch", True),
        ("GET", "/pty/{id}/ws", True),
        ("POST", "/proxy/{port}", True),
        ("GET", "/files/info", False),
        ("POST", "/files/upload", False),
    ],
)
def test_a_route_runs_something_by_its_method_and_pattern(
    method: str, canonical: str, runs: bool
) -> None:
    """On other routes a half-close is no leave: a client that closes its half after an upload gets
    the reply."""
    assert runs_something(method, canonical) is runs


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_each_route_needs_the_token_as_the_table_says(
    token: str | None, shared_engine: SharedEngine
) -> None:
    await assert_the_token_is_needed(make_service(Settings()), shared_engine, token)


async def test_before_an_awaited_init_only_probes_and_the_init_are_served(
    shared_engine: SharedEngine,
) -> None:
    await assert_the_init_is_awaited(make_service(Settings()), shared_engine)
