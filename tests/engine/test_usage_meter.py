from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from execd.engine.usage_meter import LEAST_SECONDS, UsageMeter


def test_share_is_that_since_the_look_before() -> None:
    meter = UsageMeter()
    assert meter.percent(10.0, 5.0, 2.0) == 25.0
    assert meter.percent(12.0, 9.0, 2.0) == 100.0
    assert meter.percent(14.0, 9.0, 2.0) == 0.0


def test_look_at_once_after_another_has_the_same_answer() -> None:
    meter = UsageMeter()
    meter.percent(10.0, 5.0, 2.0)
    assert meter.percent(10.0 + LEAST_SECONDS / 2, 9.0, 2.0) == 25.0


def test_cpu_time_of_trees_that_have_ended_may_shrink_and_never_below_zero() -> None:
    meter = UsageMeter()
    meter.percent(10.0, 5.0, 2.0)
    assert meter.percent(20.0, 1.0, 2.0) == 0.0


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), max_size=20), st.floats(0.01, 64))
def test_share_is_always_between_0_and_100(
    looks: list[tuple[float, float]], cpu_count: float
) -> None:
    meter = UsageMeter()
    for at_seconds, cpu_seconds in looks:
        assert 0.0 <= meter.percent(at_seconds, cpu_seconds, cpu_count) <= 100.0
