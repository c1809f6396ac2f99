"""What execd's cost has to be, as ratios to FastAPI and sandboxd in the same rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.figures import (
    CROWD,
    EXECD,
    FASTAPI,
    MIXED_CONNECTIONS,
    SANDBOXD,
    SESSIONS_OFF,
)
from benchmarks.spread import Spread, ratios, rounded, spread

if TYPE_CHECKING:
    from benchmarks.figures import Found


@dataclass(frozen=True)
class Goal:
    title: str
    key: str
    native: float | None
    gvisor: float | None = None
    """The bound of the median; None: no goal there."""
    to: str | None = None
    """The subject that the ratio is to; None: a figure of execd's own."""
    subject: str = EXECD
    is_rate: bool = False
    """At least the bound, instead of at most."""


GOALS = [
    Goal("`true` p50 / FastAPI", "true loop p50_ms", 0.75, 1.0, to=FASTAPI),
    Goal("`ls` p50 / FastAPI", "ls loop p50_ms", 0.65, 0.7, to=FASTAPI),
    Goal("CPU for a `true` / FastAPI", "true loop cpu_ms", 0.6, to=FASTAPI),
    Goal("CPU for a `true` / sandboxd", "true loop cpu_ms", 1.3, to=SANDBOXD),
    Goal(
        f"`true`, {CROWD} connections, a second / FastAPI",
        *(f"connections {CROWD} per_second", 1.6, 1.2, FASTAPI, EXECD, True),
    ),
    Goal(
        f"`true`, {CROWD} connections, a second / sandboxd",
        *(f"connections {CROWD} per_second", 0.75, None, SANDBOXD, EXECD, True),
    ),
    Goal(
        f"health route p99 beside {MIXED_CONNECTIONS} mixed connections / FastAPI",
        *("health mixed p99_ms", 1.0, 1.0, FASTAPI),
    ),
    Goal("start to first answer / FastAPI", "start ms", 0.65, 0.75, to=FASTAPI),
    Goal("RSS of the daemon with metrics, OpenAPI and docs in, MiB", "pages rss_mib", 44.0),
    Goal("PSS of all processes at rest, MiB", "rest pss_mib", 60.0),
    Goal(
        "PSS of all processes at rest, sessions off, MiB",
        *("rest pss_mib", 35.0, None, None, SESSIONS_OFF),
    ),
]


def measured(goal: Goal, found: Found) -> Spread | None:
    if goal.to:
        return ratios(found.pairs(goal.key, goal.subject, goal.to))
    values = found.values(goal.key, goal.subject)
    return spread(values) if values else None


def table(found: Found, *, in_gvisor: bool) -> str:
    lines = ["| goal of execd | at most / least | measured | holds |", "|---|--:|--:|:-:|"]
    for goal in GOALS:
        bound = goal.gvisor if in_gvisor else goal.native
        if bound is None:
            continue
        value = measured(goal, found)
        holds = "not measured"
        if value is not None:
            is_met = value.median >= bound if goal.is_rate else value.median <= bound
            holds = "yes" if is_met else "no"
        sign = "≥" if goal.is_rate else "≤"
        lines.append(f"| {goal.title} | {sign} {rounded(bound)} | {value or ''} | {holds} |")
    return "\n".join(lines)
