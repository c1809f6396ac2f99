"""The supervisor's freezes, on real processes. The brake is a fake: a real brake needs a
namespace."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

from execd.proc import process_tree
from execd.proc.messages import LimitReached, Spawn
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

    def take_stop(self) -> bool:
        fired, self.fired = self.fired, False
        return fired


class FakeChannel:
    def __init__(self) -> None:
        self.sent: list[object] = []

    def send(self, message: object) -> None:
        self.sent.append(message)


@pytest.fixture
def leader() -> Iterator[int]:
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def brake() -> FakeBrake:
    return FakeBrake()


@pytest.fixture
def channel() -> FakeChannel:
    return FakeChannel()


def job(supervisor: Supervisor, *, tag: int, leader: int, limit: int) -> Job:
    request = Spawn(tag, ["sleep"], {}, "/", [], False, [], limit, "A=b", None, None, None)
    process = process_tree.read_process(leader)
    assert process is not None
    return Job(
        request,
        leader,
        process.start,
        frozenset(),
        supervisor.memory.open_account(tag, 0),
        spawned_at=time.monotonic(),
        session=leader,
    )


def is_asleep(pid: int) -> bool:
    process = process_tree.read_process(pid)
    return process is not None and process.state == "S"


@pytest.fixture
def supervisor(leader: int, brake: FakeBrake, channel: FakeChannel) -> Iterator[Supervisor]:
    meter = TaskMeter()
    found = Supervisor(
        cast("Any", channel),
        meter,
        cast("Any", brake),
        is_init=False,
        has_pending_adoptions=lambda: False,
    )
    found.add_job(job(found, tag=1, leader=leader, limit=LIMIT))
    yield found
    os.close(meter.loadavg_fd)


def test_the_brake_is_armed_again_before_a_freeze_returns(
    supervisor: Supervisor, brake: FakeBrake
) -> None:
    """The freeze may continue several bombs below the limits."""
    supervisor.freeze_and_thaw()
    assert brake.room > LIMIT


def test_a_refused_fork_freezes_once_a_second_at_most(
    supervisor: Supervisor, brake: FakeBrake
) -> None:
    """The refusal may come from a limit outside of the namespace, where no freeze makes room."""
    supervisor.end_bomb()
    assert brake.room > LIMIT
    brake.room = 0
    supervisor.end_bomb()
    assert brake.room == 0


def test_a_refused_fork_ends_the_tree_that_is_over_its_limit(
    supervisor: Supervisor, channel: FakeChannel, leader: int
) -> None:
    with subprocess.Popen(
        ["sh", "-c", "sleep 1000 & echo; wait"], start_new_session=True, stdout=subprocess.PIPE
    ) as bomb:
        assert bomb.stdout is not None
        bomb.stdout.readline()
        supervisor.add_job(job(supervisor, tag=2, leader=bomb.pid, limit=1))
        supervisor.end_bomb()
        assert bomb.wait(10) == -signal.SIGKILL
    assert channel.sent == [LimitReached(2, "processes", 2)]
    wait_until(lambda: is_asleep(leader))


def test_without_programs_a_refused_fork_freezes_nothing(brake: FakeBrake) -> None:
    meter = TaskMeter()
    supervisor = Supervisor(
        cast("Any", FakeChannel()),
        meter,
        cast("Any", brake),
        is_init=False,
        has_pending_adoptions=lambda: False,
    )
    brake.fired = True
    supervisor.end_bomb()
    assert brake.fired, "a freeze would have taken the brake's stop over"
    os.close(meter.loadavg_fd)


def test_the_brake_waits_for_each_look_while_there_are_more_tasks_than_a_tree_may_have(
    supervisor: Supervisor, brake: FakeBrake
) -> None:
    """The meter counts this whole machine natively: more tasks than the limit once so many have
    begun."""
    supervisor.check_for_bombs()
    assert brake.patience_seconds == 0
    for _ in range(LIMIT + 1):
        subprocess.run(["true"], check=True)
    wait_until(lambda: supervisor.next_due <= time.monotonic())
    supervisor.check_for_bombs()
    assert brake.patience_seconds == LATE_SECONDS


def test_a_scan_during_which_the_brake_fires_is_dropped(
    supervisor: Supervisor, brake: FakeBrake, leader: int
) -> None:
    """The scan has read everything as stopped, and the next thaw would leave everything stopped."""
    os.kill(leader, signal.SIGSTOP)
    wait_until(
        lambda: (found := process_tree.read_process(leader)) is not None and found.state == "T"
    )
    brake.fired = True
    deadline = time.monotonic() + 10
    while brake.fired and time.monotonic() < deadline:
        supervisor.work(time.monotonic())
    assert not brake.fired
    wait_until(lambda: is_asleep(leader))
