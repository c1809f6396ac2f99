"""The launcher repeats a fork after a refusal by the kernel, or a kill by the spawn watch."""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

from execd.proc import process_tree, spawn
from execd.proc.memory import MemoryMonitor
from execd.proc.messages import NULL_DEVICE, Spawn, SpawnFailed
from execd.proc.program_block import pack
from execd.warden import job as job_module
from execd.warden import launcher as module
from execd.warden.launcher import FORK_TRIES, Launcher, Start

if TYPE_CHECKING:
    from collections.abc import Iterator


class FakeSupervisor:
    """As much of the supervisor as a launch needs."""

    def __init__(self) -> None:
        self.memory = MemoryMonitor()

    def arm_for_spawn(self, request: Spawn) -> None:
        pass


@pytest.fixture(scope="module")
def rounds() -> list[str]:
    """An entry for each call of ``make_room``."""
    return []


@pytest.fixture(scope="module")
def launcher(rounds: list[str]) -> Launcher:
    """The launcher of this module. The launcher's descriptor and thread last as long as the
    process."""
    return Launcher(
        cast("Any", FakeSupervisor()),
        set(),
        lambda: rounds.append("made"),
        oom_score=None,
        former_limits=[],
        leads_session=True,
        reads_starts=True,
    )


@pytest.fixture
def attempts(rounds: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[OSError]]:
    """The errors of the next forks, first to last; afterwards forks succeed."""
    rounds.clear()
    errors: list[OSError] = []
    real = spawn.spawn

    def fork(**options: Any) -> spawn.StartedProgram:
        if errors:
            raise errors.pop(0)
        return real(**options | {"is_prepared": False})

    monkeypatch.setattr(module.spawn, "spawn", fork)
    monkeypatch.setattr(module, "FORK_RETRY_SECONDS", 0.0)
    return errors


REQUEST = Spawn(
    1,
    pack(["/bin/true"], {}, "/"),
    [NULL_DEVICE, NULL_DEVICE, NULL_DEVICE],
    False,
    [],
    0,
    "A=b",
    None,
    None,
    None,
)


def refusal(step: str = "fork", error: int = errno.EAGAIN) -> spawn.StepFailed:
    return spawn.StepFailed(step, error, None)


def test_a_refused_fork_is_tried_again_after_room_was_made(
    launcher: Launcher, attempts: list[OSError], rounds: list[str]
) -> None:
    attempts += [refusal() for _ in range(FORK_TRIES - 1)]
    start = launcher.start(REQUEST, [])
    assert isinstance(start, Start)
    os.waitpid(start.program.pid, 0)
    assert len(rounds) == FORK_TRIES - 1


def test_a_fork_that_stays_refused_fails(
    launcher: Launcher, attempts: list[OSError], rounds: list[str]
) -> None:
    attempts += [refusal() for _ in range(FORK_TRIES)]
    failed = launcher.start(REQUEST, [])
    assert isinstance(failed, SpawnFailed)
    assert (failed.step, failed.error) == ("fork", errno.EAGAIN)
    assert len(rounds) == FORK_TRIES - 1


@pytest.mark.parametrize(
    "error", [refusal("exec"), refusal(error=errno.ENOMEM), OSError(errno.EAGAIN, "no fork")]
)
def test_any_other_failure_fails_at_once(
    launcher: Launcher, attempts: list[OSError], rounds: list[str], error: OSError
) -> None:
    attempts.append(error)
    assert isinstance(launcher.start(REQUEST, []), SpawnFailed)
    assert rounds == []


def test_a_child_that_the_watch_killed_before_its_exec_is_started_again(
    launcher: Launcher,
    attempts: list[OSError],
    rounds: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pids: list[int] = []
    fork = module.spawn.spawn
    watch = launcher._spawn_watch

    def killed_once(**options: Any) -> spawn.StartedProgram:
        started = fork(**options)
        pids.append(started.pid)
        if len(pids) == 1:
            os.kill(pids[0], signal.SIGKILL)
            watch.words.killed_pid = pids[0]
        return started

    monkeypatch.setattr(module.spawn, "spawn", killed_once)
    start = launcher.start(REQUEST, [])
    assert isinstance(start, Start)
    assert [start.program.pid] == pids[1:]
    assert len(rounds) == 1
    for pid in pids:
        os.waitpid(pid, 0)


def test_start_of_a_program_is_read_where_clocks_of_starts_differ(
    launcher: Launcher, attempts: list[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    # An estimate would be an hour late.
    monkeypatch.setattr(job_module, "ticks_since_boot", lambda at: 1 << 40)
    start = launcher.start(REQUEST, [])
    assert isinstance(start, Start)
    job = launcher.make_job(REQUEST, start)
    leader = process_tree.read_process(job.pid)
    assert leader is not None
    assert job.start == leader.start
    os.waitpid(job.pid, 0)


def test_the_time_of_a_start_is_that_of_its_last_fork(
    launcher: Launcher, attempts: list[OSError]
) -> None:
    """The duration of a program has this time, and not that of refused forks."""
    forked_at: list[float] = []
    attempts.append(refusal())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.time, "sleep", lambda _: forked_at.append(time.monotonic()))
        start = launcher.start(REQUEST, [])
    assert isinstance(start, Start)
    os.waitpid(start.program.pid, 0)
    assert forked_at[0] <= start.spawned_at - start.spawn_seconds <= start.spawned_at
    assert start.spawned_at <= time.monotonic()


def test_a_job_knows_the_pipes_of_its_program(launcher: Launcher, attempts: list[OSError]) -> None:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        request = REQUEST._replace(stdio=[NULL_DEVICE, 0, NULL_DEVICE])
        start = launcher.start(request, [write_end])
        assert isinstance(start, Start)
        job = launcher.make_job(request, start)
        assert job.pipes == {os.readlink(f"/proc/self/fd/{write_end}")}
        os.waitpid(job.pid, 0)
    finally:
        os.close(read_end)
        os.close(write_end)
