"""The published figures: a table of README.md and of docs/benchmarks.md, made from the JSON of the
last runs in docs/benchmarks."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks import figures, goals
from benchmarks.figures import EXECD, FASTAPI, SESSIONS_OFF
from benchmarks.report import Report
from benchmarks.spread import ratios, rounded, spread

PUBLISHED = Path(__file__).parents[1] / "benchmarks"
PLACES = {
    "native": "natively",
    "gvisor-2026": "in gVisor of 2026",
    "gvisor-2024": "in gVisor of 2024",
}
README_PLACES = ("native", "gvisor-2026")
PEERS = {"sandboxd": "sandboxd", "OpenSandbox": "OpenSandbox", "E2B envd": "envd"}
"""The name in the JSON, and the name in README.md."""


class Row(NamedTuple):
    title: str
    key: str
    unit: str
    is_rate: bool = False
    """More is better."""
    execd: str = EXECD


ROWS = (
    Row("`POST /execute` true, p50", "true loop p50_ms", "ms"),
    Row("`POST /execute` ls, p50", "ls loop p50_ms", "ms"),
    Row("true, 16 connections", "connections 16 per_second", "a second", is_rate=True),
    Row("CPU of the server's own processes for a true", "true loop cpu_ms", "ms"),
    Row("`GET /` beside 32 mixed connections, p99", "health mixed p99_ms", "ms"),
    Row("start to first answer", "start ms", "ms"),
    Row("memory at rest (PSS), with a Python session ready", "rest pss_mib", "MiB"),
    Row("memory at rest (PSS), sessions off", "rest pss_mib", "MiB", execd=SESSIONS_OFF),
)


@cache
def _report(place: str) -> Report:
    return Report.read(PUBLISHED / f"{place}.json")


def _median(place: str, key: str, subject: str) -> str:
    values = _report(place).found.values(key, subject)
    return rounded(spread(values).median) if values else ""


def readme() -> str:
    """Return the tables of README.md, with a sentence about what another server does better."""
    return "\n\n".join(
        f"{_table_of_readme(place)}\n\n{_better_elsewhere(place)}" for place in README_PLACES
    )


def _table_of_readme(place: str) -> str:
    found = _report(place).found
    peers = {peer: name for peer, name in PEERS.items() if peer in _report(place).subjects}
    heads = ["execd", "FastAPI", *(f"{name} / execd" for name in peers.values())]
    lines = [
        f"| {PLACES[place]}, {_report(place).date} | {' | '.join(heads)} |",
        f"|---|{'--:|' * len(heads)}",
    ]
    for row in ROWS:
        if not found.values(row.key, row.execd):
            continue
        cells = [_median(place, row.key, subject) for subject in (row.execd, FASTAPI)]
        of_peers = (ratios(found.pairs(row.key, peer, row.execd)) for peer in peers)
        cells += [rounded(ratio.median) if ratio else "" for ratio in of_peers]
        lines.append(f"| {row.title}, {row.unit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _better_elsewhere(place: str) -> str:
    items = [item for row in ROWS if (item := _item(place, row))]
    if not items:
        return f"No other server is better {PLACES[place]} in any row."
    return "\n".join([f"Another server is better {PLACES[place]} here:", "", *items])


def _item(place: str, row: Row) -> str:
    """Return which servers are better than execd in a row, and the figures; nothing if none is."""
    found = _report(place).found
    if not (mine := found.values(row.key, row.execd)):
        return ""
    own, better = spread(mine).median, []
    for subject, name in {FASTAPI: FASTAPI, **PEERS}.items():
        if theirs := found.values(row.key, subject):
            value = spread(theirs).median
            if (value > own) if row.is_rate else (value < own):
                better.append(f"{name} {rounded(value)} {row.unit}")
    return f"* {row.title}: execd {rounded(own)} {row.unit}, {', '.join(better)}" if better else ""


def published() -> str:
    """Return the table of docs/benchmarks.md: medians of all rows and curves in all places."""
    columns = [
        (place, subject)
        for place in PLACES
        for subject in (EXECD, FASTAPI, *PEERS)
        if _report(place).found.values("true loop p50_ms", subject)
    ]
    links = ", ".join(f"[{where}](benchmarks/{place}.json)" for place, where in PLACES.items())
    heads = [s if place == "native" else f"{place[-4:]}: {s}" for place, s in columns]
    lines = [
        f"Medians; the JSON has every round ({links}). 2026 and 2024: in gVisor of that year.",
        "",
        *(line for place in PLACES for line in _provenance(place)),
        "",
        f"| | {' | '.join(heads)} |",
        f"|---|{'--:|' * len(heads)}",
    ]
    for title, key, own in _all_rows():
        cells = [
            _median(place, key, own if subject == EXECD else subject)
            if EXECD in (own, subject)
            else ""
            for place, subject in columns
        ]
        if any(cells):
            lines.append(f"| {title} | {' | '.join(cells)} |")
    lines += ["", *(_unmet(place) for place in PLACES)]
    return "\n".join(lines)


def _all_rows() -> list[tuple[str, str, str]]:
    """Title, key, and the subject in execd's column."""
    rows = [(f"{row.title}, {row.unit}", row.key, EXECD) for row in figures.TABLE]
    for curve in figures.CURVES:
        x = curve.xs[-1]
        what, _, unit = curve.x_title.partition(", ")
        at = f"{x} {unit} of {what}" if unit else f"{x} {what}"
        rows.append((f"{curve.title}, at {at}: {curve.y_title}", curve.key.format(x=x), EXECD))
    for subject in _report("native").subjects:
        if subject.startswith(f"{EXECD} by ") or subject == SESSIONS_OFF:
            for key, title in (
                ("true loop p50_ms", "`true`, p50, ms"),
                ("rest pss_mib", "PSS, MiB"),
            ):
                rows.append((f"{subject}: {title}", key, subject))
    return rows


def _provenance(place: str) -> list[str]:
    report, where = _report(place), PLACES[place]
    return [
        f"* {where[0].upper()}{where[1:]}: {report.date}, commit {report.commit}, "
        f"{report.machine}, {report.rounds} rounds, execd on {report.subjects[EXECD]}",
        *(f"* Not measured {where}: {note}" for note in report.notes),
    ]


def _unmet(place: str) -> str:
    found, unmet = _report(place).found, []
    for goal in goals.GOALS:
        bound = goal.native if place == "native" else goal.gvisor
        value = goals.measured(goal, found)
        if bound is None or value is None:
            continue
        if (value.median < bound) if goal.is_rate else (value.median > bound):
            unmet.append(f"{goal.title} {rounded(value.median)} (goal {rounded(bound)})")
    return f"* Goals missed {PLACES[place]}: {'; '.join(unmet) or 'none'}."
