from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from execd.engine.executions.context import EngineContext
from execd.model import Limits
from tests.engine.conftest import make_config

if TYPE_CHECKING:
    from pathlib import Path


class FakeStore:
    """As much of the state dir as a log needs."""

    def __init__(self) -> None:
        self.spools: list[tuple[str, int]] = []

    def spool(self, name: str, max_bytes: int) -> Any:
        self.spools.append((name, max_bytes))
        return SimpleNamespace(adopt=lambda: None, size_bytes=0)


@pytest.mark.parametrize(("asked_bytes", "log_bytes"), [(None, 1000), (0, 0), (70, 70)])
def test_a_log_has_the_size_asked_for_or_else_that_of_the_settings(
    tmp_path: Path, asked_bytes: int | None, log_bytes: int
) -> None:
    store, context = FakeStore(), EngineContext()
    context.config, context.store = make_config(tmp_path, log_bytes=1000), cast("Any", store)
    log = context.make_log("x", Limits(log_bytes=asked_bytes))
    log.streams["stderr"].restore(None)
    assert store.spools == [("x.stderr", log_bytes)]
