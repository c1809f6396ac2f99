from __future__ import annotations

import pytest

from execd.api.opensandbox.opensandbox_dialect import runs_something


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
