"""When the warden's looks meet the brake, on a real process; the brake is a fake, for a real one
needs a namespace."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

from execd.proc import process_tree
from execd.proc.messages import Spawn
from execd.proc.task_meter import TaskMeter
from execd.warden.fork_bombs import LATE_SECONDS
from execd.warden.job import Job
from execd.warden.supervisor import Supervisor
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 64


class FakeBrake:
    def __init__(self) -> None:
        self.room = 0
        self.patience_seconds = 0.0
        self.fired = False

    def arm(self, position: int, limit: int, patience_seconds: float) -> None:
        self.room = limit - position
        self.patience_seconds = patience_seconds

    def release(self) -> None:
        self.room = 0

    def has_stopped(self) -> bool:
        fired, self.fired = self.fired, False
        return fired


class Mute:
    def send(self, message: object) -> None:
        raise AssertionError(f"nothing is to be told: {message}")


@pytest.fixture
def leader() -> Iterator[int]:
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def brake() -> FakeBrake:
    return FakeBrake()


@pytest.fixture
def supervisor(leader: int, brake: FakeBrake) -> Iterator[Supervisor]:
    meter = TaskMeter()
    found = Supervisor(cast("Any", Mute()), meter, cast("Any", brake), is_init=False)
    request = Spawn(1, ["sleep"], {}, "/", [], False, [], LIMIT, "A=b", None, None, None)
    account = found.memory.open_account(1, 0)
    process = process_tree.read_process(leader)
    assert process is not None
    found.begin(
        Job(
            request,
            leader,
            process.start,
            frozenset(),
            account,
            spawned_at=time.monotonic(),
            session=leader,
        )
    )
    yield found
    os.close(meter.loadavg_fd)


def test_the_brake_is_armed_again_before_a_freeze_returns(
    supervisor: Supervisor, brake: FakeBrake
) -> None:
    """What a freeze continues may be several bombs, each of them below its limit yet."""
    supervisor.freeze(greetings=False)
    assert brake.room > LIMIT


def test_the_brake_waits_for_each_look_while_there_are_more_tasks_than_a_tree_may_have(
    supervisor: Supervisor, brake: FakeBrake
) -> None:
    """The meter counts this whole machine natively: more tasks than the limit once so many have
    begun."""
    supervisor.look_for_bombs(greetings=False)
    assert brake.patience_seconds == 0
    for _ in range(LIMIT + 1):
        subprocess.run(["true"], check=True)
    wait_until(lambda: supervisor.due() <= time.monotonic())
    supervisor.look_for_bombs(greetings=False)
    assert brake.patience_seconds == LATE_SECONDS


def test_a_scan_during_which_the_brake_fires_is_dropped(
    supervisor: Supervisor, brake: FakeBrake, leader: int
) -> None:
    """Such a scan has read that everybody is stopped, and the next thaw would leave everybody
    so."""
    os.kill(leader, signal.SIGSTOP)
    wait_until(
        lambda: (found := process_tree.read_process(leader)) is not None and found.state == "T"
    )
    brake.fired = True
    deadline = time.monotonic() + 10
    while brake.fired and time.monotonic() < deadline:
        supervisor.work(time.monotonic(), greetings=False)
    assert not brake.fired
    wait_until(
        lambda: (found := process_tree.read_process(leader)) is not None and found.state == "S"
    )
