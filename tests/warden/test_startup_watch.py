"""Checks of real young programs."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import psutil
import pytest

from execd.proc import process_tree
from execd.warden import startup_watch
from execd.warden.startup_watch import CHECKS_PER_TURN, YOUNG_SECONDS, StartupWatch, is_waiting
from tests.waiting import wait_until, wait_until_async

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from execd.proc.client import WardenClient
    from execd.warden.job import Job
    from tests.proc.conftest import Wardens

BUSY = "while :; do :; done"
BUSY_THREAD = """
import threading
def burn():
    while True: pass
threading.Thread(target=burn).start()
"""


@pytest.fixture
def begin() -> Iterator[Callable[..., int]]:
    """Start a program as the leader of a process group, like the warden; returns the pid."""
    started: list[subprocess.Popen[bytes]] = []

    def popen(*argv: str) -> int:
        started.append(subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True))
        return started[-1].pid

    yield popen
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def state(pid: int) -> str | None:
    process = process_tree.read_process(pid)
    return process.state if process else None


@pytest.mark.parametrize(
    "script",
    ["exec sleep 1000", "sleep 1000; true", "sleep 1000 | cat", "read line", "kill -STOP $$"],
)
def test_a_program_that_waits_is_at_rest(begin: Callable[..., int], script: str) -> None:
    leader = begin("sh", "-c", script)
    wait_until(lambda: is_waiting(leader, 0.0))


@pytest.mark.parametrize("script", [BUSY, f"({BUSY}); true", f"{BUSY} | cat"])
def test_a_program_that_computes_is_not_at_rest(begin: Callable[..., int], script: str) -> None:
    def begin_computing() -> tuple[int, int]:
        """The pids of the leader and of the computing process of its group."""
        leader = begin("sh", "-c", script)
        members = [leader]

        def computes() -> bool:
            members[1:] = [child.pid for child in psutil.Process(leader).children()]
            busy = members if script == BUSY else members[1:]
            members[1:] = [pid for pid in busy if state(pid) == "R"]
            return bool(members[1:])

        wait_until(computes)
        return leader, members[1]

    # The watch looks at the next pids; on a busy machine other processes may have taken them.
    begun = (begin_computing() for _ in range(50))
    leader = next(leader for leader, busy in begun if busy - leader <= startup_watch.NEXT_PIDS)
    assert not any(is_waiting(leader, 0.0) for _ in range(20))


def test_a_thread_that_computes_behind_a_waiting_main_thread_is_not_rest(
    begin: Callable[..., int],
) -> None:
    leader = begin("python3", "-c", BUSY_THREAD)

    def computes() -> bool:
        process = process_tree.read_process(leader)
        return process is not None and process.state == "S" and process.cpu_seconds > 0.2

    wait_until(computes)
    assert not is_waiting(leader, 1.0)


def test_a_program_that_has_ended_is_at_rest() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert is_waiting(process.pid, 0.0)


class FakeJob:
    """As much of a job as a check needs."""

    def __init__(self, pid: int, spawned_at: float) -> None:
        self.tag = self.pid = pid
        self.spawned_at = spawned_at
        self.reaped_at: float | None = None


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """(pid, age) of each check. Programs with odd pids wait."""
    done: list[tuple[int, float]] = []

    def check(pid: int, age_seconds: float) -> bool:
        done.append((pid, age_seconds))
        return pid % 2 == 1

    monkeypatch.setattr(startup_watch, "is_waiting", check)
    return done


def always() -> bool:
    """No bomb is about."""
    return True


def test_beside_a_bomb_nothing_is_read(checks: list[tuple[int, float]]) -> None:
    watch = watching(FakeJob(3, 100.0))
    assert watch.check_due(100.5, lambda: False) == []
    assert checks == []
    assert watch.due > 100.5, "the loop does not come back at once"
    assert watch.check_due(101.0, always) == [3]


def watching(*jobs: FakeJob, spawn_seconds: float = 1 / 128) -> StartupWatch:
    watch = StartupWatch()
    for job in jobs:
        real: Job = job  # type: ignore[assignment]  # stands in for a Job
        watch.add(real, spawn_seconds=spawn_seconds)
    return watch


def test_looks_come_at_twice_the_age_each_until_the_program_is_no_longer_young(
    checks: list[tuple[int, float]],
) -> None:
    watch = watching(FakeJob(2, 100.0))
    while (due := watch.due) < 1000.0:
        assert watch.check_due(due, always) == []
    assert [age for _, age in checks] == [2.0**power for power in range(-6, 3)]
    assert checks[-1][1] == YOUNG_SECONDS


def test_a_program_at_rest_is_told_once(checks: list[tuple[int, float]]) -> None:
    watch = watching(FakeJob(3, 100.0))
    assert watch.check_due(100.0, always) == []
    assert [watch.check_due(100.5, always), watch.check_due(101.0, always)] == [[3], []]
    assert len(checks) == 1


def test_a_program_that_has_ended_is_not_looked_at(checks: list[tuple[int, float]]) -> None:
    job = FakeJob(3, 100.0)
    watch = watching(job)
    job.reaped_at = 100.1
    assert watch.check_due(100.5, always) == []
    assert checks == []


def test_a_turn_looks_at_few_programs_the_oldest_first(checks: list[tuple[int, float]]) -> None:
    jobs = [FakeJob(2 * number + 1, 100.0 + number / 1024) for number in range(CHECKS_PER_TURN + 1)]
    watch = watching(*reversed(jobs))
    assert watch.check_due(100.5, always) == [job.tag for job in jobs[:-1]]
    assert watch.check_due(100.5, always) == [jobs[-1].tag]


async def test_the_warden_tells_of_a_program_at_rest_once(
    wardens: Wardens, client: WardenClient
) -> None:
    told: list[str] = []
    asleep = await wardens.run(
        client, "exec sleep 1000", on_startup_done=lambda: told.append("asleep")
    )
    busy = await wardens.run(client, BUSY, on_startup_done=lambda: told.append("busy"))
    await wait_until_async(lambda: told)
    later = await wardens.run(
        client, "exec sleep 1000", on_startup_done=lambda: told.append("later")
    )
    await wait_until_async(lambda: "later" in told)
    assert told == ["asleep", "later"]
    for program in asleep, busy, later:
        program.child.kill(0.0)
        await program.child.killed


async def test_a_program_without_user_code_is_not_looked_at(
    wardens: Wardens, client: WardenClient
) -> None:
    """The zygote's sleep is no reason to start the next command."""
    told: list[str] = []
    zygote = await wardens.run(
        client, "exec sleep 1000", is_idle=True, on_startup_done=lambda: told.append("zygote")
    )
    command = await wardens.run(
        client, "exec sleep 1000", on_startup_done=lambda: told.append("command")
    )
    await wait_until_async(lambda: told)
    assert told == ["command"]
    for program in zygote, command:
        program.child.kill(0.0)
        await program.child.killed
