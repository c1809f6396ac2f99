from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.proc.memory import LOOK_SECONDS, SETTLE_SECONDS, Account, Guard, Reading, Watch, parse_meminfo, parse_zoneinfo

MIB = 1 << 20
POD = 1000
RESERVE = 100

GVISOR = b"""MemTotal:       24684084 kB
MemFree:        24669464 kB
MemAvailable:   24669400 kB
Buffers:               0 kB
Cached:             7400 kB
SwapCache:             0 kB
Active:            10908 kB
Inactive:           3700 kB
Active(anon):       7208 kB
Inactive(anon):        0 kB
Active(file):       3700 kB
Inactive(file):     3700 kB
Unevictable:          16 kB
Mlocked:               0 kB
SwapTotal:             0 kB
AnonPages:          7208 kB
Mapped:             7400 kB
Shmem:               300 kB
"""


def reading(used_mib: int, *, anonymous_mib: int | None = None, shared_mib: int = 0) -> Reading:
    return Reading(POD * MIB, used_mib * MIB, (used_mib if anonymous_mib is None else anonymous_mib) * MIB, shared_mib * MIB)


def account(tag: int, tree_mib: int, *, limit_mib: int = 0, before: Reading | None = None, ending: bool = False) -> Account:
    made = Account(tag, limit_mib * MIB, before or reading(0))
    made.scanned(tree_mib * MIB, ending=ending)
    return made


@pytest.fixture
def watch() -> Watch:
    """With a reserve, which has been seen whole."""
    made = Watch()
    made.configure(RESERVE * MIB, 0)
    made.notice(0.0, reading(0))
    return made


def ended(watch: Watch, now: float, used_mib: int, *accounts: Account, shared_mib: int = 0) -> list[int]:
    return [item.tag for item in watch.judge(now, reading(used_mib, shared_mib=shared_mib), accounts, 0.001).end]


# Reading.


def test_a_meminfo_as_gvisor_writes_it_is_read() -> None:
    assert parse_meminfo(GVISOR) == Reading(24684084 << 10, 14684 << 10, 7224 << 10, 300 << 10)


def test_this_kernels_meminfo_is_read() -> None:
    found = parse_meminfo(Path("/proc/meminfo").read_bytes())
    assert 0 < found.used_bytes < found.total_bytes
    assert 0 <= found.shared_bytes <= found.anonymous_bytes < found.total_bytes


@pytest.mark.parametrize(
    "text", [b"", b"MemTotal: 1 kB\n", GVISOR.replace(b"Shmem:", b"Shmoo:"), GVISOR.replace(b"MemAvailable", b"Mem")]
)
def test_what_is_no_meminfo_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match="meminfo"):
        parse_meminfo(text)


def test_pages_on_the_lists_of_the_cpus_are_summed_up() -> None:
    text = b"Node 0, zone DMA\n  pages free 3840\n  pagesets\n    cpu: 0\n              count:    7\n              high: 9\n"
    text += b"    cpu: 1\n              count:    3\n"
    assert parse_zoneinfo(text) == 10 * mmap.PAGESIZE


def test_anonymous_memory_shows_at_once_when_it_is_taken_and_when_it_is_given_back() -> None:
    def anonymous() -> int:
        return parse_meminfo(Path("/proc/meminfo").read_bytes()).anonymous_bytes

    before = anonymous()
    held = bytearray(b"x") * (400 * MIB)
    grown = anonymous() - before
    del held
    assert grown > 200 * MIB
    assert anonymous() - before < grown - 200 * MIB


# Limits.


def test_a_tree_is_over_its_limit_only_if_its_memory_and_the_growth_of_all_are(watch: Watch) -> None:
    assert ended(watch, 1.0, 600, account(1, 501, limit_mib=500)) == [1]
    assert ended(watch, 1.0, 400, account(1, 900, limit_mib=500)) == [], "shared after forks"
    assert ended(watch, 1.0, 700, account(1, 499, limit_mib=500)) == [], "a neighbour's growth"
    assert ended(watch, 1.0, 700, account(1, 900)) == [], "no limit"
    assert ended(watch, 1.0, 700, account(1, 600, limit_mib=500, ending=True)) == [], "is on its way out"


def test_a_neighbours_end_hides_no_growth(watch: Watch) -> None:
    grower = account(1, 0, limit_mib=300, before=reading(600))
    for used in (600, 100, 250):
        watch.look(1.0, reading(used), [grower])
    grower.scanned(310 * MIB, ending=False)
    assert ended(watch, 1.0, 410, grower) == [1]


def test_the_peak_stays() -> None:
    tree = account(1, 70)
    tree.scanned(20 * MIB, ending=False)
    assert (tree.tree_bytes, tree.peak_tree_bytes) == (20 * MIB, 70 * MIB)


# The reserve.


def test_the_largest_tree_ends_when_the_reserve_is_touched_and_not_before(watch: Watch) -> None:
    trees = account(1, 200), account(2, 500), account(3, 100)
    assert ended(watch, 1.0, 900, *trees) == []
    assert ended(watch, 1.0, 901, *trees) == [2]


def test_while_memory_comes_back_nobody_else_ends(watch: Watch) -> None:
    hog, other = account(1, 500), account(2, 300)
    assert ended(watch, 1.0, 910, hog, other) == [1]
    hog.scanned(500 * MIB, ending=True)
    assert ended(watch, 1.1, 915, hog, other) == []
    hog.scanned(0, ending=True)  # dead, and its memory not yet back
    assert ended(watch, 1.0 + SETTLE_SECONDS * 0.9, 950, hog, other) == []
    assert ended(watch, 2.0, 400, other) == []


def test_a_second_hog_ends_while_the_memory_of_the_first_comes_back(watch: Watch) -> None:
    hog, second, small = account(1, 500), account(2, 300), account(3, 10)
    assert ended(watch, 1.0, 920, hog, second, small) == [1]
    hog.scanned(0, ending=True)
    assert ended(watch, 1.1, 959, hog, second, small) == []
    assert ended(watch, 1.1, 961, hog, second, small) == [2]
    second.scanned(0, ending=True)
    assert ended(watch, 1.2, 975, hog, second, small) == []


def test_what_has_not_come_back_in_time_is_not_waited_for(watch: Watch) -> None:
    hog, other = account(1, 500), account(2, 300)
    assert ended(watch, 1.0, 910, hog, other) == [1]
    hog.scanned(0, ending=True)
    assert ended(watch, 1.01 + SETTLE_SECONDS, 910, hog, other) == [2]


def test_a_tree_that_somebody_else_is_ending_counts_as_memory_that_comes_back(watch: Watch) -> None:
    assert ended(watch, 1.0, 950, account(1, 60, ending=True), account(2, 300)) == []
    assert ended(watch, 2.0, 950, account(1, 40, ending=True), account(2, 300)) == [2]


def test_shared_memory_that_grew_more_than_any_tree_holds_is_told_once_and_blamed_on_nobody(watch: Watch) -> None:
    tree = account(1, 200)
    verdict = watch.judge(1.0, reading(950, shared_mib=600), [tree], 0.001)
    assert (verdict.end, verdict.unexplained) == ([], True)
    assert not watch.judge(1.1, reading(960, shared_mib=610), [tree], 0.001).unexplained
    watch.judge(1.2, reading(500), [tree], 0.001)
    assert watch.judge(1.3, reading(950, shared_mib=600), [tree], 0.001).unexplained, "again, after it was whole"


def test_memory_of_files_that_were_removed_is_waited_for_too(watch: Watch) -> None:
    neighbour, hog = account(1, 100), account(2, 200)
    full = reading(950, anonymous_mib=940, shared_mib=800)
    late = reading(950, anonymous_mib=140)
    assert watch.judge(1.0, full, [neighbour], 0.001).end == []
    assert watch.judge(1.1, late, [neighbour], 0.001).end == [], "it is free, and does not show yet"
    assert watch.judge(1.2, reading(976, anonymous_mib=340), [neighbour, hog], 0.001).end == [hog], (
        "half of what was left is gone"
    )


def test_memory_of_removed_files_that_has_not_come_back_in_time_is_not_waited_for(watch: Watch) -> None:
    neighbour = account(1, 100)
    watch.notice(1.0, reading(880, anonymous_mib=870, shared_mib=800))
    after = reading(950, anonymous_mib=140)
    for now in (1.4, 1.9):
        assert watch.judge(now, after, [neighbour], 0.001).end == []
    assert watch.judge(2.5, after, [neighbour], 0.001).end == [neighbour]


def test_memory_that_was_never_given_back_is_not_waited_for(watch: Watch) -> None:
    watch.notice(1.0, reading(800, anonymous_mib=100))
    kernel = reading(950, anonymous_mib=100)
    assert watch.judge(1.1, kernel, [account(1, 100)], 0.001).end != [], "the rest grew, and nobody gave anything back"


def test_shared_memory_from_before_a_tree_protects_it_not(watch: Watch) -> None:
    tree = account(1, 200, before=reading(600, shared_mib=500))
    assert ended(watch, 1.0, 950, tree, shared_mib=550) == [1]


def test_a_reserve_that_was_never_whole_is_nobodys_fault() -> None:
    watch = Watch()
    watch.configure(RESERVE * MIB, 500 * MIB)
    tree = account(1, 300)
    assert ended(watch, 1.0, 2000, tree) == []
    assert ended(watch, 2.0, 300, tree) == []
    assert ended(watch, 3.0, 450, tree) == [1]


def test_a_pod_smaller_than_the_machine_has_its_own_size(watch: Watch) -> None:
    watch.configure(RESERVE * MIB, 400 * MIB)
    assert watch.left_bytes(reading(300)) == 100 * MIB
    watch.configure(RESERVE * MIB, 4000 * MIB)
    assert watch.left_bytes(reading(300)) == 700 * MIB


@given(st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 900), st.floats(0, 1)), max_size=30))
def test_whatever_is_read_a_verdict_names_only_trees_that_live_and_leaves_a_lower_threshold(
    steps: list[tuple[int, int, float]],
) -> None:
    watch = Watch()
    watch.configure(RESERVE * MIB, 0)
    trees = [account(1, 100), account(2, 200, limit_mib=150)]
    now = 0.0
    for used, tree_mib, later in steps:
        now += later
        trees[0].scanned(tree_mib * MIB, ending=trees[0].ending)
        end = watch.judge(now, reading(used), trees, 0.001).end
        assert not any(item.ending for item in end)
        assert len(end) == len(set(end))
        for item in end:
            item.ending = True
        look = watch.look(now, reading(used), trees)
        assert LOOK_SECONDS[0] <= look.pause_seconds <= LOOK_SECONDS[1]


# When to look.


def test_looks_come_closer_as_room_shrinks(watch: Watch) -> None:
    pauses = [watch.look(1.0, reading(used), []).pause_seconds for used in (0, 500, 700, 895, 950)]
    assert pauses == sorted(pauses, reverse=True)
    assert pauses[-1] == LOOK_SECONDS[0]


def test_a_scan_is_called_for_when_there_is_no_room_or_much_has_changed(watch: Watch) -> None:
    def scan(now: float, used_mib: int) -> bool:
        return watch.look(now, reading(used_mib), []).scan

    assert not scan(1.0, 500)
    assert scan(1.0, 901)
    watch.judge(1.0, reading(901), [], 0.01)
    assert not scan(1.1, 902), "just looked, and nothing new"
    assert scan(1.1, 930), "it grows fast"
    assert scan(1.3, 902), "after a while"
    watch.judge(2.0, reading(100), [], 0.01)
    assert not scan(2.3, 150)
    assert scan(2.3, 200)


def test_nobody_looks_for_trees_without_a_limit_where_no_reserve_is_kept() -> None:
    guard = Guard()
    assert guard.begin(1, 0).anonymous_before == 0
    assert guard.next_look == float("inf")
    limited = guard.begin(2, 5 * MIB)
    assert limited.anonymous_before > 0
    assert guard.next_look < time.monotonic() + 1
    guard.look([limited])
    assert guard.next_look < time.monotonic() + 1
    guard.look([])
    assert guard.next_look == float("inf")
    for fd in (guard._meminfo, guard._zoneinfo):
        if fd >= 0:
            os.close(fd)
