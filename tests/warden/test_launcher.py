"""The launcher repeats a fork after a refusal by the kernel, or a kill by the spawn watch."""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

from execd.proc import process_tree, spawn
from execd.proc.kernel_traits import GVISOR
from execd.proc.memory import Account, MemoryMonitor
from execd.proc.messages import NULL_DEVICE, Spawn, SpawnFailed
from execd.proc.program_block import pack
from execd.proc.task_meter import TaskMeter
from execd.warden import job as job_module
from execd.warden import launcher as module
from execd.warden.launcher import FORK_TRIES, Launcher
from execd.warden.own_peak import OwnPeak
from execd.warden.starts import Received, StartedProgram

if TYPE_CHECKING:
    from collections.abc import Iterator


class FakeSupervisor:
    """As much of the supervisor as a launch needs."""

    def __init__(self) -> None:
        self.memory = MemoryMonitor()

    def brake_figures(self) -> None:
        return None


@pytest.fixture(scope="module")
def rounds() -> list[str]:
    """An entry for each call of ``make_room``."""
    return []


@pytest.fixture(scope="module")
def launcher(rounds: list[str]) -> Iterator[Launcher]:
    """The launcher of this module. The launcher's thread lasts as long as the process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    signals = spawn.open_child_signals()
    meter = TaskMeter()
    yield Launcher(
        cast("Any", FakeSupervisor()),
        set(),
        lambda: rounds.append("made"),
        OwnPeak(),
        channel=ours.fileno(),
        child_signals=signals,
        loadavg_fd=meter.loadavg_fd,
        traits=GVISOR,
        oom_score=None,
        former_limits=[],
        leads_session=True,
    )
    os.close(signals)
    ours.close()
    theirs.close()


@pytest.fixture
def failures(
    launcher: Launcher, rounds: list[str], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, int]]:
    """The failures of the next forks, first to last; afterwards forks succeed."""
    rounds.clear()
    found: list[tuple[str, int]] = []

    def start(
        request: Spawn, descriptors: list[int], brake: None, known_peak_bytes: int
    ) -> tuple[str, int] | None:
        assert launcher._spawn_watch.words.begun_at, "the watch knows of the fork"
        return found.pop(0) if found else None

    monkeypatch.setattr(launcher.starts, "start", start)
    monkeypatch.setattr(module, "FORK_RETRY_SECONDS", 0.0)
    return found


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
REFUSAL = ("fork", errno.EAGAIN)


def test_a_refused_fork_is_tried_again_after_room_was_made(
    launcher: Launcher, failures: list[tuple[str, int]], rounds: list[str]
) -> None:
    failures += [REFUSAL] * (FORK_TRIES - 1)
    assert launcher.start(REQUEST, []) is None
    assert len(rounds) == FORK_TRIES - 1
    assert not launcher._spawn_watch.words.begun_at


def test_a_fork_that_stays_refused_fails(
    launcher: Launcher, failures: list[tuple[str, int]], rounds: list[str]
) -> None:
    failures += [REFUSAL] * FORK_TRIES
    failed = launcher.start(REQUEST, [])
    assert isinstance(failed, SpawnFailed)
    assert (failed.step, failed.error) == REFUSAL
    assert len(rounds) == FORK_TRIES - 1


@pytest.mark.parametrize("failure", [("exec", errno.EAGAIN), ("fork", errno.ENOMEM)])
def test_any_other_failure_fails_at_once(
    launcher: Launcher,
    failures: list[tuple[str, int]],
    rounds: list[str],
    failure: tuple[str, int],
) -> None:
    failures.append(failure)
    assert isinstance(launcher.start(REQUEST, []), SpawnFailed)
    assert rounds == []


def test_a_descriptor_that_was_lost_on_the_way_fails_before_any_fork(
    launcher: Launcher, failures: list[tuple[str, int]]
) -> None:
    failures.append(REFUSAL)
    failed = launcher.start(REQUEST, [-1, -1])
    assert isinstance(failed, SpawnFailed)
    assert (failed.step, failed.error) == ("request", errno.EMFILE)
    assert failures == [REFUSAL]


@pytest.fixture
def program() -> Iterator[StartedProgram]:
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    yield StartedProgram(Received(b"", []), pid, False, time.monotonic(), 0.001, None)
    os.kill(pid, 9)
    os.waitpid(pid, 0)


def test_start_of_a_program_is_read_where_clocks_of_starts_differ(
    launcher: Launcher, program: StartedProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An estimate would be an hour late.
    monkeypatch.setattr(job_module, "ticks_since_boot", lambda at: 1 << 40)
    job = launcher.make_job(REQUEST, program, [])
    leader = process_tree.read_process(job.pid)
    assert leader is not None
    assert job.start == leader.start


def test_a_job_knows_the_pipes_of_its_program(launcher: Launcher, program: StartedProgram) -> None:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        job = launcher.make_job(REQUEST, program, [write_end, null])
        assert job.pipes == {os.readlink(f"/proc/self/fd/{write_end}")}
    finally:
        for fd in (read_end, write_end, null):
            os.close(fd)


def test_memory_of_a_tree_with_a_limit_is_read_before_its_first_process(
    launcher: Launcher,
    program: StartedProgram,
    failures: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[int] = []
    memory = launcher._supervisor.memory

    def open_account(tag: int, limit_bytes: int) -> Account:
        opened.append(tag)
        return Account(tag, limit_bytes, None)

    monkeypatch.setattr(memory, "open_account", open_account)
    limited = REQUEST._replace(tag=7, memory_bytes=1 << 30)
    assert launcher.start(limited, []) is None
    job = launcher.make_job(REQUEST._replace(tag=8), program, [])
    assert (job.account.tag, job.account.limit_bytes) == (8, 0)
    job = launcher.make_job(limited, program, [])
    assert (job.account.tag, job.account.limit_bytes) == (7, 1 << 30)
    assert opened == [7, 8], "the account of a limited tree is older than its program"
