"""The kernel's limit close above a tree's, on real processes. ``test_attacks`` shows the limit at
work in gVisor."""

from __future__ import annotations

import resource
import subprocess
from typing import TYPE_CHECKING

import pytest

from execd.proc.memory import Account
from execd.proc.messages import Spawn
from execd.proc.process_caps import MARGIN_TASKS, MOST_MARGIN_TASKS, limits_beside, raise_limits
from execd.proc.program_block import pack
from execd.warden.job import Job

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT, OTHERS = 64, 10
BEFORE = limits_beside(OTHERS, LIMIT)
GROWN = OTHERS + MARGIN_TASKS // 2 + 1
NPROC = resource.RLIMIT_NPROC


@pytest.fixture
def pid() -> Iterator[int]:
    """Pid of a process with the limits of a new tree."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        resource.prlimit(process.pid, NPROC, BEFORE)
        yield process.pid
        process.kill()


def job(pid: int, limit: int = LIMIT) -> Job:
    request = Spawn(1, pack(["sh"], {}, "/"), [], False, [], limit, "A=b", None, None, None)
    found = Job(request, pid, 0, frozenset(), Account(1, 0, None), spawned_at=0.0, session=pid)
    found.n_others = OTHERS
    return found


def test_a_limit_is_the_others_what_the_tree_may_have_and_a_margin() -> None:
    assert limits_beside(30, LIMIT) == (30 + LIMIT + MARGIN_TASKS, 30 + LIMIT + MOST_MARGIN_TASKS)


def test_a_limit_follows_the_others_before_half_of_the_margin_is_used_up(pid: int) -> None:
    found = job(pid)
    raise_limits([found], GROWN - 1 + found.n_tasks)
    assert resource.prlimit(pid, NPROC) == BEFORE
    raise_limits([found], GROWN + found.n_tasks)
    assert resource.prlimit(pid, NPROC) == (limits_beside(GROWN, LIMIT)[0], BEFORE[1])


def test_no_limit_follows_past_the_hard_limit(pid: int) -> None:
    raise_limits([job(pid)], 10_000)
    assert resource.prlimit(pid, NPROC) == (BEFORE[1], BEFORE[1])


def test_a_tree_that_grows_itself_gets_no_higher_limit(pid: int) -> None:
    found = job(pid)
    found.n_tasks = 2000
    raise_limits([found], 2000 + OTHERS)
    assert resource.prlimit(pid, NPROC) == BEFORE


def test_a_limit_that_a_program_has_lowered_itself_stays(pid: int) -> None:
    resource.prlimit(pid, NPROC, (50, BEFORE[1]))
    raise_limits([job(pid)], GROWN + 1)
    assert resource.prlimit(pid, NPROC) == (50, BEFORE[1])


def test_a_tree_without_a_limit_keeps_the_backstop(pid: int) -> None:
    raise_limits([job(pid, 0)], 10_000)
    assert resource.prlimit(pid, NPROC) == BEFORE


def test_processes_that_have_ended_are_passed_over(pid: int) -> None:
    found = job(pid)
    found.members = {2**22 + 1: 0, pid: 0}
    raise_limits([found], GROWN + found.n_tasks)
    assert resource.prlimit(pid, NPROC)[0] > BEFORE[0]
