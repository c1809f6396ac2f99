"""Is a series level? Pure.

A slope is level when the series grows, over the whole time, by no more than the series swings: the
rise of the fitted line stays below three standard errors of that rise, or below an allowance. The
allowance is for series with next to no swing, of which a single step would count as a slope.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Slope:
    """The least-squares line through a series."""

    mean: float
    rise: float
    """Of the line, from the first sample to the last."""
    rise_error: float
    """The standard error of ``rise``."""

    def is_level(self, allowance: float) -> bool:
        return self.rise <= max(allowance, 3 * self.rise_error)


def fit(times: list[float], values: list[float]) -> Slope:
    """Raises ValueError: fewer than three samples."""
    count = len(values)
    if count < 3:
        raise ValueError("a slope needs three samples")
    mean_time, mean = sum(times) / count, sum(values) / count
    spread = sum((time - mean_time) ** 2 for time in times)
    pairs = zip(times, values, strict=True)
    per_second = sum((time - mean_time) * (value - mean) for time, value in pairs) / spread
    rest = sum(
        (value - mean - per_second * (time - mean_time)) ** 2
        for time, value in zip(times, values, strict=True)
    )
    error = math.sqrt(rest / (count - 2) / spread)
    seconds = times[-1] - times[0]
    return Slope(mean, per_second * seconds, error * seconds)
