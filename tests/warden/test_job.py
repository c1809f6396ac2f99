from __future__ import annotations

import math
import resource
import time

import pytest

from execd.proc.memory import MemoryMonitor
from execd.proc.messages import Adopt, Spawn
from execd.proc.process_tree import Process, ticks_since_boot
from execd.proc.program_block import pack
from execd.warden.job import CPU_GRACE_SECONDS, Job, max_cpu_seconds
from execd.warden.own_peak import OwnPeak


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ([], math.inf),
        ([[resource.RLIMIT_CORE, 0, 0]], math.inf),
        ([[resource.RLIMIT_CORE, 0, 0], [resource.RLIMIT_CPU, 5, 6]], 6 + CPU_GRACE_SECONDS),
    ],
)
def test_a_process_is_over_its_cpu_limit_a_moment_after_the_kernel_should_have_ended_it(
    limits: list[list[int]], expected: float
) -> None:
    request = Spawn(1, pack(["/bin/true"], {}, "/"), [], False, limits, 0, "M=1", None, None, None)
    assert max_cpu_seconds(request) == expected


def adopted_job() -> Job:
    """The job of a worker with tag 7 and pid 10."""
    return Job(
        Adopt(7, 0, "M=1", [], 0, 0, 1, False),
        10,
        0,
        frozenset(),
        MemoryMonitor().open_account(7, 0),
        spawned_at=0.0,
        session=10,
    )


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_leader_that_has_ended_is_measured_by_its_tree_alone(has_ended: bool) -> None:
    job = adopted_job()
    leader = Process(10, "R", 1, 10, 10, 0, rss_bytes=4096)
    measured = job.measure(None if has_ended else leader)
    assert (measured.tag, measured.max_rss_bytes) == (7, 0 if has_ended else 4096)


@pytest.mark.parametrize(
    ("idle_seconds", "late_seconds", "expected"),
    [(0.0, 0.0, 0.0), (0.0, 0.5, 0.5), (0.3, 0.0, 0.0), (0.3, 0.5, 0.5)],
    ids=["on-time", "late", "after-a-busy-thread", "late-after-a-busy-thread"],
)
def test_cpu_time_of_work_that_the_warden_hears_of_late_is_counted(
    idle_seconds: float, late_seconds: float, expected: float
) -> None:
    """``idle_seconds``: CPU time that a thread used before the work."""
    job = adopted_job()

    def leader(seconds: float) -> Process:
        return Process(
            10, "R", 1, 10, 10, 0, 4096, seconds, user_seconds=seconds / 4, system_seconds=seconds
        )

    job.restart_counts(leader(2.0), 0.0)
    job.max_cpu_seconds = 0.0
    heard = leader(2.0 + idle_seconds + late_seconds)
    job.restart_counts(heard, time.monotonic() - late_seconds)
    measured = job.measure(heard)
    assert measured.user_seconds + measured.system_seconds == pytest.approx(expected, abs=0.2)
    assert job.find_over_cpu_limit([heard]).get(10, 0.0) == pytest.approx(expected, abs=0.2)


def test_descendants_from_before_the_counted_work_and_their_children_are_no_part_of_the_work() -> (
    None
):
    began = 1000.0
    tick = ticks_since_boot(began)
    leader = Process(10, "R", 1, 10, 10, tick - 500)
    job = Job(
        Adopt(1, 0, "M=1", [], 0, 0, 1, False),
        leader.pid,
        leader.start,
        frozenset(),
        MemoryMonitor().open_account(1, 0),
        spawned_at=0.0,
        session=10,
    )
    job.restart_counts(leader, began)
    old = Process(11, "R", 10, 11, 10, tick - 2)
    child_of_old = Process(12, "R", 11, 11, 10, tick + 300)
    new = Process(13, "R", 10, 13, 10, tick - 1)
    child_of_new = Process(14, "R", 13, 13, 10, tick + 300)
    found = job.find_at_work([leader, child_of_old, old, new, child_of_new])
    assert found == {10, 13, 14}


class StandInPeak(OwnPeak):
    """The warden's peak is 13 MB."""

    def may_hide(self, max_rss_bytes: int) -> bool:
        return max_rss_bytes <= 13_000_000


@pytest.mark.parametrize(
    ("kernel_kib", "sampled_bytes", "told_bytes"),
    [(12_000, 0, 0), (12_000, 3_000_000, 3_000_000), (20_000, 3_000_000, 20_000 * 1024)],
)
def test_the_wardens_own_memory_is_not_told_as_a_programs(
    kernel_kib: int, sampled_bytes: int, told_bytes: int
) -> None:
    request = Spawn(1, pack(["/bin/true"], {}, "/"), [], False, [], 0, "M=1", None, None, None)
    account = MemoryMonitor().open_account(1, 0)
    job = Job(request, 10, 5, frozenset(), account, spawned_at=7.0, spawn_seconds=0.25, session=10)
    if sampled_bytes:
        leader = Process(10, "R", 1, 10, 10, 5, rss_bytes=sampled_bytes)
        job.record_scan([leader], {10: 5})
    usage = resource.struct_rusage((0.0, 0.0, kernel_kib, *[0] * 13))
    ended = job.record_exit(9.0, 0, usage, StandInPeak())
    assert (ended.max_rss_bytes, ended.peak_tree_bytes) == (told_bytes, sampled_bytes)
    assert (ended.spawned_at, ended.at, ended.spawn_seconds) == (7.0, 9.0, 0.25)


def test_the_kernels_figure_of_a_worker_is_the_workers() -> None:
    account = MemoryMonitor().open_account(1, 0)
    request = Adopt(1, 0, "M=1", [], 0, 0, 1, False)
    job = Job(request, 10, 5, frozenset(), account, spawned_at=0.0, session=10)
    usage = resource.struct_rusage((0.0, 0.0, 12_000, *[0] * 13))
    assert job.record_exit(9.0, 0, usage, StandInPeak()).max_rss_bytes == 12_000 * 1024


def started_job(spawned_at: float) -> Job:
    """The job of a program with pid 10, whose start nobody has read."""
    return Job(
        Spawn(1, pack(["/bin/true"], {}, "/"), [], False, [], 0, "M=1", None, None, None),
        10,
        0,
        frozenset(),
        MemoryMonitor().open_account(1, 0),
        spawned_at=spawned_at,
        spawn_seconds=0.001,
        session=10,
    )


def process_of(start: int) -> dict[int, Process]:
    return {10: Process(10, "S", 1, 10, 10, start)}


def test_until_a_scan_the_start_of_a_program_is_a_little_too_early() -> None:
    now = time.monotonic()
    job = started_job(now)
    assert ticks_since_boot(now) - 3 <= job.start < ticks_since_boot(now)
    assert job.members == {10: job.start}


def test_a_scan_that_began_after_the_spawn_tells_the_start() -> None:
    now = time.monotonic()
    job = started_job(now)
    start = ticks_since_boot(now)
    job.learn_start(process_of(start), now - 1.0)  # the scan began before
    assert job.start < start
    job.learn_start({}, now + 1.0)
    assert job.start < start
    job.learn_start(process_of(start), now + 1.0)
    assert (job.start, job.members) == (start, {10: start})
    job.learn_start(process_of(start + 1000), now + 2.0)
    assert job.start == start, "the start is known already"


def test_a_later_process_of_the_same_pid_is_not_the_leader_that_was_reaped() -> None:
    now = time.monotonic()
    job = started_job(now)
    job.reaped_at = now + 1.5
    job.learn_start(process_of(ticks_since_boot(now) + 100), now + 1.0)
    assert job.members == {10: job.start}
    assert job.start < ticks_since_boot(now)
    job.learn_start(process_of(ticks_since_boot(now)), now + 1.0)
    assert job.start == ticks_since_boot(now), "the scan has read the leader"


def test_the_memory_of_a_dying_process_is_on_its_way_back() -> None:
    job = adopted_job()
    living = Process(10, "R", 1, 10, 10, 0, rss_bytes=8192, virtual_bytes=9000)
    for process in (living, living._replace(rss_bytes=0, virtual_bytes=0)):
        job.record_scan([process], {10: 0})
    assert job.account.coming_back_bytes == 8192
