"""A daemon for the tests of the client: EXECD_URL, or a daemon started here. The tests mirror
``clients/python/execd_client``.

Most tests run twice: at the daemon's own address, and behind a router that buffers and cuts idle
connections.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

import pytest

from execd_client import Execd
from tests.client.proxies import Router, router
from tests.conformance.target import LAUNCHER, TERMINATED, Target, elsewhere, start

if TYPE_CHECKING:
    from collections.abc import Iterator

IDLE_SECONDS = 10.0
"""A router's 30 s. Requests that may not be repeated take less, on slow machines too."""

AT_ONCE = pytest.mark.parametrize("url", ["direct"], indirect=True)
"""The test needs output while the program runs, which the router keeps back, or has a proxy of its
own."""


@pytest.fixture(autouse=True)
def nothing_leaks() -> None:
    """Replaces the guard of the whole suite: the daemon may keep children, for example workers for
    sessions."""


def own_interpreter() -> list[str]:
    """The tests' interpreter has matplotlib. A launcher's daemon cannot read that interpreter."""
    return [] if LAUNCHER else [f"--python={sys.executable}"]


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    if there := elsewhere():
        yield there
        return
    made = start(tmp_path_factory.mktemp("daemon"), *own_interpreter())
    yield made
    assert made.stop() == TERMINATED, made.log_text()


@contextlib.contextmanager
def reached(target: Target, way: str) -> Iterator[str]:
    if way == "direct":
        yield target.url
        return
    with router(target.url, IDLE_SECONDS) as made:
        yield f"http://127.0.0.1:{made.port}{Router.PREFIX}"


@pytest.fixture(scope="module", params=["direct", "router"])
def url(request: pytest.FixtureRequest, target: Target) -> Iterator[str]:
    with reached(target, request.param) as found:
        yield found


@pytest.fixture
def sandbox(url: str) -> Iterator[Execd]:
    with Execd(url) as client:
        yield client


@pytest.fixture
def outside(sandbox: Execd) -> str:
    """A directory outside of the base dir."""
    return sandbox.run("mktemp --directory /tmp/outside.XXXXXX").check().stdout.strip()
