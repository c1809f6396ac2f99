"""The verdicts on the page of benchmarks."""

from __future__ import annotations

import pytest

from benchmarks import goals
from benchmarks.figures import Found
from benchmarks.subjects import EXECD, FASTAPI, SANDBOXD


@pytest.fixture
def found() -> Found:
    """Two rounds."""
    found = Found()
    for number, factor in enumerate((1.0, 3.0)):
        found.round = number
        found.keep(EXECD, "true loop p50_ms", 1.0 * factor)
        found.keep(FASTAPI, "true loop p50_ms", 2.0 * factor)
        found.keep(EXECD, "true loop cpu_ms", 0.5)
        found.keep(EXECD, "connections 16 per_second", 300.0)
    found.keep(SANDBOXD, "true loop cpu_ms", 0.25)
    found.keep(SANDBOXD, "connections 16 per_second", 400.0)
    return found


@pytest.mark.parametrize(
    "row",
    [
        "| `true` p50 / FastAPI | ≤ 0.75 | 0.50 (0.50 to 0.50) | yes |",
        "| CPU for a `true` / sandboxd | ≤ 1.30 | 2.00 (2.00 to 2.00) | no |",
        "| `true`, 16 connections, a second / sandboxd | ≥ 0.75 | 0.75 (0.75 to 0.75) | yes |",
        "| start to first answer / FastAPI | ≤ 0.65 |  | not measured |",
    ],
)
def test_a_goal_is_judged_by_the_median_of_the_ratios_of_the_rounds(found: Found, row: str) -> None:
    assert row in goals.table(found, in_gvisor=False).splitlines()
