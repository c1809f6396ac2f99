"""The spawn watch, on children of this process with the command line of this process, like a child
before the exec."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from execd.proc import process_tree
from execd.proc.process_tree import Process
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


@pytest.fixture(autouse=True)
def only_some_tests_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than KILL_AFTER_SECONDS for a test."""
    monkeypatch.setattr(spawn_watch, "KILL_AFTER_SECONDS", 3600.0)


@contextlib.contextmanager
def vforking(watch: SpawnWatch) -> Iterator[None]:
    """As if this process were held inside vfork, from now on."""
    watch.begin()
    try:
        yield
    finally:
        watch.end()


@contextlib.contextmanager
def child_that_stops(*, for_good: bool = False) -> Iterator[int]:
    """``for_good``: the child stops again after each SIGCONT. The child leaves the tests' process
    group: see ``hangups`` for the SIGHUP that gVisor may send to a group with stopped members."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        while for_good:
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(CODE)
    # The watch may continue the child at once, so this may also be the child's end, for ``ended``.
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
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


def test_a_child_that_was_stopped_before_its_exec_is_continued(watch: SpawnWatch) -> None:
    with vforking(watch), child_that_stops() as pid:
        assert ended(pid) == CODE
    assert watch.words.killed_pid == 0


def test_a_child_that_is_stopped_again_and_again_is_killed(
    watch: SpawnWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawn_watch, "KILL_AFTER_SECONDS", 0.5)
    with vforking(watch), child_that_stops(for_good=True) as pid:
        assert ended(pid) == -signal.SIGKILL
        assert watch.words.killed_pid == pid


def test_programs_and_leaders_that_somebody_stopped_stay_stopped(watch: SpawnWatch) -> None:
    with child_that_stops() as leader, contextlib.ExitStack() as ends:
        program = subprocess.Popen(["sleep", "1000"], process_group=0)
        ends.callback(program.wait)
        ends.callback(program.kill)  # first: a stopped program would be waited for
        LEADERS.add(leader)
        ends.callback(LEADERS.clear)
        program.send_signal(signal.SIGSTOP)
        with vforking(watch), child_that_stops() as held:
            assert ended(held) == CODE  # the watch has looked
        for pid in (leader, program.pid):
            assert os.waitid(os.P_PID, pid, os.WCONTINUED | os.WEXITED | os.WNOHANG) is None


def test_only_a_living_child_that_has_not_called_exec_yet_holds_the_warden(
    watch: SpawnWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = os.getpid()
    processes = {
        8: None,  # has ended between the two looks
        7: Process(7, "R", own + 1, 7, 7, start=1),
        6: Process(6, "Z", own, 6, 6, start=1),
        5: Process(5, "R", own, 5, 5, start=1),
    }
    monkeypatch.setattr(process_tree, "pids", lambda: list(processes))
    monkeypatch.setattr(process_tree, "read_process", processes.__getitem__)
    monkeypatch.setattr(process_tree, "read_command_line", lambda _pid: ["the warden's"])
    assert watch._find_held_child() is processes[5]
    monkeypatch.setattr(process_tree, "read_command_line", lambda pid: [str(pid)])
    assert watch._find_held_child() is None
