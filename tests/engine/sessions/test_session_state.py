"""The table of a session's life: whole, and honest about loss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.engine.sessions.session_state import (
    TABLE,
    IllegalSessionEvent,
    SessionEvent,
    SessionLife,
    SessionState,
)


def test_the_table_has_each_state_and_each_event() -> None:
    assert set(TABLE) == set(SessionState)
    assert {event for row in TABLE.values() for event in row} == set(SessionEvent)


def life_of(*happenings: SessionEvent) -> SessionLife:
    life = SessionLife()
    for what in happenings:
        life.apply(what)
    return life


START, READY, BEGIN, REQUEST, END, ASK, RESUME, LOST = SessionEvent


def test_a_session_without_a_cell_has_nothing_to_lose() -> None:
    life = life_of(START, READY, LOST, START, READY)
    assert life.generation == 2
    assert not life.report_loss()


def test_a_lost_state_is_told_once_and_to_the_next_cell() -> None:
    life = life_of(START, READY, BEGIN, END, LOST, START, READY, BEGIN)
    assert life.generation == 2
    assert life.report_loss()
    assert not life.report_loss()


def test_a_loss_that_nobody_was_told_is_not_forgotten_when_the_next_worker_dies_too() -> None:
    life = life_of(START, READY, BEGIN, LOST, END, START, LOST, START, READY, BEGIN)
    assert life.generation == 3
    assert life.report_loss()


def test_a_branch_begins_with_state_that_it_can_lose() -> None:
    life = SessionLife(original=life_of(START, READY, BEGIN, END))
    life.apply(START)
    life.apply(READY)
    assert not life.report_loss()
    life.apply(LOST)
    life.apply(START)
    assert life.report_loss()


def test_a_branch_of_a_session_without_state_has_nothing_to_lose() -> None:
    for generation in (0, 3):
        original = life_of(START, READY, BEGIN, END, LOST, START, READY, REQUEST, END)
        life = SessionLife(original=original, generation=generation)
        life.apply(START)
        life.apply(READY)
        life.apply(LOST)
        life.apply(START)
        assert life.generation == generation + 2
        assert not life.report_loss()
        assert original.report_loss(), "the original's own loss is still to be told"


def test_what_must_not_happen_is_refused_and_changes_nothing() -> None:
    life = life_of(START, READY, BEGIN)
    with pytest.raises(IllegalSessionEvent):
        life.apply(BEGIN)
    assert life.state is SessionState.BUSY


def test_a_question_is_a_state_until_it_is_answered_or_its_cell_is_over() -> None:
    assert life_of(START, READY, BEGIN, ASK).state is SessionState.WAITING_INPUT
    assert life_of(START, READY, BEGIN, ASK, RESUME).state is SessionState.BUSY
    assert life_of(START, READY, BEGIN, ASK, RESUME, ASK, END).state is SessionState.IDLE
    assert life_of(START, READY, BEGIN, ASK, LOST, RESUME, END).state is SessionState.DEAD
    with pytest.raises(IllegalSessionEvent):
        life_of(START, READY, ASK)


@given(st.lists(st.sampled_from(SessionEvent)))
def test_generations_count_workers_and_only_grow(happenings: list[SessionEvent]) -> None:
    life, starts = SessionLife(), 0
    for what in happenings:
        try:
            life.apply(what)
        except IllegalSessionEvent:
            continue
        starts += what is START
        assert life.generation == starts
