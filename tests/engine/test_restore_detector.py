"""The signs of a restore, with clocks of the tests' own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.engine.restore_detector import (
    GAP_SECONDS,
    JUMP_SECONDS,
    Readings,
    Restore,
    RestoreDetector,
)

START = Readings(1_800_000_000.0, 50.0)
DAY = 86_400.0


class Network:
    """Counts the questions."""

    def __init__(self, *, is_new: bool) -> None:
        self.is_new = is_new
        self.questions = 0
        self.had_gap: bool | None = None

    def __call__(self, has_gap: bool) -> bool:
        self.had_gap = has_gap
        self.questions += 1
        answer, self.is_new = self.is_new, False
        return answer


def after(wall_seconds: float, monotonic_seconds: float) -> Readings:
    return Readings(START.wall + wall_seconds, START.monotonic + monotonic_seconds)


def test_a_time_of_day_ahead_of_the_monotonic_clock_is_a_restore() -> None:
    detector, network = RestoreDetector(START), Network(is_new=False)
    # The monotonic clock stood still, so no deadline has to be put off.
    assert detector.look(after(DAY, 1.0), network) == Restore("clock", 0.0)
    assert detector.look(after(DAY + 1, 2.0), network) is None


def test_a_new_network_after_a_gap_is_a_restore_of_the_length_of_the_gap() -> None:
    detector, network = RestoreDetector(START), Network(is_new=True)
    assert detector.look(after(DAY, DAY), network) == Restore("network", DAY)
    assert detector.look(after(2 * DAY, 2 * DAY), network) is None


def test_both_signs_are_one_restore() -> None:
    detector, network = RestoreDetector(START), Network(is_new=True)
    assert detector.look(after(DAY, 1.0), network) == Restore("clock", 0.0)
    assert detector.look(after(DAY + 9, 10.0), network, was_stopped=True) is None


def test_a_file_that_tells_leaves_nothing_to_the_clocks() -> None:
    detector, file = RestoreDetector(START, "file"), Network(is_new=False)
    assert detector.look(after(DAY, 1.0), file) is None
    assert detector.look(after(2 * DAY, DAY), file) is None
    assert (file.questions, file.had_gap) == (1, True)
    file.is_new = True
    assert detector.look(after(2 * DAY, DAY + 1), file, was_stopped=True) == Restore("file", 1.0)
    assert file.had_gap is False


def test_a_stop_is_no_restore() -> None:
    detector, network = RestoreDetector(START), Network(is_new=False)
    assert detector.look(after(DAY, DAY), network, was_stopped=True) is None
    assert network.questions == 1


def test_a_short_stop_asks_for_the_network() -> None:
    detector, network = RestoreDetector(START), Network(is_new=True)
    assert detector.look(after(0.5, 0.5), network, was_stopped=True) == Restore("network", 0.5)


def test_looks_in_time_ask_nobody() -> None:
    detector, network = RestoreDetector(START), Network(is_new=True)
    for second in range(1, 100):
        assert detector.look(after(second, second), network) is None
    assert network.questions == 0


def test_time_without_work_is_no_gap() -> None:
    detector, network = RestoreDetector(START), Network(is_new=True)
    detector.end_gap(after(DAY, DAY))
    assert detector.look(after(DAY + 1, DAY + 1), network) is None
    assert network.questions == 0


def test_a_look_at_the_clocks_leaves_the_gap_to_the_next_look() -> None:
    """A request may come between the restore and the sentinel's call."""
    detector, network = RestoreDetector(START), Network(is_new=True)
    assert detector.look_at_clocks(after(DAY, DAY)) is None
    assert network.questions == 0
    found = detector.look(after(DAY + 0.1, DAY + 0.1), network, was_stopped=True)
    assert found is not None
    assert found.frozen_seconds == pytest.approx(DAY + 0.1)


@pytest.mark.parametrize("step_seconds", [-DAY, -1.0, 1.0, JUMP_SECONDS])
def test_a_correction_of_the_time_of_day_is_no_restore(step_seconds: float) -> None:
    detector, network = RestoreDetector(START), Network(is_new=False)
    assert detector.look(after(1.0 + step_seconds, 1.0), network) is None
    assert detector.look(after(2.0 + step_seconds, 2.0), network) is None


@given(
    st.lists(st.tuples(st.floats(0.0, 1e6), st.floats(-1e6, JUMP_SECONDS)), max_size=20),
    st.booleans(),
)
def test_only_a_jump_or_a_new_network_is_a_restore(
    moves: list[tuple[float, float]], was_stopped: bool
) -> None:
    detector, network, now = RestoreDetector(START), Network(is_new=False), START
    for seconds, step_seconds in moves:
        # Sums of large floats are off by less than a microsecond.
        now = Readings(now.wall + seconds + step_seconds - 1e-6, now.monotonic + seconds)
        assert detector.look(now, network, was_stopped=was_stopped) is None
    gaps = sum(seconds > GAP_SECONDS for seconds, _ in moves)
    assert network.questions >= (len(moves) if was_stopped else gaps - 1)
