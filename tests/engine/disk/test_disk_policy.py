from __future__ import annotations

import pytest

from execd.engine.disk.disk_policy import (
    LOOK_SECONDS,
    Candidate,
    DiskPolicy,
    FileSystem,
    reserve_bytes,
)
from execd.files.disk_usage import DiskUsage

MIB = 1 << 20
LIMIT = 800 * MIB
THRESHOLD = 700 * MIB
NODE = 10_000 * MIB


class Disk:
    """A directory on a node's disk, with a clock. ``write`` and ``look`` take a second each."""

    def __init__(self, used_mib: int = 0, *, size_mib: int = 100_000) -> None:
        self.policy = DiskPolicy(LIMIT)
        self.now = 1000.0
        self.used_bytes = used_mib * MIB
        self.others_bytes = NODE if size_mib > 800 else 0
        self.size_bytes = size_mib * MIB
        self.unreadable_bytes = 0
        self.needs_walk = False
        self.pause_seconds = 0.0

    @property
    def file_system(self) -> FileSystem:
        return FileSystem(self.others_bytes + self.used_bytes, self.size_bytes)

    def look(self, *, after_seconds: float = 1.0) -> bool:
        """Whether the look asks for a walk."""
        self.now += after_seconds
        look = self.policy.record_look(self.now, self.file_system)
        self.needs_walk, self.pause_seconds = look.needs_walk, look.pause_seconds
        return self.needs_walk

    def walk(self, busy_seconds: float = 0.1) -> bool:
        """Whether a tree must end."""
        self.policy.record_walk(
            self.now,
            self.file_system,
            DiskUsage(
                self.used_bytes - self.unreadable_bytes,
                1 if self.unreadable_bytes else 0,
                0,
                busy_seconds,
            ),
        )
        return self.policy.is_over

    def write(self, mib: int) -> bool:
        """Whether a tree must end after ``mib`` more, with the walk that a look asks for."""
        self.used_bytes += mib * MIB
        return self.walk() if self.look() else self.policy.is_over


@pytest.fixture
def disk() -> Disk:
    made = Disk()
    assert made.look(), "nothing is known before the first walk"
    assert not made.walk()
    return made


@pytest.mark.parametrize(
    ("limit_bytes", "reserve"), [(64 * MIB, 8 * MIB), (2048 * MIB, 256 * MIB), (1 << 40, 1 << 30)]
)
def test_an_eighth_is_kept_free_and_a_gibibyte_at_most(limit_bytes: int, reserve: int) -> None:
    assert reserve_bytes(limit_bytes) == reserve


def test_small_growth_leads_to_no_walk_and_half_of_the_room_does(disk: Disk) -> None:
    for _ in range(3):
        disk.used_bytes += 100 * MIB
        assert not disk.look()
    disk.used_bytes += 51 * MIB
    assert disk.look()


def test_looks_are_rare_with_much_room_and_frequent_with_little(disk: Disk) -> None:
    disk.look()
    assert disk.pause_seconds == pytest.approx(700 / 2048)
    disk.write(690)
    assert disk.pause_seconds == LOOK_SECONDS[0]
    roomy = DiskPolicy(1 << 40)
    roomy.record_look(1.0, FileSystem(NODE, 1 << 50))
    assert roomy.record_look(2.0, FileSystem(NODE, 1 << 50)).pause_seconds == LOOK_SECONDS[1]


def test_a_tree_must_end_over_the_threshold_and_not_below(disk: Disk) -> None:
    assert not disk.write(699)
    assert disk.write(2)
    assert disk.policy.grown_bytes == 2 * MIB


def test_growth_of_other_pods_leads_to_walks_and_to_no_decision(disk: Disk) -> None:
    disk.others_bytes += 5000 * MIB
    assert disk.look()
    assert not disk.walk()
    assert disk.policy.estimated_bytes == 0


def test_growth_behind_the_fall_of_a_neighbour_is_found_in_time(disk: Disk) -> None:
    disk.others_bytes -= 2000 * MIB
    disk.used_bytes += 750 * MIB
    seconds = 0
    while not disk.look():
        seconds += 1
    assert seconds <= 9
    assert disk.walk()


def test_a_directory_without_change_is_walked_once_a_minute_at_most(disk: Disk) -> None:
    assert not any(disk.look() for _ in range(58))
    assert any(disk.look() for _ in range(3))


@pytest.mark.parametrize(
    ("mib", "busy_seconds", "waits"),
    [(290, 0.1, 1), (290, 2.0, 8), (290, 60.0, 240), (310, 2.0, 2), (310, 60.0, 60)],
)
def test_an_expensive_walk_is_followed_by_a_long_pause(
    disk: Disk, mib: int, busy_seconds: float, waits: int
) -> None:
    """However many files there are, and however fast the directory grows. Less long where the
    estimate asks for a decision."""
    disk.used_bytes += 400 * MIB
    assert disk.look()
    disk.walk(busy_seconds)
    disk.used_bytes += mib * MIB
    seconds = 1
    while not disk.look():
        seconds += 1
    assert seconds == waits


def test_the_next_decision_comes_when_half_of_the_rest_is_gone(disk: Disk) -> None:
    """The bytes of a dead tree stay: commands that write little must not all end."""
    assert disk.write(720)
    disk.policy.settle(is_solved=True)
    assert not disk.write(20), "the tree wrote on until its end"
    assert disk.policy.walked_bytes == 740 * MIB
    assert not disk.write(29)
    assert disk.write(3)
    disk.policy.settle(is_solved=True)
    assert not disk.write(0)
    assert not disk.write(13)
    assert disk.write(2)


def test_a_directory_over_its_limit_still_lets_small_writes_pass(disk: Disk) -> None:
    assert disk.write(1500)
    disk.policy.settle(is_solved=True)
    assert not disk.write(0)
    disk.used_bytes += MIB // 2
    assert not disk.write(0)
    assert disk.write(2)


def test_removed_files_make_room_again(disk: Disk) -> None:
    assert disk.write(790)
    disk.policy.settle(is_solved=True)
    assert not disk.write(0)
    assert not disk.write(-500)
    while not disk.look():
        pass
    assert not disk.walk()
    assert not disk.write(400)
    assert disk.write(20)


def test_what_an_earlier_daemon_left_is_no_fault_of_a_program() -> None:
    disk = Disk(used_mib=780)
    assert disk.look()
    assert not disk.walk()
    assert not disk.write(9)
    assert disk.write(2)


def test_a_file_system_no_larger_than_the_limit_is_its_own_figure() -> None:
    policy = DiskPolicy(LIMIT)
    assert policy.is_own(FileSystem(0, LIMIT))
    assert not policy.is_own(FileSystem(0, LIMIT + 4096))
    assert not policy.is_own(FileSystem(0, 0))  # a file system that does not tell its size


def test_bytes_behind_a_closed_door_count_with_the_growth_of_the_file_system(disk: Disk) -> None:
    disk.write(400)
    disk.unreadable_bytes = 700 * MIB
    assert disk.write(350)
    assert disk.policy.walked_bytes == 750 * MIB
    # Doors that were closed before anything was known hide nothing that can be known.
    earlier = Disk(used_mib=700)
    earlier.unreadable_bytes = 700 * MIB
    earlier.look()
    assert not earlier.walk()
    assert earlier.policy.walked_bytes == 0


def test_uploads_fit_below_the_threshold_only(disk: Disk) -> None:
    assert disk.policy.take(400 * MIB)
    assert disk.policy.take(300 * MIB)
    assert not disk.policy.take(1)
    assert disk.policy.estimated_bytes == THRESHOLD
    # The same bytes in the figure of the file system count once.
    disk.used_bytes += 700 * MIB
    disk.look()
    assert disk.policy.estimated_bytes == THRESHOLD


def test_uploads_are_no_fault_of_a_program(disk: Disk) -> None:
    disk.write(650)
    disk.policy.take(50 * MIB)
    disk.used_bytes += 50 * MIB + 4096
    assert not disk.write(0)
    assert disk.write(60)


def test_upload_that_a_walk_misses_is_no_fault_of_a_program(disk: Disk) -> None:
    disk.write(640)
    disk.policy.take(60 * MIB)
    assert not disk.walk(), "the bytes are taken, and not yet written"
    disk.used_bytes += 60 * MIB + 4096
    assert not disk.walk()
    assert disk.write(60)


def test_upload_that_is_deleted_hides_growth_from_two_walks_only(disk: Disk) -> None:
    disk.write(640)
    disk.policy.take(60 * MIB)
    disk.walk()
    disk.walk()
    disk.used_bytes += 60 * MIB + 4096
    assert disk.walk()


def blamed(disk: Disk, *candidates: Candidate) -> tuple[int, bool] | None:
    """Who is guilty of what was written since the directory held 600 MiB."""
    found = disk.policy.blame(candidates, disk.others_bytes + 600 * MIB)
    return None if found is None else (found.tag, found.is_guess)


def crossed(disk: Disk) -> None:
    disk.write(600)
    assert disk.write(110)


def test_growth_of_other_pods_excuses_no_writer(disk: Disk) -> None:
    disk.write(600)
    disk.others_bytes += 9000 * MIB
    assert disk.write(110)
    assert blamed(disk, Candidate(1, 20 * MIB, 20 * MIB, 10)) == (1, False)


def test_the_tree_that_wrote_most_of_late_is_guilty(disk: Disk) -> None:
    crossed(disk)
    talker = Candidate(1, 0, 9000 * MIB, 90)
    writer, other = Candidate(2, 90 * MIB, 90 * MIB, 10), Candidate(3, 20 * MIB, 20 * MIB, 10)
    assert blamed(disk, talker, writer, other) == (2, False)
    assert blamed(disk) is None


def test_without_bytes_of_the_disk_all_written_bytes_count_as_a_guess(disk: Disk) -> None:
    crossed(disk)
    assert blamed(disk, Candidate(1, 0, 3 * MIB, 0), Candidate(2, 0, 100 * MIB, 0)) == (2, True)


def test_a_tree_that_wrote_nothing_since_the_crossing_never_ends(disk: Disk) -> None:
    crossed(disk)
    sleeper, cleaner = Candidate(1, 0, 0, 0), Candidate(2, 0, 0, 900)
    assert blamed(disk, sleeper, cleaner) is None
    assert blamed(disk, sleeper, Candidate(3, 0, MIB, 0)) is None, "a log line is no 100 MiB"


def test_cpu_time_counts_only_if_the_directory_grows_on_with_nobody_known_to_write(
    disk: Disk,
) -> None:
    """In gVisor no figure shows what a mapping writes, or a child that lived shortly."""
    sleeper, busy = Candidate(1, 0, 0, 0), Candidate(2, 0, 0, 900)
    crossed(disk)
    assert blamed(disk, sleeper, busy) is None
    disk.policy.settle(is_solved=False)
    assert not disk.write(0)
    assert disk.write(60)
    assert blamed(disk, sleeper) is None
    assert blamed(disk, sleeper, busy) == (2, True)
    assert blamed(disk, busy, Candidate(3, 50 * MIB, 50 * MIB, 0)) == (3, False)
    disk.policy.settle(is_solved=True)
    assert blamed(disk, sleeper, busy) is None


def test_where_a_walk_takes_too_long_the_estimate_decides(disk: Disk) -> None:
    disk.used_bytes += 400 * MIB
    disk.look()
    disk.walk(busy_seconds=3.0)
    disk.used_bytes += 340 * MIB
    disk.look()
    disk.policy.judge_estimate(340 * MIB)
    assert not disk.policy.is_over, "half of the reserve is left"
    disk.used_bytes += 20 * MIB
    assert not disk.look(), "no walk comes so soon after a long walk"
    disk.policy.judge_estimate(160 * MIB)
    assert not disk.policy.is_over, "another pod of the node has written the rest"
    disk.policy.judge_estimate(180 * MIB)
    assert disk.policy.is_over
    assert disk.policy.found_bytes == 760 * MIB
    disk.policy.settle(is_solved=True)
    disk.policy.judge_estimate(360 * MIB)
    assert not disk.policy.is_over, "the next decision comes when half of the rest is gone"
    disk.used_bytes += 35 * MIB
    disk.look()
    disk.policy.judge_estimate(395 * MIB)
    assert disk.policy.is_over


def test_a_walk_in_time_leaves_nothing_to_the_estimate(disk: Disk) -> None:
    disk.used_bytes += 790 * MIB
    disk.others_bytes += 5000 * MIB
    disk.look()
    disk.policy.judge_estimate(5790 * MIB)
    assert not disk.policy.is_over


def test_uploads_do_not_pass_for_growth_of_programs(disk: Disk) -> None:
    disk.walk(busy_seconds=3.0)
    assert disk.policy.take(690 * MIB)
    disk.used_bytes += 770 * MIB
    disk.look()
    disk.policy.judge_estimate(0)
    assert not disk.policy.is_over
    disk.policy.judge_estimate(80 * MIB)
    assert disk.policy.is_over
    assert disk.policy.grown_bytes == 80 * MIB


@pytest.mark.parametrize(("found_mib", "estimated_mib"), [(500, 400), (400, 400), (300, 300)])
def test_bytes_that_are_written_during_a_walk_count_once(
    disk: Disk, found_mib: int, estimated_mib: int
) -> None:
    """100 MiB more come meanwhile. The walk may count them, or not; files may also be fewer than
    the estimate said."""
    disk.used_bytes = 400 * MIB
    disk.look()
    before = disk.file_system
    disk.used_bytes = 500 * MIB
    disk.look()
    disk.policy.record_walk(disk.now, before, DiskUsage(found_mib * MIB, 0, 0, 3.0))
    assert disk.policy.estimated_bytes == (estimated_mib + 100) * MIB


def test_a_look_tells_whether_a_decision_may_be_near_or_is_due(disk: Disk) -> None:
    def look() -> tuple[bool, bool]:
        disk.now += 1
        look = disk.policy.record_look(disk.now, disk.file_system)
        return look.is_near, look.is_due

    assert look() == (False, False)
    disk.used_bytes += 360 * MIB
    assert look() == (True, False)
    disk.walk()
    assert look() == (False, False)
    disk.used_bytes += 310 * MIB
    disk.walk()
    assert look() == (True, False), "half a reserve below the bound"
    disk.used_bytes += 30 * MIB
    assert look() == (True, False), "just at the bound"
    disk.used_bytes += 10 * MIB
    assert look() == (True, True)
    disk.walk()
    assert disk.policy.is_over
    assert look() == (True, True)
