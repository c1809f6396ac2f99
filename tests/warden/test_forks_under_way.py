"""Freezes beside forks that take long: no child is left stopped."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from execd.proc.process_tree import Process
from execd.warden import forks_under_way
from execd.warden.forks_under_way import KERNEL_SECONDS, RUN_SECONDS, await_forks

# The init of a new namespace freezes and thaws beside a program whose forks take longer than the
# rounds of SIGSTOP: a fork copies the page tables of 2 GiB, and each page is the zero page.
INIT = """
import os, select, signal, sys
from execd.proc import process_tree
from execd.proc.kernel_traits import LINUX
from execd.proc.task_meter import TaskMeter
from execd.warden.fork_bombs import ForkBombs
from execd.warden.job import JobTable

FORKS = '''
import contextlib, mmap, os
pages = mmap.mmap(-1, 2 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
with contextlib.suppress(OSError):  # a kernel without huge pages
    pages.madvise(mmap.MADV_NOHUGEPAGE)
pages[0] = 1
for at in range(0, len(pages), mmap.PAGESIZE):
    pages[at]
while True:
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    os.write(1, b".")
'''
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    os.dup2(write, 1)
    os.execv(sys.executable, [sys.executable, "-c", FORKS])
os.close(write)
meter = TaskMeter()
bombs = ForkBombs(JobTable(), LINUX, is_init=True)
assert os.read(read, 1), "the program that forks has ended"
for _ in range(20):
    assert bombs.freeze(meter.max_tasks)
    scan = process_tree.Scan()
    while not scan.advance(1.0):
        pass
    assert bombs.await_forks(scan.processes)
    bombs.thaw(scan.processes, scan.n_tasks, guilty=(), growing=())
    # What lies in the pipe, the fork of the freeze, and a fork after the thaw.
    for _ in range(3):
        if not select.select([read], [], [], 20)[0]:
            sys.exit("a child was left stopped")
        assert os.read(read, 1 << 16), "the program that forks has ended"
print("whole")
os.kill(-1, signal.SIGKILL)
"""


@pytest.mark.linux_only("gVisor stops no child before the birth of the child")
def test_a_child_whose_fork_outlasts_the_freeze_is_not_left_stopped() -> None:
    namespace = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    done = subprocess.run(
        [*namespace, sys.executable, "-c", INIT], capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "whole\n", done.stderr


class Machine:
    """Processes whose states change with each read; the pause between reads takes its time."""

    def __init__(self, states: dict[int, list[str]], threads: dict[int, list[set[str]]]) -> None:
        self.now = 0.0
        self.reads: Counter[int] = Counter()
        self._states = states
        self._threads = threads

    def process(self, pid: int, state: str) -> Process:
        n_threads = 2 if pid in self._threads else 1
        return Process(pid, state, 1, pid, pid, start=pid, n_threads=n_threads)

    def read_process(self, pid: int) -> Process | None:
        self.reads[pid] += 1
        states = self._states[pid]
        state = states.pop(0) if len(states) > 1 else states[0]
        return self.process(pid, state) if state else None

    def read_thread_states(self, pid: int) -> set[str]:
        threads = self._threads[pid]
        return threads.pop(0) if len(threads) > 1 else threads[0]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def await_forks(self, *scan: Process) -> tuple[bool, dict[int, Process]]:
        processes = {process.pid: process for process in scan}
        return await_forks(processes, lambda process: process.pid != 1), processes


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Machine:
    made = Machine(*request.param)
    for name in ("read_process", "read_thread_states"):
        monkeypatch.setattr(forks_under_way, name, getattr(made, name))
    monkeypatch.setattr(forks_under_way, "pids", lambda: list(request.param[0]))
    monkeypatch.setattr(forks_under_way.time, "sleep", made.sleep)
    monkeypatch.setattr(forks_under_way.time, "monotonic", lambda: made.now)
    return made


def machine_of(
    states: dict[int, list[str]], threads: dict[int, list[set[str]]] | None = None
) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("machine", [(states, threads or {})], indirect=True, ids=[""])


@machine_of({1: ["R"], 20: ["R", "R", "T"], 21: ["T"], 22: ["T"]})
def test_running_processes_are_read_until_they_stop_and_the_newborn_once(machine: Machine) -> None:
    is_still, found = machine.await_forks(
        machine.process(1, "R"), machine.process(20, "R"), machine.process(21, "T")
    )
    assert is_still
    assert {pid: process.state for pid, process in found.items()} == {
        1: "R",
        20: "T",
        21: "T",
        22: "T",
    }
    assert machine.reads == {20: 3, 22: 1}


@machine_of({20: ["T"], 21: ["T"]}, {20: [{"T", "R"}, {"T", "R"}, {"T"}]})
def test_a_process_runs_as_long_as_any_of_its_threads(machine: Machine) -> None:
    is_still, _ = machine.await_forks(machine.process(20, "T"), machine.process(21, "T"))
    assert is_still
    assert machine.reads == {20: 2}


@machine_of({20: [""]})
def test_a_process_that_ends_meanwhile_is_in_the_scan_no_more(machine: Machine) -> None:
    is_still, found = machine.await_forks(machine.process(20, "R"))
    assert is_still
    assert found == {}


@machine_of({20: ["R"]})
def test_a_process_that_never_stops_is_waited_for_a_second(machine: Machine) -> None:
    is_still, _ = machine.await_forks(machine.process(20, "R"))
    assert not is_still
    assert machine.now == pytest.approx(RUN_SECONDS, abs=0.01)


@machine_of({20: ["D"]})
def test_a_process_that_waits_in_the_kernel_may_be_in_vfork_and_is_waited_for_shortly(
    machine: Machine,
) -> None:
    is_still, _ = machine.await_forks(machine.process(20, "D"))
    assert is_still
    assert machine.now == pytest.approx(KERNEL_SECONDS, abs=0.01)
