"""Tests of the image. Tests that need no container run everywhere; the rest look into a container
(EXECD_URL)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Look = Callable[..., str]

# Only .ci/test-image has a container, and fails when the container tests do not run.
collect_ignore_glob = [] if os.environ.get("EXECD_URL") else ["test_running_*.py"]


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(base_url=os.environ["EXECD_URL"], timeout=120, trust_env=False) as made:
        yield made


@pytest.fixture
def look(client: httpx.Client) -> Look:
    """Runs a command that must succeed (or, with ``fails``, must fail); returns the output of both
    streams without the last newline."""

    def run(command: str, fails: bool = False) -> str:
        body = client.post("/execute", json={"command": command}).raise_for_status().json()
        assert (body["exit_code"] != 0) is fails, body
        return (body["stdout"] + body["stderr"]).rstrip("\n")

    return run
