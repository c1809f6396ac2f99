"""The kernel's limit close above a tree's, on real processes; that gVisor keeps the limit is for ``test_attacks``."""

from __future__ import annotations

import resource
import subprocess
from typing import TYPE_CHECKING

import pytest

from execd.proc import process_caps
from execd.proc.job import Job
from execd.proc.memory import Account
from execd.proc.messages import Spawn
from execd.proc.process_caps import MARGIN_TASKS, cap_for, capped, follow

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 64
NPROC, CORE = resource.RLIMIT_NPROC, resource.RLIMIT_CORE


@pytest.fixture
def pid() -> Iterator[int]:
    """Of a process whose hard limit of processes is high enough for the tests."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        resource.prlimit(process.pid, NPROC, (4000, 4000))
        yield process.pid
        process.kill()


def job(pid: int, limit: int = LIMIT) -> Job:
    request = Spawn(1, ["sh"], {}, "/", [], False, [], limit, "A=b", None, None, None)
    found = Job(request, pid, 0, frozenset(), Account(1, 0, None), spawned_at=0.0, session=pid)
    found.cap = 1000
    return found


def test_the_cap_is_the_others_the_limit_and_a_margin() -> None:
    assert cap_for(30, LIMIT) == 30 + LIMIT + MARGIN_TASKS


def test_a_tree_without_a_limit_has_no_cap(pid: int) -> None:
    assert cap_for(30, 0) == 0
    assert capped([[CORE, 0, 0], [NPROC, 9, 9]], 0) == [[CORE, 0, 0], [NPROC, 9, 9]]
    unlimited = job(pid, 0)
    follow([unlimited], 10_000)
    assert unlimited.cap == 1000


def test_a_cap_takes_the_place_of_the_backstop_and_never_raises_a_limit() -> None:
    assert capped([[NPROC, 4096, 4096], [CORE, 0, 0]], 400) == [[CORE, 0, 0], (NPROC, 400, 400)]
    assert capped([[NPROC, 100, 100]], 400) == [(NPROC, 100, 100)]
    assert capped([], 400) == [(NPROC, 400, 400)]


def test_a_cap_follows_the_others_before_half_of_the_margin_is_used_up(pid: int) -> None:
    found = job(pid)
    found.cap = cap_for(10, LIMIT)
    follow([found], 1 + 10 + MARGIN_TASKS // 2)
    assert found.cap == cap_for(10, LIMIT)
    follow([found], 1 + 11 + MARGIN_TASKS // 2)
    assert found.cap == cap_for(11 + MARGIN_TASKS // 2, LIMIT)
    assert resource.prlimit(pid, NPROC) == (found.cap, found.cap)


def test_a_tree_that_grows_itself_gets_no_higher_cap(pid: int) -> None:
    found = job(pid)
    found.cap = cap_for(10, LIMIT)
    found.n_tasks = 2000
    follow([found], 2000 + 10)
    assert found.cap == cap_for(10, LIMIT)


def test_processes_that_have_ended_are_passed_over(pid: int) -> None:
    found = job(pid)
    found.members = {2**22 + 1: 0, pid: 0}
    process_caps.apply(found, 500)
    assert resource.prlimit(pid, NPROC) == (500, 500)
