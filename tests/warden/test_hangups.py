"""The guard against gVisor's hangups, on real orphans. What gVisor does with the orphans:
``tests/conformance/test_attacks.py``."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any, cast

import psutil
import pytest

from execd.proc import spawn
from execd.warden.hangups import HangupGuard
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


class FakeJob:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.is_guarded_from_hangups = False
        self.first_orphans: tuple[int, int] | None = None
        self.kill: object = None


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[bytes]]:
    """A command that makes an orphan for each line of its input, and answers when the orphan's
    parent is reaped."""
    spawn.set_subreaper()
    with subprocess.Popen(
        ["sh", "-c", "while read line; do (true &); echo; done"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,
    ) as process:
        yield process
        process.kill()


@pytest.fixture
def job(leader: subprocess.Popen[bytes]) -> FakeJob:
    return FakeJob(leader.pid)


class Machine:
    """What the guard needs of the warden. ``is_still``: nothing is stopped."""

    def __init__(self) -> None:
        self.groups: list[int] = []
        self.reaped: list[int] = []
        self.is_still, self.is_paused = True, False
        self.error: OSError | None = None

    def add_orphan(self, group: int) -> int:
        assert not self.is_paused
        if self.error:
            raise self.error
        self.groups.append(group)
        return spawn.add_orphan(group)

    def pause_brake(self) -> bool:
        self.is_paused = True
        return self.is_still

    def resume_brake(self) -> None:
        self.is_paused = False

    def reap(self, pid: int, woken_at: float) -> bool:
        """Only the first orphan and the added orphan need the pause."""
        assert woken_at == 1.0
        self.reaped.append(os.waitpid(pid, 0)[0])
        return True

    def guard(self, leaders: dict[int, FakeJob]) -> HangupGuard:
        return HangupGuard(cast("Any", leaders), self, self.add_orphan, self.reap)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def guard(job: FakeJob, machine: Machine) -> HangupGuard:
    return machine.guard({job.pid: job})


def make_orphan(leader: subprocess.Popen[bytes]) -> None:
    assert leader.stdin is not None
    assert leader.stdout is not None
    leader.stdin.write(b"\n")
    leader.stdin.flush()
    assert leader.stdout.readline() == b"\n"


def reap(guard: HangupGuard, machine: Machine, count: int) -> None:
    """Reap exactly ``count`` children."""
    machine.reaped.clear()
    wait_until(lambda: guard.reap_next(1.0) and len(machine.reaped) >= count, 10)
    assert not guard.reap_next(1.0)
    assert (len(machine.reaped), guard.must_wait, machine.is_paused) == (count, False, False)


def test_the_first_orphan_of_a_command_is_reaped_with_another_and_the_second_alone(
    guard: HangupGuard, leader: subprocess.Popen[bytes], job: FakeJob, machine: Machine
) -> None:
    assert not guard.reap_next(1.0)
    make_orphan(leader)
    reap(guard, machine, 2)
    assert job.is_guarded_from_hangups
    make_orphan(leader)
    reap(guard, machine, 1)
    assert machine.groups == [job.pid]


def test_the_first_orphan_is_not_reaped_while_processes_are_stopped(
    guard: HangupGuard, leader: subprocess.Popen[bytes], machine: Machine
) -> None:
    machine.is_still = False
    make_orphan(leader)
    wait_until(lambda: guard.reap_next(1.0) or guard.must_wait, 10)
    assert not guard.reap_next(1.0)
    assert guard.must_wait
    assert machine.reaped == []
    machine.is_still = True
    reap(guard, machine, 2)
    assert len(machine.groups) == 1


def test_an_orphan_is_reaped_where_no_other_can_be_added(
    guard: HangupGuard, job: FakeJob, leader: subprocess.Popen[bytes], machine: Machine
) -> None:
    machine.error = BlockingIOError()
    make_orphan(leader)
    reap(guard, machine, 1)
    assert not job.is_guarded_from_hangups


def test_an_orphan_of_a_tree_that_is_being_killed_is_reaped_at_once(
    guard: HangupGuard, leader: subprocess.Popen[bytes], job: FakeJob, machine: Machine
) -> None:
    job.kill, machine.is_still = object(), False
    make_orphan(leader)
    reap(guard, machine, 1)
    assert machine.groups == []


def test_the_leaders_own_end_adds_no_orphan(
    guard: HangupGuard, leader: subprocess.Popen[bytes], machine: Machine
) -> None:
    leader.kill()
    reap(guard, machine, 1)
    assert (machine.reaped, machine.groups) == ([leader.pid], [])


def test_an_orphan_of_no_command_adds_no_orphan(
    leader: subprocess.Popen[bytes], machine: Machine
) -> None:
    guard = machine.guard({})
    make_orphan(leader)
    reap(guard, machine, 1)
    assert machine.groups == []


def test_an_added_orphan_is_dead_and_the_callers(leader: subprocess.Popen[bytes]) -> None:
    before = psutil.Process().children()
    orphan = spawn.add_orphan(leader.pid)
    assert os.getpgid(orphan) == leader.pid
    assert os.waitpid(orphan, os.WNOHANG)[0] == orphan
    assert psutil.Process().children() == before


def test_an_orphan_of_another_session_is_refused() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True) as other:
        with pytest.raises(PermissionError):
            spawn.add_orphan(other.pid)
        assert other.stdin is not None
        other.stdin.close()
