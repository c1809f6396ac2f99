"""The supervisor's freezes, on real processes. The brake is a fake: a real brake needs a
namespace."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

from execd.proc import kernel_traits, process_tree
from execd.proc.messages import CellKilled, LimitReached, Spawn
from execd.proc.program_block import pack
from execd.proc.task_meter import TaskMeter
from execd.warden import supervisor as supervisor_module
from execd.warden.job import Job
from execd.warden.spawner import EndOfCall, Outcome
from execd.warden.supervisor import Supervisor
from execd.warden.tree_kill import Phase
from tests.gvisor import is_gvisor
from tests.patience import patience
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 64
TRAITS = kernel_traits.find()
ROOM = TRAITS.brake_burst_tasks or LIMIT + 1
"""The least room of an armed brake: in gVisor a burst, natively the limit of a tree and more."""


class QuietMeter(TaskMeter):
    """Natively the meter counts what begins on the whole machine, and neighbours begin tasks all
    the time: here the test counts instead. In gVisor the meter is the real one."""

    def __init__(self) -> None:
        self.newest_pid = 0 if is_gvisor() else 1000
        super().__init__()

    def _newest_pid(self) -> int:
        return self.newest_pid


class FakeBrake:
    exists = True

    def __init__(self) -> None:
        self.room = 0
        self.patience_seconds = 0.0
        self.fired = False

    @property
    def may_have_fired(self) -> bool:
        return self.fired

    @property
    def is_armed(self) -> bool:
        return self.room > 0

    def arm(self, count: int, room: int, patience_seconds: float) -> None:
        self.room = room
        self.patience_seconds = patience_seconds

    def record_armed(self, count: int, max_count: int) -> None:
        self.room = max_count - count

    def release(self) -> None:
        self.room = 0

    def pause(self) -> None: ...

    def resume(self) -> None: ...

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
    request = Spawn(tag, pack(["sleep"], {}, "/"), [], False, [], limit, "A=b", None, None, None)
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
def meter() -> Iterator[QuietMeter]:
    found = QuietMeter()
    yield found
    os.close(found._loadavg)  # the warden never closes the descriptor


@pytest.fixture
def supervisor(
    leader: int, meter: QuietMeter, brake: FakeBrake, channel: FakeChannel
) -> Supervisor:
    found = Supervisor(
        cast("Any", channel),
        meter,
        TRAITS,
        cast("Any", brake),
        is_init=False,
        has_pending_adoptions=lambda: False,
    )
    found.add_job(job(found, tag=1, leader=leader, limit=LIMIT))
    return found


def test_the_brake_is_armed_again_before_a_freeze_returns(
    supervisor: Supervisor, brake: FakeBrake
) -> None:
    """The freeze may continue several bombs below the limits."""
    supervisor.freeze_and_thaw()
    assert brake.room >= ROOM


def test_a_refused_fork_freezes_once_a_second_at_most(
    supervisor: Supervisor, brake: FakeBrake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal may come from a limit outside of the namespace, where no freeze makes room."""
    assert supervisor_module.ROOM_PAUSE_SECONDS == 1.0
    monkeypatch.setattr(supervisor_module, "ROOM_PAUSE_SECONDS", 3600.0)
    supervisor.end_bomb()
    assert brake.room >= ROOM
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


def test_the_end_of_a_grace_is_due_once(supervisor: Supervisor) -> None:
    """A due time in the past would keep the warden's loop busy until the tree is gone."""
    [found] = supervisor.jobs.values()
    supervisor.kill(found, 1000.0)
    assert found.kill is not None
    due = found.kill.kill_at
    found.kill.advance_clock(due)
    assert found.kill.phase is Phase.KILLING
    found.kill.kill_at = 1.0
    assert supervisor.next_due > 1.0


def test_the_end_of_a_grace_is_due_while_tasks_rise_too(supervisor: Supervisor) -> None:
    [found] = supervisor.jobs.values()
    supervisor.kill(found, 1000.0)
    assert found.kill is not None
    supervisor._is_reading_unsafe = True
    supervisor._schedule.next_count = math.inf
    assert supervisor.next_due == found.kill.kill_at


@pytest.mark.parametrize("is_reaped", [False, True])
def test_a_kill_waits_for_no_foreign_process_that_ended_before_the_read(
    supervisor: Supervisor,
    channel: FakeChannel,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_reaped: bool,
) -> None:
    """Each scan loses a process, as beside neighbours that begin and end all the time. A child of
    the warden may have left a child of its own."""
    with subprocess.Popen(["true"]) as ended:
        pass
    pids = process_tree.pids
    monkeypatch.setattr(process_tree, "pids", lambda: [*pids(), ended.pid])
    [found] = supervisor.jobs.values()
    supervisor.kill(found, 0.0, mark=0)
    for _ in range(5):
        supervisor._begin_scan()
        if is_reaped:
            supervisor.record_reaped(ended.pid)
        scan = supervisor._scan
        while supervisor._scan is scan:
            supervisor.work(time.monotonic())
    assert (channel.sent == [CellKilled(1, 0, 0, [])]) is not is_reaped


def test_without_programs_a_refused_fork_freezes_nothing(
    meter: QuietMeter, brake: FakeBrake
) -> None:
    supervisor = Supervisor(
        cast("Any", FakeChannel()),
        meter,
        TRAITS,
        cast("Any", brake),
        is_init=False,
        has_pending_adoptions=lambda: False,
    )
    brake.fired = True
    supervisor.end_bomb()
    assert brake.fired, "a freeze would have taken the brake's stop over"


def test_the_brake_waits_for_each_look_while_there_are_more_tasks_than_a_tree_may_have(
    supervisor: Supervisor, meter: QuietMeter, brake: FakeBrake
) -> None:
    """The meter counts natively the tasks that have begun, in gVisor those that live."""
    supervisor.check_for_bombs()
    assert brake.patience_seconds == 0
    with contextlib.ExitStack() as programs:
        for _ in range(LIMIT + 1):
            program = programs.enter_context(subprocess.Popen(["sleep", "1000"]))
            programs.callback(program.kill)
            meter.newest_pid += 1
        wait_until(lambda: supervisor.next_due <= time.monotonic())
        supervisor.check_for_bombs()
        assert brake.patience_seconds == TRAITS.late_seconds


def test_a_scan_during_which_the_brake_fires_is_dropped(
    supervisor: Supervisor, brake: FakeBrake, leader: int
) -> None:
    """The scan has read everything as stopped, and the next thaw would leave everything stopped."""
    os.kill(leader, signal.SIGSTOP)
    wait_until(
        lambda: (found := process_tree.read_process(leader)) is not None and found.state == "T"
    )
    brake.fired = True
    began = time.monotonic()
    while brake.fired:
        patience.check(began, 10, "the brake is armed again")
        supervisor.work(time.monotonic())
    wait_until(lambda: is_asleep(leader))


@pytest.fixture
def at_rest(meter: QuietMeter, brake: FakeBrake, channel: FakeChannel) -> Supervisor:
    """A supervisor without jobs."""
    return Supervisor(
        cast("Any", channel),
        meter,
        TRAITS,
        cast("Any", brake),
        is_init=False,
        has_pending_adoptions=lambda: False,
    )


def outcome(**fields: Any) -> Outcome:
    end_of_call = EndOfCall.CALLER_TAKES_ALL
    return Outcome(end_of_call, [], 0, None, 0, 0, None, has_more=False)._replace(**fields)


def test_starts_leave_the_brake_to_a_job_that_has_just_begun(
    supervisor: Supervisor, brake: FakeBrake
) -> None:
    assert brake.room == 0
    assert supervisor.brake_figures() is None
    assert brake.room >= ROOM


@pytest.mark.skipif(is_gvisor(), reason="only Linux tells the newest pid")
def test_starts_that_have_ended_count_no_longer(at_rest: Supervisor, meter: QuietMeter) -> None:
    before = meter.max_tasks()
    meter.newest_pid += 40
    assert meter.max_tasks() == before + 40
    at_rest.record_starts(outcome(n_forgotten=39, newest_pid=meter.newest_pid))
    assert meter.max_tasks() == before + 1


def test_a_brake_that_starts_have_armed_is_released_without_a_job(
    at_rest: Supervisor, brake: FakeBrake
) -> None:
    at_rest.record_starts(outcome(brake_order=(1, 6)))
    assert brake.room == 0
    assert at_rest.brake_figures() is not None


def test_a_brake_that_starts_have_armed_stays_armed_for_their_job(
    supervisor: Supervisor, brake: FakeBrake
) -> None:
    supervisor.record_starts(outcome(brake_order=(1, 6)))
    assert brake.room == 5


@pytest.mark.skipif(not is_gvisor(), reason="natively ended tasks count until they are forgotten")
def test_in_gvisor_a_count_needs_no_word_of_starts_that_have_ended(
    at_rest: Supervisor, meter: QuietMeter
) -> None:
    before = meter.max_tasks()
    at_rest.record_starts(outcome(n_forgotten=39))
    assert meter.max_tasks() == before


# Work beside programs in flight.


def make_count_due(supervisor: Supervisor) -> None:
    supervisor._schedule.next_count = 0.0
    assert supervisor.is_count_due


def test_a_count_that_is_no_reason_to_act_is_made_beside_starts(
    supervisor: Supervisor, brake: FakeBrake
) -> None:
    make_count_due(supervisor)
    now = time.monotonic()
    assert supervisor.work_beside_programs_in_flight(now)
    assert supervisor._schedule.next_count > now
    assert brake.room >= ROOM


def test_a_count_that_looks_like_a_bomb_is_left_to_the_loop(
    supervisor: Supervisor, meter: QuietMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_count_due(supervisor)
    n_tasks, position = meter.read()
    monkeypatch.setattr(meter, "read", lambda: (n_tasks + 10_000, position + 10_000))
    assert not supervisor.work_beside_programs_in_flight(time.monotonic())
    assert supervisor.is_count_due


def test_a_count_over_the_limit_of_a_tree_is_left_to_the_loop(
    supervisor: Supervisor, meter: QuietMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_count_due(supervisor)
    monkeypatch.setattr(meter, "read", lambda: (LIMIT + 1, 1))
    assert not supervisor.work_beside_programs_in_flight(time.monotonic())
    assert supervisor.is_count_due


def test_beside_a_kill_a_scan_or_a_stop_the_supervisor_is_not_calm(
    supervisor: Supervisor, brake: FakeBrake
) -> None:
    assert supervisor.is_calm
    brake.fired = True
    assert not supervisor.is_calm
    brake.fired = False
    supervisor._begin_scan()
    assert not supervisor.is_calm
    supervisor._scan = None
    supervisor.kill(supervisor.jobs[1], 60.0)
    assert not supervisor.is_calm


def test_a_scan_that_is_due_ends_the_starts(supervisor: Supervisor) -> None:
    # By the clock a scan may be due here already, on a slow machine.
    assert supervisor.work_beside_programs_in_flight(supervisor.next_due - 1.0)
    assert not supervisor.work_beside_programs_in_flight(supervisor.next_due + 60.0)


def test_a_sample_that_calls_for_a_scan_ends_the_starts(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    supervisor.memory.next_sample = now
    monkeypatch.setattr(supervisor.memory, "sample", lambda _accounts: True)
    assert not supervisor.work_beside_programs_in_flight(now)
    assert supervisor.next_due == 0.0, "the scan has begun"
