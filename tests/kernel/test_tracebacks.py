"""Tracebacks, in the test's own process."""

from __future__ import annotations

import traceback

import pytest

from execd.kernel.tracebacks import END_FRAMES, cut_ring, shorten


def raised(n_frames: int) -> ValueError:
    def descend(n_left: int) -> None:
        if n_left == 1:
            raise ValueError
        descend(n_left - 1)

    try:
        descend(n_frames - 1)  # the frame of ``raised`` is the first
    except ValueError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize("n_omitted", [0, 1, 100])
def test_of_a_deep_recursion_both_ends_stay_and_the_omitted_frames_are_counted(
    n_omitted: int,
) -> None:
    error = raised(2 * END_FRAMES + n_omitted)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)]
    assert shorten(error) == n_omitted
    shown = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)]
    assert shown == lines[:END_FRAMES] + lines[-END_FRAMES:]


def test_a_ring_of_contexts_is_cut_and_a_chain_stays() -> None:
    first, second, third = ValueError(1), ValueError(2), ValueError(3)
    first.__context__, second.__context__ = second, third
    cut_ring(first)
    assert (first.__context__, second.__context__, third.__context__) == (second, third, None)
    third.__context__ = second
    cut_ring(first)
    assert (first.__context__, second.__context__, third.__context__) == (second, third, None)
