"""The results of a run: JSON, tables of Markdown, and plots."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks import figures, goals, plots
from benchmarks.figures import Found
from benchmarks.spread import rounded, spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.figures import Figure

CLIENT_PREFIX = "benchmarks/client.py, raw sockets, "


@dataclass(frozen=True)
class Report:
    place: str
    """"native", or "gvisor-" and the year of the release: the beginning of all file names."""
    machine: str
    commit: str
    date: str
    client: str
    """The client's Python."""
    rounds: int
    seconds: float
    subjects: Mapping[str, str]
    """Each subject's build, by name, in the order of tables and plots."""
    notes: Sequence[str]
    found: Found

    def to_json(self) -> str:
        facts = {
            "place": self.place,
            "machine": self.machine,
            "commit": self.commit,
            "date": self.date,
            "client": f"{CLIENT_PREFIX}{self.client}",
            "rounds": self.rounds,
            "seconds": round(self.seconds),
            "subjects": dict(self.subjects),
            "not measured": list(self.notes),
            "figures": self.found.to_json(),
        }
        return json.dumps(facts, indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> Report:
        """The report of a JSON file of ``write``."""
        facts = json.loads(path.read_text())
        return cls(
            **{name: facts[name] for name in ("place", "machine", "commit", "date", "subjects")},
            client=facts["client"].removeprefix(CLIENT_PREFIX),
            rounds=facts["rounds"],
            seconds=facts["seconds"],
            notes=facts["not measured"],
            found=Found.from_json(facts["figures"]),
        )


def table(found: Found, subjects: Sequence[str], rows: Sequence[Figure]) -> str:
    """Medians, with the range over the rounds; a row that nobody has is left out."""
    lines = [f"| | {' | '.join(subjects)} |", f"|---|{'--:|' * len(subjects)}"]
    for row in rows:
        cells = [_cell(found.values(row.key, subject)) for subject in subjects]
        if any(cells):
            lines.append(f"| {row.title}, {row.unit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: Sequence[float]) -> str:
    if not values:
        return ""
    value = spread(values)
    return f"{rounded(value.median)} ({rounded(value.low)}-{rounded(value.high)})"


def drawn(report: Report) -> dict[str, tuple[str, str]]:
    """The title and the SVG of each plot, by file name; a plot without a value is left out."""
    found, order = report.found, list(report.subjects)
    plotted = {}
    for name, title, key, unit in figures.BARS:
        values = {each: spread(values) for each in order if (values := found.values(key, each))}
        if any(value.high for value in values.values()):
            plotted[name] = (title, plots.bars(title, unit, values, order))
    for curve in figures.CURVES:
        series = {each: points for each in order if (points := _points(found, curve, each))}
        if any(value.high > 0 for points in series.values() for value in points.values()):
            drawing = plots.curves(curve.title, curve.x_title, curve.y_title, series, order)
            plotted[curve.name] = (curve.title, drawing)
    return {f"{report.place}-{name}.svg": plot for name, plot in plotted.items()}


def _points(found: Found, curve: figures.Curve, subject: str) -> plots.Series:
    points = {}
    for x in curve.xs:
        if values := found.values(curve.key.format(x=x), subject):
            points[float(x)] = spread(values)
    return points


def summary(report: Report) -> str:
    """Markdown: the goals and all subjects, with the ranges of the rounds."""
    builds = "; ".join(f"{name}: {software}" for name, software in report.subjects.items())
    lines = [
        f"# Benchmarks, {report.place}",
        "",
        f"{report.date}, commit {report.commit}, {report.machine}. {report.rounds} interleaved "
        f"rounds in {report.seconds / 60:.0f} minutes; median (lowest to highest round). The "
        f"client's Python: {report.client}. {builds}.",
        "",
        goals.table(report.found, in_gvisor=report.place != "native"),
        "",
        table(report.found, list(report.subjects), figures.TABLE),
    ]
    if report.notes:
        lines += ["", "Not measured:", "", *(f"* {note}" for note in report.notes)]
    return "\n".join(lines)


def write(report: Report, folder: Path) -> None:
    """Write the JSON, in place of an earlier run's."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{report.place}.json").write_text(report.to_json())


def draw(report: Report, folder: Path) -> dict[str, str]:
    """Write the plots into the folder. Return their titles by the name of the file."""
    folder.mkdir(parents=True, exist_ok=True)
    plotted = drawn(report)
    for name, (_, drawing) in plotted.items():
        (folder / name).write_text(drawing)
    return {name: title for name, (title, _) in plotted.items()}
