"""A real zygote, and workers forked from the zygote. The test process plays daemon and warden."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests import subreaper as subreaper_setting
from tests.kernel import harness
from tests.kernel.harness import WorkerProcess, Zygote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="package", autouse=True)
def subreaper() -> Iterator[None]:
    """Make this process the parent of orphans, as the warden is."""
    with subreaper_setting.restored():
        subreaper_setting.become_subreaper(True)
        yield


@pytest.fixture(scope="package")
def zygote(subreaper: None) -> Iterator[Zygote]:
    zygote = Zygote()
    assert zygote.ready["type"] == "ready", zygote.ready
    yield zygote
    zygote.close()


@pytest.fixture
def workers() -> Iterator[list[WorkerProcess]]:
    """A list of workers, ended after the test."""
    workers: list[WorkerProcess] = []
    yield workers
    for worker in workers:
        worker.close()
    harness.end_orphans()


@pytest.fixture
def new_worker(zygote: Zygote, workers: list[WorkerProcess]) -> Callable[..., WorkerProcess]:
    """Fork a worker and configure the worker with the options."""

    def fork(**options: Any) -> WorkerProcess:
        workers.append(zygote.fork_unconfigured())
        answer = workers[-1].configure(**options)
        assert answer["type"] == "configured", answer
        return workers[-1]

    return fork


@pytest.fixture
def worker(new_worker: Callable[..., WorkerProcess]) -> WorkerProcess:
    return new_worker()
