"""The phases of an execution: the table is whole, and the table's promises hold for every
sequence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.engine.executions.state import TABLE, ExecutionEvent, ExecutionPhase, advance


def test_the_table_has_each_phase_and_each_event() -> None:
    assert set(TABLE) == set(ExecutionPhase)
    assert {event for row in TABLE.values() for event in row} == set(ExecutionEvent)


@pytest.mark.parametrize("phase", ExecutionPhase)
def test_an_end_can_be_asked_for_in_every_phase(phase: ExecutionPhase) -> None:
    assert advance(phase, ExecutionEvent.END) in (phase, ExecutionPhase.ENDING)


def test_an_event_out_of_order_is_the_daemons_own_mistake() -> None:
    with pytest.raises(AssertionError, match="START in phase QUEUED"):
        advance(ExecutionPhase.QUEUED, ExecutionEvent.START)


ORDER = list(ExecutionPhase)


@given(st.lists(st.sampled_from(ExecutionEvent)))
def test_no_phase_is_entered_again_once_it_is_left(events: list[ExecutionEvent]) -> None:
    phase = ExecutionPhase.QUEUED
    for event in events:
        following = TABLE[phase].get(event)
        if following is None:
            continue
        assert ORDER.index(following) >= ORDER.index(phase)
        phase = following
