"""The signs of a restore, with clocks of the tests' own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.engine.restores import (
    GAP_SECONDS,
    JUMP_SECONDS,
    SAME_SECONDS,
    Readings,
    Restore,
    RestoreDetector,
)

START = Readings(1_800_000_000.0, 50.0)
DAY = 86_400.0


class File:
    """The platform's word. Counts the questions."""

    def __init__(self, *, tells: bool) -> None:
        self.tells = tells
        self.questions = 0
        self.had_gap: bool | None = None

    def __call__(self, has_gap: bool) -> bool:
        self.had_gap = has_gap
        self.questions += 1
        answer, self.tells = self.tells, False
        return answer


def after(wall_seconds: float, monotonic_seconds: float) -> Readings:
    return Readings(START.wall + wall_seconds, START.monotonic + monotonic_seconds)


def test_a_time_of_day_ahead_of_the_monotonic_clock_is_a_restore() -> None:
    detector = RestoreDetector(START)
    # The monotonic clock stood still, so no deadline has to be put off.
    assert detector.look(after(DAY, 1.0)) == Restore("clock", 0.0)
    assert detector.look(after(DAY + 1, 2.0)) is None


def test_a_file_that_tells_after_a_gap_is_a_restore_of_the_length_of_the_gap() -> None:
    file = File(tells=True)
    detector = RestoreDetector(START, file)
    assert detector.look(after(DAY, DAY)) == Restore("file", DAY)
    assert detector.look(after(2 * DAY, 2 * DAY)) is None


def test_a_file_that_tells_leaves_nothing_to_the_clocks() -> None:
    file = File(tells=False)
    detector = RestoreDetector(START, file)
    assert detector.look(after(DAY, 1.0)) is None
    assert detector.look(after(2 * DAY, DAY)) is None
    assert (file.questions, file.had_gap) == (1, True)
    file.tells = True
    assert detector.look(after(2 * DAY, DAY + 1), was_told=True) == Restore("file", 1.0)
    assert file.had_gap is False


def test_looks_in_time_ask_nobody() -> None:
    file = File(tells=True)
    detector = RestoreDetector(START, file)
    for second in range(1, 100):
        assert detector.look(after(second, second)) is None
    assert file.questions == 0


def test_time_without_work_is_no_gap() -> None:
    file = File(tells=True)
    detector = RestoreDetector(START, file)
    detector.end_gap(after(DAY, DAY))
    assert detector.look(after(DAY + 1, DAY + 1)) is None
    assert file.questions == 0
    assert detector.reported(after(DAY + 1, DAY + 1)) == Restore("report", 0.0)


def test_a_look_at_the_clocks_leaves_the_gap_to_the_next_look() -> None:
    """A request may come between the restore and the file's word."""
    file = File(tells=True)
    detector = RestoreDetector(START, file)
    assert detector.look_at_clocks(after(DAY, DAY)) is None
    assert file.questions == 0
    found = detector.look(after(DAY + 0.1, DAY + 0.1), was_told=True)
    assert found is not None
    assert found.frozen_seconds == pytest.approx(DAY + 0.1)


def test_a_report_has_the_gap_before_for_a_while() -> None:
    detector = RestoreDetector(START)
    assert detector.look(after(DAY, DAY)) is None
    assert detector.look(after(DAY + 1, DAY + 1)) is None
    soon, late = DAY + SAME_SECONDS, DAY + SAME_SECONDS + 1
    assert detector.reported(after(soon, soon)) == Restore("report", DAY)
    assert detector.reported(after(late, late)) == Restore("report", 0.0)


@pytest.mark.parametrize("step_seconds", [-DAY, -1.0, 1.0, JUMP_SECONDS])
def test_a_correction_of_the_time_of_day_is_no_restore(step_seconds: float) -> None:
    detector = RestoreDetector(START)
    assert detector.look(after(1.0 + step_seconds, 1.0)) is None
    assert detector.look(after(2.0 + step_seconds, 2.0)) is None


@given(
    st.lists(st.tuples(st.floats(0.0, 1e6), st.floats(-1e6, JUMP_SECONDS)), max_size=20),
    st.booleans(),
    st.booleans(),
)
def test_only_a_jump_or_the_platforms_word_is_a_restore(
    moves: list[tuple[float, float]], has_file: bool, was_told: bool
) -> None:
    file, now = File(tells=False), START
    detector = RestoreDetector(START, file if has_file else None)
    for seconds, step_seconds in moves:
        # Sums of large floats are off by less than a microsecond.
        now = Readings(now.wall + seconds + step_seconds - 1e-6, now.monotonic + seconds)
        assert detector.look(now, was_told=was_told) is None
    gaps = sum(seconds > GAP_SECONDS for seconds, _ in moves)
    assert not has_file or file.questions >= (len(moves) if was_told else gaps - 1)
