"""Medians and ranges: of the latencies in a period, and of the rounds of a run."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Spread:
    """Over the rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{rounded(self.median)} ({rounded(self.low)} to {rounded(self.high)})"


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))


def ratios(pairs: Sequence[tuple[float, float]]) -> Spread | None:
    """Of the quotients of single rounds: the drift between rounds cancels out. None without a pair
    that has a quotient."""
    quotients = [mine / theirs for mine, theirs in pairs if theirs]
    return spread(quotients) if quotients else None


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that is not exceeded by this share of the values (nearest rank)."""
    assert 0 < share <= 1
    return ordered[max(-int(-len(ordered) * share // 1) - 1, 0)]


def rounded(value: float) -> str:
    """Three digits, and all digits before the point."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 99.95:
        return f"{value:.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.0995 else f"{value:.2g}"
