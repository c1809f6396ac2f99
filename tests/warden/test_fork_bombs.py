"""When a crowd is a bomb, and the order of continuation after a freeze."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from execd.proc.kernel_traits import GVISOR, LINUX, KernelTraits
from execd.proc.memory import Account
from execd.proc.messages import Spawn
from execd.proc.process_tree import Process
from execd.proc.program_block import pack
from execd.warden import fork_bombs
from execd.warden.fork_bombs import (
    FIRST_PIECE,
    HELD_SECONDS,
    RISING_TASKS,
    ForkBombs,
    Unstoppable,
    children_first,
)
from execd.warden.job import Job, JobTable

if TYPE_CHECKING:
    from collections.abc import Iterable

LIMIT = 512
INIT, SHELL = 1, 10


def job(tag: int = 1, limit: int = LIMIT, *, is_idle: bool = False) -> Job:
    request = Spawn(
        tag, pack(["sh"], {}, "/"), [], False, [], limit, "A=b", None, None, None, is_idle=is_idle
    )
    return Job(request, SHELL, 0, frozenset(), Account(tag, 0, None), spawned_at=0.0, session=SHELL)


def process(pid: int, parent: int = SHELL, state: str = "T", n_threads: int = 1) -> Process:
    return Process(pid, state, parent, SHELL, SHELL, start=pid, n_threads=n_threads)


def scan(*processes: Process) -> dict[int, Process]:
    return {
        found.pid: found
        for found in (Process(INIT, "S", 0, INIT, INIT, 0), process(SHELL, INIT), *processes)
    }


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(pid, signal) instead of signals to real processes."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(fork_bombs, "send_signal", lambda pid, number: found.append((pid, number)))
    return found


def bombs(*jobs: Job, traits: KernelTraits = LINUX) -> ForkBombs:
    return ForkBombs(table(*(jobs or (job(),))), traits, is_init=True)


def table(*jobs: Job) -> JobTable:
    made = JobTable()
    for each in jobs:
        made.add(each)
    return made


def thaw(bombs: ForkBombs, processes: dict[int, Process], **which: Iterable[int]) -> None:
    options: dict[str, Any] = {"guilty": (), "growing": ()} | which
    bombs.thaw(processes, len(processes), **options)


def test_more_tasks_than_a_limit_and_a_few_for_each_job_are_a_bomb() -> None:
    found = bombs()
    found.record_count(LIMIT)
    assert not found.is_suspected(LIMIT + 8)
    assert found.is_suspected(LIMIT + 9)


def test_without_a_limit_no_crowd_is_a_bomb() -> None:
    assert not bombs(job(limit=0)).is_suspected(30_000)
    assert not bombs(job(is_idle=True)).is_suspected(30_000)


def test_a_crowd_that_a_scan_has_explained_is_no_bomb() -> None:
    found = bombs()
    found.record_scan([], 2000)
    found.record_count(2000)
    assert not found.is_suspected(2000 + LIMIT)


def test_a_burst_forbids_to_read_and_is_a_bomb_early_only_in_gvisor() -> None:
    assert bombs().is_burst(LINUX.burst_tasks + 1)
    assert not bombs().may_read(LINUX.burst_tasks + 1)
    assert not bombs().is_suspected(LINUX.burst_tasks + 1)
    assert bombs().may_read(LINUX.burst_tasks)
    assert bombs(traits=GVISOR).is_suspected(GVISOR.burst_tasks + 1)
    assert not bombs(traits=GVISOR).may_read(RISING_TASKS + 1)
    assert bombs(traits=GVISOR).may_read(RISING_TASKS)


def test_without_a_limit_of_processes_no_burst_forbids_to_read_natively() -> None:
    """No freeze would follow, and foreign processes may begin all the time."""
    assert bombs(job(limit=0)).may_read(LINUX.burst_tasks + 1)
    assert not bombs(job(limit=0), traits=GVISOR).may_read(GVISOR.burst_tasks + 1)


def test_a_scan_that_takes_long_beside_half_a_limit_more_is_outrun() -> None:
    found = bombs()
    found.record_scan([], LIMIT)
    found.record_count(2 * LIMIT)
    assert not found.is_suspected(2 * LIMIT, scan_age_seconds=0.05)
    assert found.is_suspected(2 * LIMIT, scan_age_seconds=0.2)
    assert not found.is_suspected(LIMIT + LIMIT // 2, scan_age_seconds=0.2)


def test_a_scan_that_is_starved_natively_is_reason_enough_for_a_freeze() -> None:
    """A limit of the pod keeps the bombs from growing. An earlier scan explains the bombs, and the
    bombs spin."""
    for traits in (LINUX, GVISOR):
        found = bombs(traits=traits)
        found.record_scan([], 2000)
        found.record_count(2000)
        assert not found.is_suspected(2000, scan_age_seconds=0.4)
        assert found.is_suspected(2000, scan_age_seconds=0.6) is not traits.bombs_hold_calls
        assert not found.is_suspected(LIMIT, scan_age_seconds=0.6)


def test_a_freeze_stops_until_no_more_tasks_appear(
    sent: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_bombs.os, "getpid", lambda: INIT)
    counts = iter([5, 9, 12, 12, 13, 13])
    assert bombs().freeze(lambda: next(counts))
    assert sent == [(-1, 19)] * 4


def test_in_gvisor_each_round_stops_the_newborn_and_nudges_those_who_missed_a_stop(
    sent: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newborn bomber may ignore all signals but SIGSTOP. A bomber in vfork misses SIGSTOP, and a
    second SIGSTOP has no effect."""
    monkeypatch.setattr(fork_bombs.os, "getpid", lambda: INIT)
    assert bombs(traits=GVISOR).freeze(lambda: 5)
    assert [number for _, number in sent] == [19, 19, 21, 19, 22, 19, 20, 19, 21, 19, 22]


def test_bomb_that_outgrows_a_whole_freeze_in_gvisor_is_for_the_namespace_to_end(
    sent: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_bombs.os, "getpid", lambda: INIT)
    traits = GVISOR._replace(freeze_seconds=0.1)
    count = itertools.count(10_000, 100)  # a slow machine may have time for a single round
    with pytest.raises(Unstoppable):
        bombs(traits=traits).freeze(lambda: next(count))
    assert {pid for pid, _ in sent} == {-1}


class SlowTime:
    """A clock of a starved warden: each pause takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _seconds: float) -> None:
        self.now += 1.0


def test_a_freeze_in_gvisor_that_is_quiet_at_last_goes_on_beyond_its_time(
    sent: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_bombs.os, "getpid", lambda: INIT)
    monkeypatch.setattr(fork_bombs, "time", SlowTime())
    counts = itertools.chain([800, 900], itertools.repeat(900))
    assert bombs(traits=GVISOR).freeze(lambda: next(counts))
    counts = itertools.chain([700, 800, 900], itertools.repeat(900))
    with pytest.raises(Unstoppable):
        bombs(traits=GVISOR).freeze(lambda: next(counts))


def test_without_a_namespace_nothing_is_taken_to_stand_still(sent: list[tuple[int, int]]) -> None:
    groups = ForkBombs(table(job()), LINUX, is_init=False)
    assert not groups.freeze(lambda: 5)
    assert {pid for pid, _ in sent} == {-SHELL}


def test_a_native_freeze_without_a_namespace_ends_beside_foreign_tasks_that_begin(
    sent: list[tuple[int, int]],
) -> None:
    groups = ForkBombs(table(job()), LINUX, is_init=False)
    counts = itertools.count()
    assert not groups.freeze(lambda: next(counts))
    assert sent == [(-SHELL, 19)] * fork_bombs.BARE_ROUNDS


def test_a_freeze_outside_of_a_namespace_is_refused(sent: list[tuple[int, int]]) -> None:
    with pytest.raises(AssertionError):
        bombs().freeze(lambda: 0)
    assert sent == []


def test_children_go_on_before_their_parents(sent: list[tuple[int, int]]) -> None:
    processes = scan(process(30, 20), process(20), process(40, 30), process(21))
    assert children_first(processes)[0] == 40
    thaw(bombs(), processes)
    order = [pid for pid, number in sent if number == 18]
    assert sorted(order) == [SHELL, 20, 21, 30, 40], (
        "the init itself is not stopped, and gets nothing"
    )
    for parent, child in ((SHELL, 20), (SHELL, 21), (20, 30), (30, 40)):
        assert order.index(child) < order.index(parent)


def test_what_was_stopped_before_stays_stopped_and_the_guilty_get_nothing(
    sent: list[tuple[int, int]],
) -> None:
    found = bombs()
    found.record_scan([process(20, state="T"), process(21, state="S")], 4)
    thaw(found, scan(process(20), process(21), process(22), process(23, state="Z")), guilty={22})
    assert {pid for pid, _ in sent} == {SHELL, 21}


def test_a_grown_tree_goes_on_in_pieces_that_double_while_nothing_rises(
    sent: list[tuple[int, int]],
) -> None:
    found = bombs(traits=GVISOR)
    crowd = range(100, 140)
    found.record_count(50)
    thaw(found, scan(*map(process, crowd)), growing=set(crowd))
    assert [pid for pid, _ in sent] == [SHELL]
    n_continued = 1
    for piece in (FIRST_PIECE, 2 * FIRST_PIECE, 4 * FIRST_PIECE):
        assert not found.may_read(50)
        found.record_count(50)
        n_continued += piece
        assert len(sent) == n_continued
    found.record_count(50)
    assert {pid for pid, _ in sent} == {SHELL, *crowd}
    assert found.may_read(50)


def test_a_rise_holds_a_grown_tree_back_but_not_for_good(
    sent: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(fork_bombs.time, "monotonic", lambda: now)
    found = bombs(traits=GVISOR)
    crowd = range(100, 140)
    found.record_count(50)
    thaw(found, scan(*map(process, crowd)), growing=set(crowd))
    before = list(sent)
    found.record_count(50 + RISING_TASKS + 1)
    assert sent == before
    # After HELD_SECONDS the rise of neighbours no longer counts.
    now += HELD_SECONDS + 0.01
    found.record_count(50 + 2 * (RISING_TASKS + 1))
    assert len(sent) == len(before) + FIRST_PIECE


def test_the_brake_gets_room_for_a_limit_a_few_tasks_for_each_job_and_a_burst() -> None:
    found = bombs()
    found.record_scan([], 100)
    assert found.brake_room(100) == LIMIT + 8 + LINUX.burst_tasks
    assert found.brake_room(150) == LIMIT + 8 + LINUX.burst_tasks - 50
    assert found.brake_room(5000) == LINUX.burst_tasks, (
        "a crowd that is not explained yet may still grow a little"
    )


def test_a_start_gets_the_room_that_a_job_with_its_limit_would_have() -> None:
    at_rest, beside_a_job = bombs(job(limit=0)), bombs(job(limit=0), job(tag=2))
    for found in (at_rest, beside_a_job):
        found.record_scan([], 100)
    for n_tasks in (100, 150, 5000):
        base, spare = at_rest.brake_figures(n_tasks)
        assert max(base + LIMIT, 0) + spare == beside_a_job.brake_room(n_tasks)


def test_the_next_look_may_not_be_late_once_a_tree_may_be_over_its_limit() -> None:
    assert bombs().brake_patience_seconds(LIMIT) == 0
    assert bombs().brake_patience_seconds(LIMIT + 1) == LINUX.late_seconds
    assert bombs(traits=GVISOR).brake_patience_seconds(LIMIT + 1) == GVISOR.late_seconds
    assert bombs(job(limit=0)).brake_patience_seconds(30_000) == 0


def test_without_a_limit_the_brake_is_released() -> None:
    assert bombs(job(limit=0)).brake_room(30_000) == 0
