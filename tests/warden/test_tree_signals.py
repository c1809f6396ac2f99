"""The processes of a tree chosen for a signal. ``test_main`` has real trees."""

from __future__ import annotations

import signal

import pytest

from execd.proc import tree_mark
from execd.proc.memory import Account
from execd.proc.messages import Spawn
from execd.proc.process_tree import Process, ticks_since_boot
from execd.proc.program_block import pack
from execd.warden import tree_signals
from execd.warden.job import Job
from execd.warden.tree_kill import KILL, TERMINATE, Phase, Send, TreeKill
from execd.warden.tree_signals import (
    send_kill_signals,
    send_waiting_signals,
    signal_leader_group,
)

LEADER, CHILD, DETACHED = 10, 11, 12
NOW = 100.0
MEMBERS = [
    Process(LEADER, "S", 1, LEADER, LEADER, start=0),
    Process(CHILD, "Z", LEADER, LEADER, LEADER, start=0),
    Process(DETACHED, "S", 1, DETACHED, DETACHED, start=0),
]


@pytest.fixture
def job() -> Job:
    request = Spawn(1, pack(["sh"], {}, "/"), [], False, [], 0, "A=b", None, None, None)
    account = Account(1, 0, None)
    return Job(request, LEADER, 0, frozenset(), account, spawned_at=0.0, session=LEADER)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(pid, signal) instead of signals to real processes."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(
        tree_signals, "send_signal", lambda pid, number: found.append((pid, number))
    )
    return found


def test_the_group_of_a_reaped_leader_gets_nothing(job: Job, sent: list[tuple[int, int]]) -> None:
    job.kill = TreeKill(NOW, 0.0, group=LEADER)
    signal_leader_group(job)
    assert sent == [(-LEADER, signal.SIGKILL)]
    assert job.kill.killed == {LEADER}
    job.reaped_at = NOW
    signal_leader_group(job)
    assert len(sent) == 1


def test_a_session_or_a_whole_tree_is_signaled_and_the_dead_are_not(
    job: Job, sent: list[tuple[int, int]]
) -> None:
    job.signals = {(signal.SIGUSR1, "session", 0): NOW, (signal.SIGUSR2, "tree", 0): NOW}
    send_waiting_signals(job, NOW + 1, MEMBERS)
    assert sent == [
        (LEADER, signal.SIGUSR1),
        (LEADER, signal.SIGUSR2),
        (DETACHED, signal.SIGUSR2),
    ]
    assert job.signals == {}


def test_a_signal_waits_for_a_scan_that_begins_after_the_request(
    job: Job, sent: list[tuple[int, int]]
) -> None:
    job.signals = {(signal.SIGUSR1, "tree", 0): NOW}
    send_waiting_signals(job, NOW - 1, MEMBERS)
    assert sent == []
    assert job.signals


def test_a_signal_to_a_cell_reaches_the_cells_processes_in_the_leaders_group(
    job: Job, sent: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tree_mark.of_cell(tree_mark.of_tree(tree_mark.MARKED, 1), 2)
    marks = {LEADER: mark, 21: mark, 22: mark - 1, 23: mark, 24: mark}
    monkeypatch.setattr(tree_mark, "of_process", marks.__getitem__)
    members = [
        Process(LEADER, "S", 1, LEADER, LEADER, start=0),
        Process(21, "S", LEADER, LEADER, LEADER, start=0),
        Process(22, "S", LEADER, LEADER, LEADER, start=0),
        Process(23, "S", LEADER, 23, LEADER, start=0),
        Process(24, "Z", LEADER, LEADER, LEADER, start=0),
    ]
    assert [one.pid for one in job.find_of_cell(mark, members)] == [21, 23]
    job.signals = {(signal.SIGINT, "cell", mark): NOW}
    send_waiting_signals(job, NOW + 1, members)
    assert sent == [(21, signal.SIGINT)]


def test_a_process_without_a_mark_is_of_the_cell_if_it_is_of_the_counted_work(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = Process(LEADER, "S", 1, LEADER, LEADER, start=0)
    job.restart_counts(leader, NOW)
    tick = ticks_since_boot(NOW)
    monkeypatch.setattr(tree_mark, "of_process", lambda pid: 0)
    older, newer = (
        Process(pid, "S", LEADER, pid, LEADER, start=tick + after)
        for pid, after in ((21, -500), (22, 500))
    )
    assert job.find_of_cell(tree_mark.MARKED, [leader, older, newer]) == [newer]


def test_a_group_with_a_process_that_lives_on_is_not_killed_as_a_group(
    sent: list[tuple[int, int]],
) -> None:
    leader, _, detached = MEMBERS
    beside = Process(21, "S", LEADER, LEADER, LEADER, start=0)
    send_kill_signals(Phase.KILLING, Send(KILL, (21, DETACHED)), [beside, detached], [leader])
    assert sent == [
        (-DETACHED, signal.SIGKILL),
        (21, signal.SIGKILL),
        (DETACHED, signal.SIGKILL),
    ]


def test_groups_are_killed_before_pids_and_never_terminated(sent: list[tuple[int, int]]) -> None:
    alive = [member for member in MEMBERS if not member.is_dead]
    send_kill_signals(Phase.KILLING, Send(KILL, (LEADER, DETACHED)), alive)
    assert sorted(sent[:2]) == [(-DETACHED, signal.SIGKILL), (-LEADER, signal.SIGKILL)]
    assert sent[2:] == [(LEADER, signal.SIGKILL), (DETACHED, signal.SIGKILL)]
    sent.clear()
    send_kill_signals(Phase.TERMINATING, Send(TERMINATE, (DETACHED,)), alive)
    assert sent == [(DETACHED, signal.SIGTERM), (DETACHED, signal.SIGCONT)]
