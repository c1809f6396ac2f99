"""The guard between the tests of this folder, on planted leaks."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.api import shared_engine as module
from tests.api.conftest import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.api.conftest import Wire
    from tests.api.shared_engine import SharedEngine


def kinds(shared: SharedEngine) -> set[str]:
    return {line.split()[0] for line in shared.left_behind()}


def leave_a_file(wire: Wire) -> None:
    (wire.base_dir / "left").touch()


def leave_a_session(wire: Wire) -> None:
    wire.engine.sessions.declare(session_id="left")


@pytest.mark.parametrize(("leave", "kind"), [(leave_a_file, "file"), (leave_a_session, "session")])
async def test_leak_is_named_and_ended(
    wire: Wire, shared_engine: SharedEngine, leave: Callable[[Wire], None], kind: str
) -> None:
    leave(wire)
    assert kinds(shared_engine) == {kind}
    await shared_engine.reset()
    assert shared_engine.left_behind() == []


async def test_leak_that_cannot_be_ended_fails_its_test(
    wire: Wire, shared_engine: SharedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAK_DEADLINE_SECONDS", 0.1)
    lease = wire.engine.in_flight.lease()
    lease.resize(1_000_000)
    monkeypatch.setattr(wire.engine, "is_draining", True)
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            with pytest.raises(AssertionError) as caught:
                await shared_engine.reset()
        finally:
            process.kill()
    lease.release()
    for leak in "process", "bytes in flight", "takes no commands":
        assert leak in str(caught.value)
    monkeypatch.undo()
    await wait_until(lambda: not shared_engine.left_behind(), "all has ended")
