"""The spawn watch, on children of this process with the command line of this process, like a child
before the exec."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from execd.warden import spawn_watch
from execd.warden.spawn_watch import SpawnWatch
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

CODE = 7


@pytest.fixture(scope="module")
def watch() -> SpawnWatch:
    """The watch of all tests: the thread ends with the process."""
    return SpawnWatch(leaders=LEADERS)


LEADERS: set[int] = set()


@pytest.fixture
def vforking(watch: SpawnWatch) -> Iterator[SpawnWatch]:
    """As if this process were held inside vfork."""
    watch.begin()
    yield watch
    watch.end()


@contextlib.contextmanager
def child_that_stops(*, for_good: bool = False) -> Iterator[int]:
    """``for_good``: the child stops again after each SIGCONT."""
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        while for_good:
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(CODE)
    os.waitpid(pid, os.WUNTRACED)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def ended(pid: int) -> int:
    """The exit code of the child, or the negative number of the fatal signal."""
    found: list[int] = []

    def is_over() -> bool:
        reaped, wait_status = os.waitpid(pid, os.WNOHANG)
        if reaped:
            found.append(os.waitstatus_to_exitcode(wait_status))
        return bool(found)

    wait_until(is_over, 20)
    return found[0]


def test_a_child_that_was_stopped_before_its_exec_is_continued(vforking: SpawnWatch) -> None:
    with child_that_stops() as pid:
        assert ended(pid) == CODE
    assert vforking.killed_pid == 0


def test_a_child_that_is_stopped_again_and_again_is_killed(
    vforking: SpawnWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawn_watch, "KILL_AFTER_SECONDS", 0.5)
    with child_that_stops(for_good=True) as pid:
        assert ended(pid) == -signal.SIGKILL
        assert vforking.killed_pid == pid


def test_programs_and_leaders_that_somebody_stopped_stay_stopped(vforking: SpawnWatch) -> None:
    with child_that_stops() as leader, subprocess.Popen(["sleep", "1000"]) as program:
        LEADERS.add(leader)
        program.send_signal(signal.SIGSTOP)
        with child_that_stops() as held:
            assert ended(held) == CODE  # the watch has looked
        for pid in (leader, program.pid):
            assert os.waitid(os.P_PID, pid, os.WCONTINUED | os.WEXITED | os.WNOHANG) is None
        program.kill()
    LEADERS.clear()
