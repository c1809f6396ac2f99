from __future__ import annotations

import pytest

from benchmarks.spread import Spread, quantile, ratios, rounded, spread


def test_a_spread_has_the_median_and_the_range_of_the_rounds() -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)


def test_a_ratio_is_taken_within_each_round_and_not_of_the_medians() -> None:
    drifting = [(1.0, 2.0), (10.0, 20.0), (100.0, 200.0)]
    assert ratios(drifting) == Spread(0.5, 0.5, 0.5)


def test_a_round_whose_other_value_is_zero_has_no_ratio() -> None:
    assert ratios([(1.0, 0.0)]) is None
    assert ratios([(1.0, 0.0), (1.0, 4.0)]) == Spread(0.25, 0.25, 0.25)
    assert ratios([]) is None


@pytest.mark.parametrize(
    ("share", "value"), [(0.01, 1), (0.5, 50), (0.99, 99), (0.991, 100), (1.0, 100)]
)
def test_a_quantile_is_the_value_at_the_nearest_rank(share: float, value: int) -> None:
    assert quantile(range(1, 101), share) == value


def test_a_quantile_of_few_values_is_the_largest() -> None:
    assert quantile([4.0], 0.99) == 4.0
    assert quantile([1.0, 2.0, 3.0], 0.99) == 3.0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0"), (0.01234, "0.012"), (0.1234, "0.12"), (1.234, "1.23")),
        *((9.996, "10.0"), (12.34, "12.3"), (99.96, "100"), (1234.5, "1234")),
    ],
)
def test_a_figure_is_rounded_to_three_digits(value: float, text: str) -> None:
    assert rounded(value) == text
