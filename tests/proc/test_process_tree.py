from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.proc import process_tree, tree_mark
from execd.proc.process_tree import Process, TreeOwner, attribute, descendants, parse_stat
from tests.patience import patience
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

WARDEN = 1


class Tree:
    """A job as attribution sees a job."""

    def __init__(self, pid: int, start: int) -> None:
        self.pid = pid
        self.start = start
        self.mark = 0
        self.marker = b"EXECD_EXECUTION_ID=%d" % pid
        self.pipes = frozenset({f"pipe:[{pid}]"})
        self.members: dict[int, int] = {pid: start}
        self.is_idle = False


def process(
    pid: int,
    parent: int = WARDEN,
    *,
    group: int = 0,
    session: int = 0,
    start: int = 100,
    state: str = "S",
) -> Process:
    return Process(pid, state, parent, group or pid, session or pid, start)


def snapshot(*processes: Process) -> dict[int, Process]:
    return {item.pid: item for item in (process(WARDEN, 0, start=1), *processes)}


NO_EVIDENCE: list[Callable[[int, Collection[TreeOwner]], TreeOwner | None]] = []


def members(
    processes: dict[int, Process],
    *jobs: Tree,
    evidence: list[Callable[[int, Collection[TreeOwner]], TreeOwner | None]] = NO_EVIDENCE,
) -> list[set[int]]:
    attribute(processes, jobs, WARDEN, {}, evidence)
    return [set(job.members) for job in jobs]


# Reading.


@pytest.mark.parametrize(
    "name", ["sh", "a b", "a) S 1 2 3", ") ) )", "((", "", "\n", ") Z 0 0 0 (", "\xff"]
)
def test_a_stat_line_is_read_whatever_the_command_is_called(name: str) -> None:
    line = f"42 ({name}) S 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 999 3 0".encode(
        "latin-1"
    )
    own, user, system = (ticks / process_tree.TICKS_PER_SECOND for ticks in (5 + 6, 5 + 7, 6 + 8))
    assert parse_stat(line) == Process(
        42, "S", 7, 8, 9, 12345, 3 * process_tree.PAGE_BYTES, own, user, system, 1, 999
    )


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"42",
        b"42 (sh",
        b"42 (sh) S",
        b"42 (sh) S 7 8 9",
        b"x (sh) " + b"1 " * 30,
        b"42 (sh) " + b"x " * 30,
    ],
)
def test_what_is_no_stat_line_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # the field need not be named
        parse_stat(line)


def test_a_scan_shows_this_process_and_its_children_with_their_parents() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    ) as child:
        scan = process_tree.Scan()
        assert scan.advance(10.0)
        found = scan.processes[child.pid]
        assert (found.parent, found.group, found.session, found.is_dead) == (
            os.getpid(),
            child.pid,
            child.pid,
            False,
        )
        again = process_tree.read_process(child.pid)
        assert again is not None
        at_work = {
            "rss_bytes": 0,
            "state": "R",
            "cpu_seconds": 0.0,
            "user_seconds": 0.0,
            "system_seconds": 0.0,
            "virtual_bytes": 1,
        }
        assert 0 not in {found.virtual_bytes, again.virtual_bytes}
        assert found._replace(**at_work) == again._replace(**at_work)
        assert child.pid in {item.pid for item in descendants(scan.processes, os.getpid())}
        assert os.getpid() in scan.processes
        child.kill()


def test_a_scan_tells_which_processes_ended_before_the_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    listed = process_tree.pids()
    monkeypatch.setattr(process_tree, "pids", lambda: [*listed, ended.pid])
    scan = process_tree.Scan()
    assert scan.advance(10.0)
    assert ended.pid in scan.lost
    assert os.getpid() not in scan.lost


@pytest.mark.linux_only("CPU time has steps of 10 ms in gVisor")
def test_a_scan_in_slices_finds_the_same_as_one_in_one_piece() -> None:
    scan, slices = process_tree.Scan(), 1
    while not scan.advance(0.0):
        slices += 1
    assert slices * process_tree.LEAST_READS >= len(scan.processes), (
        "a slice without a budget reads LEAST_READS processes"
    )
    assert os.getpid() in scan.processes
    assert 0 < scan.busy_seconds < patience(5)


HEADLESS = """
import ctypes, os, threading
block = b"x" * (64 << 20)
threading.Thread(target=threading.Event().wait).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


@pytest.mark.linux_only("gVisor shows Z of the living threads too")
def test_a_process_whose_first_thread_has_ended_lives_and_can_be_told_from_others() -> None:
    """The process's own files under /proc show a zombie without memory, environment and
    descriptors. The files of the living thread show more."""
    env = {"EXECD_EXECUTION_ID": "headless"}
    with subprocess.Popen(
        [sys.executable, "-c", HEADLESS], stdout=subprocess.PIPE, env=env
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        try:
            wait_until(lambda: " Z " in Path(f"/proc/{child.pid}/stat").read_text())
            # The other thread may not have come to its wait yet.
            wait_until(lambda: (seen := process_tree.read_process(child.pid)) and seen.state == "S")
            found = process_tree.read_process(child.pid)
            assert found is not None
            assert (found.is_dead, found.n_threads) == (False, 2)
            assert found.rss_bytes > 64 << 20
            job = Tree(child.pid, found.start)
            job.marker = b"EXECD_EXECUTION_ID=headless"
            assert process_tree.by_marker(child.pid, [job]) is job
            job.pipes = frozenset({os.readlink(f"/proc/self/fd/{child.stdout.fileno()}")})
            assert process_tree.by_pipe(child.pid, [job]) is job
        finally:
            child.kill()


def test_the_states_of_a_process_are_those_of_all_its_threads() -> None:
    ready, end = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        end.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        ready.wait()
        wait_until(lambda: process_tree.read_thread_states(os.getpid()) == {"R", "S"})
    finally:
        end.set()
        thread.join()
    assert process_tree.read_thread_states(2**22 + 1) == set()


def test_turns_tell_whether_a_stopped_process_has_run_since() -> None:
    script = "kill -STOP $$; while read -r line; do echo $line; kill -STOP $$; done"
    with subprocess.Popen(
        ["/bin/sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def turns() -> int:
            wait_until(lambda: (seen := process_tree.read_process(child.pid)) and seen.state == "T")
            return process_tree.read_turns(child.pid)

        wait_until(lambda: turns() == turns())  # Linux shows T a moment before the last switch
        before = turns()
        child.send_signal(signal.SIGCONT)
        child.stdin.write(b"on\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"on\n"
        assert turns() > before
        child.kill()


def test_a_process_that_has_ended_and_is_not_waited_for_is_dead_and_after_that_gone() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    wait_until(lambda: (found := process_tree.read_process(pid)) is not None and found.is_dead)
    os.waitpid(pid, 0)
    assert process_tree.read_process(pid) is None


def test_a_stat_file_that_tells_of_another_pid_shows_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # gVisor shows pid 0 for a process reaped between open and read.
    monkeypatch.setattr(
        process_tree,
        "_read",
        lambda *_: b"0 (sleep) X 1 10 10 0 0 0 0 0 0 0 0 1 0 0 20 0 0 0 8 0 0",
    )
    assert process_tree.read_process(10) is None


def test_the_marker_is_found_in_the_environment_only_as_a_whole_entry() -> None:
    job = Tree(77, 0)
    for env, expected in [
        ({"EXECD_EXECUTION_ID": "77"}, job),
        ({"A": "1", "EXECD_EXECUTION_ID": "77", "Z": "2"}, job),
        ({"EXECD_EXECUTION_ID": "777"}, None),
        ({"A": "EXECD_EXECUTION_ID=77"}, None),
        ({}, None),
    ]:
        with subprocess.Popen(
            ["/bin/sh", "-c", "echo; read x"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
        ) as child:
            assert child.stdout is not None
            # the environment may read as empty during the exec
            child.stdout.readline()
            assert process_tree.by_marker(child.pid, [job]) is expected, env


def test_the_pipe_is_found_among_the_descriptors() -> None:
    job = Tree(77, 0)
    read_end, write_end = os.pipe()
    job.pipes = frozenset({f"pipe:[{os.fstat(write_end).st_ino}]"})
    with (
        subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=write_end, env={}) as child,
        subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env={}) as other,
    ):
        assert process_tree.by_pipe(child.pid, [job]) is job
        assert process_tree.by_pipe(other.pid, [job]) is None
    os.close(read_end)
    os.close(write_end)


def test_a_descriptor_that_closes_meanwhile_hides_no_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Tree(77, 0)
    read_end, write_end = os.pipe()
    job.pipes = frozenset({f"pipe:[{os.fstat(write_end).st_ino}]"})
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: ["99999", *listed(folder)])
    assert process_tree.by_pipe(os.getpid(), [job]) is job
    os.close(read_end)
    os.close(write_end)


def test_there_is_no_evidence_in_a_process_that_is_gone() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    assert process_tree.by_marker(pid, [Tree(77, 0)]) is None
    assert process_tree.by_pipe(pid, [Tree(77, 0)]) is None


def test_elimination_needs_exactly_one_candidate() -> None:
    first, second = Tree(10, 0), Tree(20, 0)
    assert process_tree.by_elimination(99, [first]) is first
    assert process_tree.by_elimination(99, [first, second]) is None
    assert process_tree.by_elimination(99, []) is None
    second.is_idle = True
    assert process_tree.by_elimination(99, [first, second]) is first
    assert process_tree.by_elimination(99, [second]) is None


def test_a_mark_says_whose_an_orphan_is_and_rules_elimination_out() -> None:
    daemon = tree_mark.new_daemon()
    first, second = Tree(10, 0), Tree(20, 0)
    first.mark, second.mark = (tree_mark.of_tree(daemon, tag) for tag in (1, 2))
    with subprocess.Popen(["sleep", "1000"]) as orphan:
        mark = tree_mark.of_cell(second.mark, 5)
        resource.prlimit(orphan.pid, resource.RLIMIT_RSS, (mark, resource.RLIM_INFINITY))
        assert process_tree.by_mark(orphan.pid, [first, second]) is second
        assert process_tree.by_mark(orphan.pid, [first]) is None
        assert process_tree.by_elimination(orphan.pid, [first]) is None
        orphan.kill()
    assert process_tree.by_mark(orphan.pid, [first, second]) is None


# Attribution, a single kind of evidence at a time.


def test_the_leader_and_its_descendants_to_any_depth_belong_to_the_job() -> None:
    processes = snapshot(process(10), process(11, 10), process(12, 11), process(13, 12))
    assert members(processes, Tree(10, 100)) == [{10, 11, 12, 13}]


def test_a_session_or_a_group_named_after_the_leader_says_whose_a_process_is() -> None:
    processes = snapshot(process(10), process(11, session=10), process(12, group=10), process(13))
    assert members(processes, Tree(10, 100)) == [{10, 11, 12}]


def test_the_session_says_so_also_when_the_leader_is_gone() -> None:
    assert members(snapshot(process(11, session=10)), Tree(10, 100)) == [{11}]


def test_a_session_of_that_number_is_another_ones_when_the_leaders_pid_was_reused() -> None:
    processes = snapshot(process(10, start=500), process(11, session=10, start=501))
    assert members(processes, Tree(10, 100)) == [set()]


def test_a_process_older_than_the_leader_is_in_another_ones_session_or_group() -> None:
    """The number has named a session of another leader before."""
    older = process(11, session=10, start=99), process(12, group=10, start=99)
    assert members(snapshot(process(10), *older), Tree(10, 100)) == [{10}]
    assert members(snapshot(*older), Tree(10, 100)) == [set()]


def test_the_warden_is_in_no_tree_whatever_the_snapshot_says() -> None:
    confused = process(0, WARDEN, session=10)  # the warden's parent is 0 as well
    assert members(snapshot(process(10), confused), Tree(10, 100)) == [{10, 0}]
    assert members(snapshot(process(10), process(WARDEN, 10, session=10)), Tree(10, 100)) == [{10}]


def test_a_known_member_stays_one_after_its_parents_have_gone_and_it_has_left_the_session() -> None:
    job = Tree(10, 100)
    attribute(
        snapshot(process(10), process(11, 10), process(12, 11)), [job], WARDEN, {}, NO_EVIDENCE
    )
    attribute(snapshot(process(12)), [job], WARDEN, {}, NO_EVIDENCE)
    assert job.members == {12: 100}
    attribute(snapshot(process(12), process(14, 12)), [job], WARDEN, {}, NO_EVIDENCE)
    assert set(job.members) == {12, 14}


def test_a_members_pid_that_was_reused_is_not_a_member() -> None:
    job = Tree(10, 100)
    attribute(snapshot(process(10), process(11, 10)), [job], WARDEN, {}, NO_EVIDENCE)
    attribute(snapshot(process(10), process(11, start=900)), [job], WARDEN, {}, NO_EVIDENCE)
    assert set(job.members) == {10}


def test_an_orphan_is_given_by_evidence_and_its_children_with_it() -> None:
    first, second = Tree(10, 100), Tree(20, 100)
    processes = snapshot(process(10), process(20), process(31), process(32, 31))
    found = members(
        processes, first, second, evidence=[lambda pid, _: second if pid == 31 else None]
    )
    assert found == [{10}, {20, 31, 32}]


def test_the_stronger_evidence_wins() -> None:
    first, second = Tree(10, 100), Tree(20, 100)
    found = members(
        snapshot(process(10), process(20), process(31)),
        first,
        second,
        evidence=[lambda *_: first, lambda *_: second],
    )
    assert found == [{10, 31}, {20}]


def test_an_orphan_older_than_a_job_is_not_that_jobs() -> None:
    job = Tree(10, 100)
    assert members(
        snapshot(process(10), process(31, start=99)), job, evidence=[process_tree.by_elimination]
    ) == [{10}]
    assert members(
        snapshot(process(10), process(32, start=100)), job, evidence=[process_tree.by_elimination]
    ) == [{10, 32}]


def test_an_unattributed_process_is_looked_at_twice_and_again_when_its_pid_is_reused() -> None:
    job, unattributed, asked = Tree(10, 100), {}, []

    def look(pid: int, _: Collection[TreeOwner]) -> TreeOwner | None:
        asked.append(pid)
        return None

    for start in 200, 200, 200, 200, 300:
        attribute(
            snapshot(process(10), process(31, start=start)), [job], WARDEN, unattributed, [look]
        )
    assert asked == [31, 31, 31]
    attribute(snapshot(process(10)), [job], WARDEN, unattributed, [look])
    assert unattributed == {}


def test_an_orphan_whose_environment_could_not_be_read_at_first_is_found_at_the_second_look() -> (
    None
):
    job = Tree(10, 100)
    looks = iter([None, job])
    unattributed: dict[tuple[int, int], int] = {}
    for expected in {10}, {10, 31}:
        attribute(
            snapshot(process(10), process(31)),
            [job],
            WARDEN,
            unattributed,
            [lambda *_: next(looks)],
        )
        assert set(job.members) == expected


def test_dead_orphans_are_nobodys_and_processes_beside_the_warden_are_never_looked_at() -> None:
    job = Tree(10, 100)
    processes = snapshot(process(10), process(31, state="Z"), process(40, 0), process(41, 40))
    assert members(processes, job, evidence=[process_tree.by_elimination]) == [{10}]


# Attribution of whole forests.


class Forest(NamedTuple):
    processes: dict[int, Process]
    jobs: list[Tree]
    truth: dict[int, int]
    """pid -> the leader of the process's tree."""


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    """Jobs with processes. A process may fork and may leave the session."""
    n_jobs = draw(st.integers(1, 3))
    jobs = [Tree(10 + number, 100) for number in range(n_jobs)]
    truth = {job.pid: job.pid for job in jobs}
    processes = {job.pid: process(job.pid) for job in jobs}
    for pid in range(100, 100 + draw(st.integers(0, 15))):
        parent = processes[draw(st.sampled_from(sorted(processes)))]
        leaves = draw(st.booleans())
        processes[pid] = process(
            pid,
            parent.pid,
            group=0 if leaves else parent.group,
            session=0 if leaves else parent.session,
            start=parent.start + draw(st.integers(0, 3)),
        )
        truth[pid] = truth[parent.pid]
    return Forest(processes, jobs, truth)


def end_processes(processes: dict[int, Process], dead: set[int]) -> dict[int, Process]:
    """Return the remaining processes; orphans become the warden's children."""
    return {
        pid: item if item.parent not in dead else item._replace(parent=WARDEN)
        for pid, item in processes.items()
        if pid not in dead
    }


@given(forests(), st.data())
def test_what_was_seen_once_is_never_lost_and_never_given_to_another(
    forest: Forest, data: st.DataObject
) -> None:
    processes, jobs, truth = forest
    attribute(snapshot(*processes.values()), jobs, WARDEN, {}, NO_EVIDENCE)
    for job in jobs:
        assert set(job.members) == {pid for pid, owner in truth.items() if owner == job.pid}
    while processes:
        dead = data.draw(st.sets(st.sampled_from(sorted(processes)), min_size=1))
        processes = end_processes(processes, dead)
        attribute(snapshot(*processes.values()), jobs, WARDEN, {}, NO_EVIDENCE)
        for job in jobs:
            assert set(job.members) == {
                pid for pid, owner in truth.items() if owner == job.pid and pid in processes
            }


@given(forests(), st.data())
def test_with_markers_every_process_is_found_though_any_of_its_forebears_died_before_the_first_look(
    forest: Forest, data: st.DataObject
) -> None:
    processes, jobs, truth = forest
    dead = data.draw(st.sets(st.sampled_from(sorted(processes))))
    left = end_processes(processes, dead)
    by_pid = {job.pid: job for job in jobs}
    attribute(snapshot(*left.values()), jobs, WARDEN, {}, [lambda pid, _: by_pid[truth[pid]]])
    for job in jobs:
        assert set(job.members) == {
            pid for pid, owner in truth.items() if owner == job.pid and pid in left
        }


@given(forests(), st.data())
def test_without_any_evidence_no_process_is_given_to_the_wrong_job(
    forest: Forest, data: st.DataObject
) -> None:
    processes, jobs, truth = forest
    left = end_processes(processes, data.draw(st.sets(st.sampled_from(sorted(processes)))))
    attribute(snapshot(*left.values()), jobs, WARDEN, {}, [process_tree.by_elimination])
    for job in jobs:
        assert all(truth[pid] == job.pid for pid in job.members)
        if len(jobs) == 1:
            assert set(job.members) == set(left)


@given(forests())
def test_descendants_are_all_below_and_nothing_else(forest: Forest) -> None:
    processes, jobs, truth = forest
    for job in jobs:
        assert {item.pid for item in descendants(processes, job.pid)} == {
            pid for pid, owner in truth.items() if owner == job.pid
        } - {job.pid}


def test_a_time_of_the_monotonic_clock_is_compared_with_the_start_of_a_process() -> None:
    before = process_tree.ticks_since_boot(time.monotonic())
    with subprocess.Popen(["sleep", "1000"]) as program:
        found = process_tree.read_process(program.pid)
        after = process_tree.ticks_since_boot(time.monotonic())
        program.kill()
    assert found is not None
    assert before <= found.start <= after
