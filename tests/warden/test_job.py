from __future__ import annotations

import math
import resource

import pytest

from execd.proc.messages import Spawn
from execd.warden.job import CPU_GRACE_SECONDS, max_cpu_seconds


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
