"""The guard against gVisor's hangups, on real orphans. What gVisor does with the orphans:
``tests/conformance/test_attacks.py``."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any, cast

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


@pytest.fixture
def guard(job: FakeJob) -> HangupGuard:
    return HangupGuard(cast("Any", {job.pid: job}))


def make_orphan(leader: subprocess.Popen[bytes]) -> None:
    assert leader.stdin is not None
    assert leader.stdout is not None
    leader.stdin.write(b"\n")
    leader.stdin.flush()
    assert leader.stdout.readline() == b"\n"


def reap(guard: HangupGuard, count: int) -> None:
    """Wait for exactly ``count`` ended children: the last of them may end after the first is
    found."""
    for _ in range(count):
        wait_until(guard.next_ended_child, 10)
        os.waitpid(guard.next_ended_child(), 0)
    assert guard.next_ended_child() == 0


def test_the_first_orphan_of_a_command_gets_another_and_the_second_does_not(
    guard: HangupGuard, leader: subprocess.Popen[bytes], job: FakeJob
) -> None:
    assert guard.next_ended_child() == 0
    make_orphan(leader)
    wait_until(guard.next_ended_child, 10)
    assert job.is_guarded_from_hangups
    reap(guard, 3)  # the orphan, the added orphan, and the parent of the latter
    make_orphan(leader)
    reap(guard, 1)


def test_the_leaders_own_end_adds_no_orphan(
    guard: HangupGuard, leader: subprocess.Popen[bytes], job: FakeJob
) -> None:
    leader.kill()
    wait_until(guard.next_ended_child, 10)
    assert guard.next_ended_child() == job.pid
    assert not job.is_guarded_from_hangups


def test_an_orphan_of_no_command_adds_no_orphan(leader: subprocess.Popen[bytes]) -> None:
    guard = HangupGuard({})
    make_orphan(leader)
    reap(guard, 1)
