"""The processes of a tree chosen for a signal. ``test_main`` has real trees."""

from __future__ import annotations

import signal

import pytest

from execd.proc.memory import Account
from execd.proc.messages import Spawn
from execd.proc.process_tree import Process
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
    job.signals = {(signal.SIGUSR1, "session"): NOW, (signal.SIGUSR2, "tree"): NOW}
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
    job.signals = {(signal.SIGUSR1, "tree"): NOW}
    send_waiting_signals(job, NOW - 1, MEMBERS)
    assert sent == []
    assert job.signals


def test_groups_are_killed_before_pids_and_never_terminated(sent: list[tuple[int, int]]) -> None:
    alive = [member for member in MEMBERS if not member.is_dead]
    send_kill_signals(Phase.KILLING, Send(KILL, (LEADER, DETACHED)), alive)
    assert sorted(sent[:2]) == [(-DETACHED, signal.SIGKILL), (-LEADER, signal.SIGKILL)]
    assert sent[2:] == [(LEADER, signal.SIGKILL), (DETACHED, signal.SIGKILL)]
    sent.clear()
    send_kill_signals(Phase.TERMINATING, Send(TERMINATE, (DETACHED,)), alive)
    assert sent == [(DETACHED, signal.SIGTERM), (DETACHED, signal.SIGCONT)]
