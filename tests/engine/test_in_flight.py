from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.engine.in_flight import FREE_BYTES, InFlight
from execd.errors import ResourceExhausted

MAX_BYTES = 1_000_000


@pytest.fixture
def budget() -> InFlight:
    return InFlight(MAX_BYTES)


def test_a_single_holder_is_never_refused(budget: InFlight) -> None:
    lease = budget.lease()
    lease.resize(50 * MAX_BYTES)
    lease.resize(60 * MAX_BYTES)
    lease.release()
    assert budget.held_bytes == 0


def test_what_would_pass_the_budget_is_refused_and_changes_nothing(budget: InFlight) -> None:
    first, second = budget.lease(), budget.lease()
    first.resize(FREE_BYTES + 600_000)
    second.resize(FREE_BYTES + 400_000)
    with pytest.raises(ResourceExhausted) as caught:
        second.resize(FREE_BYTES + 400_001)
    assert caught.value.details["retry_after_seconds"] > 0
    assert budget.held_bytes == MAX_BYTES
    first.release()
    second.resize(FREE_BYTES + 400_001)
    assert budget.held_bytes == 400_001


def test_small_holders_are_not_counted_and_never_refused(budget: InFlight) -> None:
    budget.lease().resize(FREE_BYTES + MAX_BYTES)
    small = budget.lease()
    small.resize(FREE_BYTES)
    assert budget.held_bytes == MAX_BYTES


def test_who_shrinks_is_not_refused(budget: InFlight) -> None:
    large, other = budget.lease(), budget.lease()
    large.resize(3 * MAX_BYTES)
    other.resize(FREE_BYTES)
    large.resize(2 * MAX_BYTES)
    assert budget.held_bytes == 2 * MAX_BYTES - FREE_BYTES


def test_room_is_a_share_of_the_budget(budget: InFlight) -> None:
    lease, other = budget.lease(), budget.lease()
    other.resize(FREE_BYTES + 300_000)
    assert lease.has_room(200_000, 0.5)
    assert not lease.has_room(200_001, 0.5)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2 * MAX_BYTES) | st.none())))
def test_the_sum_is_exact_whatever_happens(steps: list[tuple[int, int | None]]) -> None:
    budget = InFlight(MAX_BYTES)
    leases = [budget.lease() for _ in range(5)]
    held = [0] * 5
    for number, size in steps:
        if size is None:
            leases[number].release()
            held[number] = 0
            continue
        try:
            leases[number].resize(size)
            held[number] = max(0, size - FREE_BYTES)
        except ResourceExhausted:
            assert sum(held) - held[number] > 0
            assert sum(held) - held[number] + size - FREE_BYTES > MAX_BYTES
        assert budget.held_bytes == sum(held)
