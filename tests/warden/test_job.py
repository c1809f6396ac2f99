from __future__ import annotations

import math
import resource

import pytest

from execd.proc.memory import MemoryMonitor
from execd.proc.messages import Adopt, Spawn
from execd.proc.process_tree import TICKS_PER_SECOND, Process, ticks_since_boot
from execd.warden.job import CPU_GRACE_SECONDS, Job, max_cpu_seconds


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
    request = Spawn(1, ["/bin/true"], {}, "/", [], False, limits, 0, "M=1", None, None, None)
    assert max_cpu_seconds(request) == expected


def test_descendants_from_before_the_counted_work_and_their_children_are_no_part_of_the_work() -> (
    None
):
    began = 1000.0
    tick = ticks_since_boot(began)
    leader = Process(10, "R", 1, 10, 10, tick - 500)
    job = Job(
        Adopt(1, "M=1", [], 0, 0, 1, False),
        leader.pid,
        leader.start,
        frozenset(),
        MemoryMonitor().open_account(1, 0),
        spawned_at=0.0,
        session=10,
    )
    job.restart_counts(leader, began)
    old = Process(11, "R", 10, 11, 10, tick - TICKS_PER_SECOND)
    child_of_old = Process(12, "R", 11, 11, 10, tick + 300)
    new = Process(13, "R", 10, 13, 10, tick)
    child_of_new = Process(14, "R", 13, 13, 10, tick + 300)
    found = job.find_at_work([leader, child_of_old, old, new, child_of_new])
    assert found == {10, 13, 14}
