"""A real zygote, and workers forked from it; the test process is daemon and warden to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sessions import harness
from tests.sessions.harness import WorkerProcess, Zygote

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="package", autouse=True)
def subreaper() -> Iterator[None]:
    """Orphans come to this process, as they come to the warden."""
    harness.become_subreaper(True)
    yield
    harness.become_subreaper(False)


@pytest.fixture(scope="package")
def zygote(subreaper: None) -> Iterator[Zygote]:
    zygote = Zygote()
    assert zygote.ready["type"] == "ready", zygote.ready
    yield zygote
    zygote.close()


@pytest.fixture
def worker(zygote: Zygote) -> Iterator[WorkerProcess]:
    worker = zygote.fork()
    yield worker
    worker.close()
    harness.end_orphans()
