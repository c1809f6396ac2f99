from __future__ import annotations

import itertools
import math
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.proc import memory
from execd.proc.memory import (
    EPISODE_SECONDS,
    SAMPLE_SECONDS,
    SETTLE_SECONDS,
    Account,
    MemoryMonitor,
    MemoryPolicy,
)
from execd.proc.memory_meter import Reading
from execd.proc.messages import Configure

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
POD = 1000
RESERVE = 100


def reading(used_mib: int, *, anonymous_mib: int | None = None, shared_mib: int = 0) -> Reading:
    return Reading(
        POD * MIB,
        used_mib * MIB,
        (used_mib if anonymous_mib is None else anonymous_mib) * MIB,
        shared_mib * MIB,
    )


def account(
    tag: int,
    tree_mib: int,
    *,
    limit_mib: int = 0,
    before: Reading | None = None,
    ending: bool = False,
) -> Account:
    made = Account(tag, limit_mib * MIB, before or reading(0))
    made.record_scan(tree_mib * MIB, ending=ending)
    return made


@pytest.fixture
def policy() -> MemoryPolicy:
    """A policy with a reserve. A reading has shown the reserve whole."""
    made = MemoryPolicy()
    made.configure(RESERVE * MIB, 0)
    made.record(0.0, reading(0))
    return made


def ended(
    policy: MemoryPolicy, now: float, used_mib: int, *accounts: Account, shared_mib: int = 0
) -> list[int]:
    return [
        item.tag
        for item in policy.decide(
            now, reading(used_mib, shared_mib=shared_mib), accounts, 0.001
        ).to_end
    ]


# Limits.


def test_a_tree_is_over_its_limit_only_if_its_memory_and_the_growth_of_all_are(
    policy: MemoryPolicy,
) -> None:
    assert ended(policy, 1.0, 600, account(1, 501, limit_mib=500)) == [1]
    assert ended(policy, 1.0, 400, account(1, 900, limit_mib=500)) == [], "shared after forks"
    assert ended(policy, 1.0, 700, account(1, 499, limit_mib=500)) == [], "a neighbour's growth"
    assert ended(policy, 1.0, 700, account(1, 900)) == [], "no limit"
    assert ended(policy, 1.0, 700, account(1, 600, limit_mib=500, ending=True)) == [], (
        "is on its way out"
    )


def test_a_neighbours_end_hides_no_growth(policy: MemoryPolicy) -> None:
    grower = account(1, 0, limit_mib=300, before=reading(600))
    for used in (600, 100, 250):
        policy.plan_next_sample(1.0, reading(used), [grower])
    grower.record_scan(310 * MIB, ending=False)
    assert ended(policy, 1.0, 410, grower) == [1]


def test_the_peak_stays() -> None:
    tree = account(1, 70)
    tree.record_scan(20 * MIB, ending=False)
    assert (tree.tree_bytes, tree.peak_tree_bytes) == (20 * MIB, 70 * MIB)


# The reserve.


def test_the_largest_tree_ends_when_the_reserve_is_touched_and_not_before(
    policy: MemoryPolicy,
) -> None:
    trees = account(1, 200), account(2, 500), account(3, 100)
    assert ended(policy, 1.0, 900, *trees) == []
    assert ended(policy, 1.0, 901, *trees) == [2]


def test_while_memory_comes_back_nobody_else_ends(policy: MemoryPolicy) -> None:
    hog, other = account(1, 500), account(2, 300)
    assert ended(policy, 1.0, 910, hog, other) == [1]
    hog.record_scan(500 * MIB, ending=True)
    assert ended(policy, 1.1, 915, hog, other) == []
    hog.record_scan(0, ending=True)  # dead, and the memory is not back yet
    assert ended(policy, 1.0 + SETTLE_SECONDS * 0.9, 950, hog, other) == []
    assert ended(policy, 2.0, 400, other) == []


def test_a_second_hog_ends_while_the_memory_of_the_first_comes_back(policy: MemoryPolicy) -> None:
    hog, second, small = account(1, 500), account(2, 300), account(3, 10)
    assert ended(policy, 1.0, 920, hog, second, small) == [1]
    hog.record_scan(0, ending=True)
    second.record_scan(339 * MIB, ending=False)
    assert ended(policy, 1.1, 959, hog, second, small) == []
    second.record_scan(341 * MIB, ending=False)
    assert ended(policy, 1.1, 961, hog, second, small) == [2]
    second.record_scan(0, ending=True)
    assert ended(policy, 1.2, 975, hog, second, small) == []


def test_a_hog_that_grows_on_until_its_kill_takes_effect_costs_no_other_tree(
    policy: MemoryPolicy,
) -> None:
    hog, other = account(1, 500), account(2, 300)
    assert ended(policy, 1.0, 910, hog, other) == [1]
    hog.record_scan(550 * MIB, ending=True)
    assert ended(policy, 1.1, 960, hog, other) == []
    hog.record_scan(590 * MIB, ending=True)
    assert ended(policy, 1.2, 1000, hog, other) == []
    hog.record_scan(0, ending=True)
    assert ended(policy, 1.25, 1000, hog, other) == [], "dead, and more than before is on the way"
    other.record_scan(350 * MIB, ending=False)
    assert ended(policy, 1.3, 1050, hog, other) == [2], "the other tree has grown as well"


def test_while_memory_comes_back_nobody_else_ends_with_more_in_use_than_there_is(
    policy: MemoryPolicy,
) -> None:
    hog, other = account(1, 500), account(2, 300)
    assert ended(policy, 1.0, 1200, hog, other) == [1]
    hog.record_scan(500 * MIB, ending=True)
    assert ended(policy, 1.1, 1200, hog, other) == []
    other.record_scan(399 * MIB, ending=False)
    assert ended(policy, 1.2, 1299, hog, other) == []
    other.record_scan(401 * MIB, ending=False)
    assert ended(policy, 1.3, 1301, hog, other) == [2], "half as much again is gone"


def test_what_has_not_come_back_in_time_is_not_waited_for(policy: MemoryPolicy) -> None:
    hog, other = account(1, 500), account(2, 300)
    assert ended(policy, 1.0, 910, hog, other) == [1]
    hog.record_scan(0, ending=True)
    assert ended(policy, 1.01 + SETTLE_SECONDS, 910, hog, other) == [2]


def test_a_process_that_takes_long_to_give_its_memory_back_costs_no_other_tree(
    policy: MemoryPolicy,
) -> None:
    hog, other = account(1, 500), account(2, 300)
    assert ended(policy, 1.0, 910, hog, other) == [1]
    for seconds in (0.6, 1.2, 1.8):
        hog.record_scan(0, ending=True, coming_back_bytes=500 * MIB)
        assert ended(policy, 1.0 + seconds, 905, hog, other) == []
    hog.record_scan(0, ending=True)
    assert ended(policy, 4.0, 905, hog, other) == [2]


@pytest.mark.parametrize(("coming_back_mib", "expected"), [(50, []), (49, [1])])
def test_a_process_that_dies_without_a_kill_of_ours_gives_its_memory_back_too(
    policy: MemoryPolicy, coming_back_mib: int, expected: list[int]
) -> None:
    dying, other = account(1, 540), account(2, 300)
    dying.record_scan(540 * MIB, ending=False, coming_back_bytes=coming_back_mib * MIB)
    assert ended(policy, 1.0, 950, dying, other) == expected


def test_a_tree_that_grows_while_memory_comes_back_ends(policy: MemoryPolicy) -> None:
    dying, other = account(1, 540), account(2, 300)
    dying.record_scan(540 * MIB, ending=False, coming_back_bytes=50 * MIB)
    assert ended(policy, 1.0, 950, dying, other) == []
    other.record_scan(326 * MIB, ending=False)
    assert ended(policy, 1.1, 976, dying, other) == [1], "half of what was left is gone"


def test_in_gvisor_trees_that_would_fill_the_rest_end_together(
    policy: MemoryPolicy,
) -> None:
    policy.runtime_bytes = MIB  # in gVisor
    still, slow = account(9, 120), account(10, 60)
    bombs = [account(tag, 30) for tag in range(8)]
    assert ended(policy, 1.0, 500, still, slow, *bombs) == []
    slow.record_scan(61 * MIB, ending=False)
    for tag, bomb in enumerate(bombs):
        bomb.record_scan((80 + tag) * MIB, ending=False)
    # Left are 98 MiB. Until memory is back, each bomb may take as much again as it holds.
    end = ended(policy, 1.2, 901, still, slow, *bombs)
    assert end[0] == 9, "the largest"
    assert sorted(end[1:]) == [1, 2, 3, 4, 5, 6, 7]
    bombs[0].record_scan(81 * MIB, ending=False)
    for bomb in bombs[1:]:
        bomb.record_scan(bomb.tree_bytes, ending=True)
    assert ended(policy, 1.3, 902, slow, *bombs) == [], "the rest is on its way back"


def test_in_gvisor_trees_end_together_that_a_late_scan_sees_for_the_first_time(
    policy: MemoryPolicy,
) -> None:
    policy.runtime_bytes = MIB
    still = account(9, 290)
    assert ended(policy, 1.0, 300, still) == []
    still.record_scan(290 * MIB, ending=False)
    assert ended(policy, 3.0, 910, still, account(1, 300), account(2, 290)) == [1, 2]


def test_in_gvisor_trees_that_do_not_grow_outlive_the_largest(policy: MemoryPolicy) -> None:
    policy.runtime_bytes = MIB
    hog, still = account(1, 300), account(2, 290)
    assert ended(policy, 1.0, 700, hog, still) == []
    hog.record_scan(500 * MIB, ending=False)
    still.record_scan(290 * MIB, ending=False)
    assert ended(policy, 1.1, 910, hog, still) == [1]


def test_in_gvisor_a_tree_that_grows_little_outlives_the_trees_that_fill_the_rest(
    policy: MemoryPolicy,
) -> None:
    policy.runtime_bytes = MIB
    hog, second, session = account(1, 300), account(2, 290), account(3, 36)
    assert ended(policy, 1.0, 700, hog, second, session) == []
    for grown, tree_mib in ((hog, 450), (second, 440), (session, 37)):
        grown.record_scan(tree_mib * MIB, ending=False)
    assert ended(policy, 1.1, 1040, hog, second, session) == [1, 2]


def test_in_gvisor_a_scan_begins_before_fast_growth_reaches_the_reserve(
    policy: MemoryPolicy,
) -> None:
    def needs_scan(at: float, used_mib: int) -> bool:
        return policy.plan_next_sample(at, reading(used_mib), [account(1, 10)]).needs_scan

    policy.runtime_bytes = MIB
    assert not needs_scan(1.0, 700)
    policy.decide(1.0, reading(700), [], 0.01)
    assert not needs_scan(1.05, 720), "left are 239 MiB after the lead of 40"
    assert needs_scan(1.1, 770), "left are 129 MiB after the lead of 100"


def test_a_tree_that_grows_fast_outlives_the_largest_natively(policy: MemoryPolicy) -> None:
    hog, grown = account(1, 100), account(2, 100)
    assert ended(policy, 1.0, 300, hog, grown) == []
    hog.record_scan(500 * MIB, ending=False)
    grown.record_scan(400 * MIB, ending=False)
    assert ended(policy, 1.1, 910, hog, grown) == [1]


def test_in_gvisor_growth_is_judged_earlier_by_the_time_of_a_scan(policy: MemoryPolicy) -> None:
    def left_mib(at: float, used_mib: int, shared_mib: int = 0) -> int:
        return policy.record(at, reading(used_mib, shared_mib=shared_mib)) >> 20

    assert [left_mib(1.0, 100), left_mib(1.1, 300)] == [900, 700]
    policy.runtime_bytes = MIB
    assert [left_mib(1.5, 100), left_mib(1.6, 300)] == [899, 699], "no tree is known"
    policy.plan_next_sample(1.9, reading(100), [account(1, 10)])
    assert left_mib(2.0, 100) == 899
    assert left_mib(2.1, 130) == 869 - 15, "150 MiB/s"
    assert left_mib(2.105, 135) == 864 - 16, "too soon for another pace"
    assert left_mib(2.2, 330) == 669 - 200, "2 GiB/s"
    assert left_mib(2.25, 330) == 669 - 2 * RESERVE, "figures of a moment ago"
    assert left_mib(2.3, 300) == 699, "it shrinks"
    assert left_mib(2.4, 600, 300) == 399, "a file in memory"
    assert policy.plan_next_sample(3.0, reading(300), [account(1, 10)]).needs_scan
    policy.decide(3.2, reading(330), [account(1, 40)], 0.01)  # a scan of 0.2 s
    assert left_mib(3.3, 350) == 649 - 100, "200 MiB/s"
    assert left_mib(3.4, 450) == 549 - 2 * RESERVE, "1 GiB/s"


def test_memory_of_the_runtime_counts_as_used_up_to_half_of_the_pod(policy: MemoryPolicy) -> None:
    assert ended(policy, 1.0, 850, account(1, 500)) == []
    policy.runtime_bytes = 60 * MIB
    assert policy.left_bytes(reading(850)) == 90 * MIB
    assert ended(policy, 1.1, 850, account(1, 500)) == [1]
    policy.runtime_bytes = 5000 * MIB
    assert policy.left_bytes(reading(300)) == 200 * MIB


def test_a_tree_that_somebody_else_is_ending_counts_as_memory_that_comes_back(
    policy: MemoryPolicy,
) -> None:
    assert ended(policy, 1.0, 950, account(1, 60, ending=True), account(2, 300)) == []
    assert ended(policy, 2.0, 950, account(1, 40, ending=True), account(2, 300)) == [2]


def test_shared_memory_that_grew_more_than_any_tree_holds_is_told_once_and_blamed_on_nobody(
    policy: MemoryPolicy,
) -> None:
    tree = account(1, 200)
    decision = policy.decide(1.0, reading(950, shared_mib=600), [tree], 0.001)
    assert (decision.to_end, decision.is_unexplained) == ([], True)
    assert not policy.decide(1.1, reading(960, shared_mib=610), [tree], 0.001).is_unexplained
    policy.decide(1.2, reading(500), [tree], 0.001)
    short = reading(950, shared_mib=600)
    assert not policy.decide(1.3, short, [tree], 0.001).is_unexplained, "whole for a moment only"
    last = 1.2 + EPISODE_SECONDS
    assert not policy.decide(last, short, [tree], 0.001).is_unexplained
    policy.decide(last + 0.1, reading(500), [tree], 0.001)
    again = last + EPISODE_SECONDS
    assert policy.decide(again, short, [tree], 0.001).is_unexplained, "after it was whole"
    for pause in range(1, 4):  # nothing samples between two commands
        later = again + pause * 2 * EPISODE_SECONDS
        assert not policy.decide(later, short, [tree], 0.001).is_unexplained, "it lasts"


def test_memory_of_files_that_were_removed_is_waited_for_too(policy: MemoryPolicy) -> None:
    neighbour, hog = account(1, 100), account(2, 200)
    full = reading(950, anonymous_mib=940, shared_mib=800)
    late = reading(950, anonymous_mib=140)
    assert policy.decide(1.0, full, [neighbour], 0.001).to_end == []
    assert policy.decide(1.1, late, [neighbour], 0.001).to_end == [], (
        "it is free, and does not show yet"
    )
    assert policy.decide(1.2, reading(976, anonymous_mib=340), [neighbour, hog], 0.001).to_end == [
        hog
    ], "half of what was left is gone"


def test_memory_of_removed_files_that_has_not_come_back_in_time_is_not_waited_for(
    policy: MemoryPolicy,
) -> None:
    neighbour = account(1, 100)
    policy.record(1.0, reading(880, anonymous_mib=870, shared_mib=800))
    after = reading(950, anonymous_mib=140)
    for now in (1.4, 1.9):
        assert policy.decide(now, after, [neighbour], 0.001).to_end == []
    assert policy.decide(2.5, after, [neighbour], 0.001).to_end == [neighbour]


def test_memory_that_was_never_given_back_is_not_waited_for(policy: MemoryPolicy) -> None:
    policy.record(1.0, reading(800, anonymous_mib=100))
    kernel = reading(950, anonymous_mib=100)
    assert policy.decide(1.1, kernel, [account(1, 100)], 0.001).to_end != [], (
        "the rest grew, and nobody gave anything back"
    )


def test_shared_memory_from_before_a_tree_protects_it_not(policy: MemoryPolicy) -> None:
    tree = account(1, 200, before=reading(600, shared_mib=500))
    assert ended(policy, 1.0, 950, tree, shared_mib=550) == [1]


def test_a_reserve_that_was_never_whole_is_nobodys_fault() -> None:
    policy = MemoryPolicy()
    policy.configure(RESERVE * MIB, 500 * MIB)
    tree = account(1, 300)
    assert ended(policy, 1.0, 2000, tree) == []
    assert ended(policy, 2.0, 300, tree) == []
    assert ended(policy, 3.0, 450, tree) == [1]


def test_a_pod_smaller_than_the_machine_has_its_own_size(policy: MemoryPolicy) -> None:
    policy.configure(RESERVE * MIB, 400 * MIB)
    assert policy.left_bytes(reading(300)) == 100 * MIB
    policy.configure(RESERVE * MIB, 4000 * MIB)
    assert policy.left_bytes(reading(300)) == 700 * MIB


@given(st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 900), st.floats(0, 1)), max_size=30))
def test_whatever_is_read_a_decision_names_living_trees_and_the_same_reading_names_no_more(
    steps: list[tuple[int, int, float]],
) -> None:
    policy = MemoryPolicy()
    policy.configure(RESERVE * MIB, 0)
    trees = [account(1, 100), account(2, 200, limit_mib=150)]
    now = 0.0
    for used, tree_mib, later in steps:
        now += later
        trees[0].record_scan(tree_mib * MIB, ending=trees[0].is_ending)
        end = policy.decide(now, reading(used), trees, 0.001).to_end
        assert not any(item.is_ending for item in end)
        assert len(end) == len(set(end))
        for item in end:
            item.is_ending = True
        assert policy.decide(now, reading(used), trees, 0.001).to_end == []


# Memory shared with programs outside execd.


@pytest.fixture
def shared_policy() -> MemoryPolicy:
    made = MemoryPolicy()
    made.configure(RESERVE * MIB, 0, only_growth=True)
    made.record(0.0, reading(0))
    return made


def test_a_tree_ends_for_the_machine_only_for_what_has_grown_since_its_start(
    shared_policy: MemoryPolicy,
) -> None:
    old = account(1, 400, before=reading(800))
    grower = account(2, 300, before=reading(600))
    assert ended(shared_policy, 1.0, 910, old, grower) == [2], (
        "the larger one holds what it held before"
    )


def test_a_machine_that_others_have_filled_is_no_trees_fault(shared_policy: MemoryPolicy) -> None:
    trees = [account(tag, 10, before=reading(500)) for tag in range(3)]
    decision = shared_policy.decide(1.0, reading(940), trees, 0.001)
    assert (decision.to_end, decision.is_unexplained) == ([], True), "30 do not make up for 40"


def test_a_tree_that_has_not_grown_adds_nothing_to_the_growth_of_the_others(
    shared_policy: MemoryPolicy,
) -> None:
    """One byte more of the grower, and the grower ends."""
    now = reading(950)
    still = account(1, 0, before=now)
    grower = account(2, 0, before=reading(0))
    for grown_bytes, to_end in ((50 * MIB - 1, []), (50 * MIB, [grower])):
        grower.record_scan(grown_bytes, ending=False)
        assert shared_policy.decide(1.0, now, [still, grower], 0.001).to_end == to_end


def test_trees_that_hold_more_than_is_left_of_the_machine_end_whoever_filled_the_rest(
    shared_policy: MemoryPolicy,
) -> None:
    hog = account(1, 45, before=reading(930))
    assert ended(shared_policy, 1.0, 950, hog) == [], "it has grown by 20, 50 are missing"
    assert ended(shared_policy, 2.0, 975, hog) == [1]


def test_a_crowd_of_small_trees_is_to_blame_together(shared_policy: MemoryPolicy) -> None:
    crowd = [account(tag, 10, before=reading(0)) for tag in range(20)]
    assert len(ended(shared_policy, 1.0, 940, *crowd)) == 1


# When to sample.


def test_looks_come_closer_as_room_shrinks(policy: MemoryPolicy) -> None:
    pauses = [
        policy.plan_next_sample(1.0, reading(used), []).pause_seconds
        for used in (0, 500, 700, 895, 950)
    ]
    assert pauses == sorted(pauses, reverse=True)
    assert pauses[-1] == SAMPLE_SECONDS[0]


def test_a_scan_is_called_for_when_there_is_no_room_or_much_has_changed(
    policy: MemoryPolicy,
) -> None:
    def scan(now: float, used_mib: int) -> bool:
        return policy.plan_next_sample(now, reading(used_mib), []).needs_scan

    assert not scan(1.0, 500)
    assert scan(1.0, 901)
    policy.decide(1.0, reading(901), [], 0.01)
    assert not scan(1.1, 902), "just looked, and nothing new"
    assert scan(1.1, 930), "it grows fast"
    assert scan(1.3, 902), "after a while"
    policy.decide(2.0, reading(100), [], 0.01)
    assert not scan(2.3, 150)
    assert scan(2.3, 200)


@pytest.fixture
def monitor() -> Iterator[MemoryMonitor]:
    made = MemoryMonitor()
    yield made
    made.close()


def test_nobody_looks_for_trees_without_a_limit_where_no_reserve_is_kept(
    monitor: MemoryMonitor,
) -> None:
    unlimited = monitor.open_account(1, 0)
    monitor.begin_sampling(unlimited)
    assert monitor.next_sample == math.inf
    limited = monitor.open_account(2, 5 * MIB)
    assert 0 < limited.anonymous_before < 1 << 50
    monitor.begin_sampling(limited)
    assert monitor.next_sample < time.monotonic() + 1
    monitor.sample([limited])
    assert monitor.next_sample < time.monotonic() + 1
    monitor.sample([unlimited])
    assert monitor.next_sample == math.inf


def test_a_sample_that_took_long_beside_busy_trees_puts_off_no_other(
    monitor: MemoryMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = monitor.open_account(1, 5 * MIB)
    clock = itertools.count(1.0, 0.1)
    clocks = SimpleNamespace(monotonic=lambda: next(clock), thread_time=lambda: 0.5)
    monkeypatch.setattr(memory, "time", clocks)
    monitor.sample([limited])
    assert monitor.next_sample <= next(clock) + SAMPLE_SECONDS[1]


@pytest.mark.parametrize(("runtime_bytes", "pause_seconds"), [(0, 2.0), (MIB, 0.25)])
def test_a_sample_is_followed_by_a_pause_for_its_cpu_time_but_in_gvisor(
    monitor: MemoryMonitor,
    monkeypatch: pytest.MonkeyPatch,
    runtime_bytes: int,
    pause_seconds: float,
) -> None:
    limited = monitor.open_account(1, 1 << 60)
    monitor.policy.runtime_bytes = runtime_bytes
    busy = itertools.count(0.0, 0.1)
    clocks = SimpleNamespace(monotonic=lambda: 1.0, thread_time=lambda: next(busy))
    monkeypatch.setattr(memory, "time", clocks)
    monitor.sample([limited])
    assert monitor.next_sample == 1.0 + pause_seconds


def test_a_tree_is_looked_at_from_when_it_is_there_and_not_from_when_it_was_asked_for(
    monitor: MemoryMonitor,
) -> None:
    """A worker greets long after the worker's account was opened. Samples without a tree must not
    stop the sampling."""
    account = monitor.open_account(1, 5 * MIB)
    monitor.sample([])
    assert monitor.next_sample == math.inf
    monitor.begin_sampling(account)
    assert monitor.next_sample < time.monotonic() + 1


def test_a_tree_without_a_limit_costs_no_reading_of_its_own(monitor: MemoryMonitor) -> None:
    assert monitor.configure(Configure(100 * MIB, 0)) is None
    lately = monitor.open_account(1, 0)
    assert 0 < lately.anonymous_before < 1 << 50, "what was read a moment ago"
    monitor._latest_at = -math.inf
    alone = monitor.open_account(2, 0)
    now = monitor.reading()
    assert now is not None
    assert alone.grown_bytes(now) < 0, "nothing is known of it before the first look"
    monitor.begin_sampling(alone)
    monitor.sample([alone])
    assert alone.anonymous_before < 1 << 50
    due = monitor.next_sample
    monitor.begin_sampling(lately)
    assert monitor.next_sample == due, "the pace allows for it"


def test_a_cgroup_that_is_not_there_is_said(monitor: MemoryMonitor) -> None:
    said = monitor.configure(Configure(100 * MIB, 0, "/nonexistent"))
    assert said is not None
    assert "/nonexistent" in said
    assert monitor.sample([monitor.open_account(1, 5 * MIB)]) is False
