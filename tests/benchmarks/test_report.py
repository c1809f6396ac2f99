from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import figures, goals, report
from benchmarks.figures import Figure, Found
from benchmarks.report import Report
from benchmarks.subjects import EXECD, FASTAPI, SANDBOXD

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


@pytest.fixture
def found() -> Found:
    """Two rounds; sandboxd is missing in the first."""
    found = Found()
    for number, factor in enumerate((1.0, 3.0)):
        found.round = number
        found.keep(EXECD, "true loop p50_ms", 1.0 * factor)
        found.keep(FASTAPI, "true loop p50_ms", 2.0 * factor)
        found.keep(EXECD, "true loop cpu_ms", 0.5)
        found.keep(EXECD, "connections 1 per_second", 100.0 * factor)
        found.keep(EXECD, "connections 16 per_second", 300.0)
    found.keep(SANDBOXD, "true loop cpu_ms", 0.25)
    return found


@pytest.fixture
def done(found: Found) -> Report:
    builds = {EXECD: "Python 3.13.5 (PGO)", FASTAPI: "Python 3.13.5 (PGO)", SANDBOXD: "Go"}
    facts = ("native", "2 CPUs", "abc", "2026-01-01", "Python 3.11.2 (PGO)", 2, 90.0)
    return Report(*facts, builds, ["envd: not here"], found)


def test_a_goal_is_judged_by_the_median_of_the_ratios_of_the_rounds(found: Found) -> None:
    rows = goals.table(found, in_gvisor=False).splitlines()
    assert "| `true` p50 / FastAPI | ≤ 0.75 | 0.50 (0.50 to 0.50) | yes |" in rows
    assert "| CPU for a `true` / sandboxd | ≤ 1.30 | 2.00 (2.00 to 2.00) | no |" in rows


def test_a_goal_without_figures_is_told_and_not_left_out(found: Found) -> None:
    rows = goals.table(found, in_gvisor=False).splitlines()
    assert "| start to first answer / FastAPI | ≤ 0.65 |  | not measured |" in rows
    assert len(rows) == 2 + len(goals.GOALS)


def test_a_rate_has_a_goal_that_it_must_reach(found: Found) -> None:
    found.keep(SANDBOXD, "connections 16 per_second", 400.0)
    rows = goals.table(found, in_gvisor=False).splitlines()
    assert (
        "| `true`, 16 connections, a second / sandboxd | ≥ 0.75 | 0.75 (0.75 to 0.75) | yes |"
        in (rows)
    )


def test_in_gvisor_only_the_goals_for_gvisor_are_judged(found: Found) -> None:
    rows = goals.table(found, in_gvisor=True).splitlines()
    assert len(rows) == 2 + sum(goal.gvisor is not None for goal in goals.GOALS)


def test_the_table_has_a_column_for_each_subject_and_no_row_without_values(found: Found) -> None:
    rows = [
        Figure("true loop p50_ms", "`true`, p50", "ms"),
        Figure("start ms", "start", "ms"),
    ]
    assert report.table(found, [EXECD, SANDBOXD, FASTAPI], rows).splitlines() == [
        "| | execd | sandboxd | FastAPI |",
        "|---|--:|--:|--:|",
        "| `true`, p50, ms | 2.00 (1.00-3.00) |  | 4.00 (2.00-6.00) |",
    ]


def test_the_json_has_each_value_of_each_round_and_names_client_and_python(done: Report) -> None:
    written = json.loads(done.to_json())
    assert written["figures"]["true loop p50_ms"] == {EXECD: [1.0, 3.0], FASTAPI: [2.0, 6.0]}
    assert "Python 3.11.2 (PGO)" in written["client"]
    assert written["subjects"][EXECD] == "Python 3.13.5 (PGO)"
    assert written["not measured"] == ["envd: not here"]


def test_the_section_names_client_and_pythons_and_shows_every_plot(done: Report) -> None:
    plotted = report.drawn(done)
    text = report.section(done, plotted, "benchmarks")
    assert "execd: Python 3.13.5 (PGO)" in text
    assert "The client's Python: Python 3.11.2 (PGO)" in text
    assert "* envd: not here" in text
    for name in plotted:
        assert f"](benchmarks/{name})" in text
    assert "native-throughput-by-connections.svg" in plotted
    assert "native-latency.svg" in plotted
    assert "native-start.svg" not in plotted  # nobody has a value


def test_a_new_run_replaces_the_files_of_its_place_and_no_others(
    done: Report, tmp_path: Path
) -> None:
    for name in ("native-old.svg", "gvisor-latency.svg"):
        (tmp_path / name).write_text("")
    report.write(done, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"gvisor-latency.svg", "native.json", *report.drawn(done)}


def test_the_page_has_a_place_for_each_run_and_keeps_the_rest() -> None:
    page = PAGE.read_text()
    for place in ("native", "gvisor"):
        changed = report.insert(page, place, "NEW")
        assert f"<!-- {place}: begin -->\nNEW\n<!-- {place}: end -->\n" in changed
        assert report.insert(changed, place, "NEW") == changed
    with pytest.raises(ValueError, match="no markers"):
        report.insert("text", "native", "NEW")


def test_every_plot_has_a_name_of_its_own() -> None:
    names = [curve.name for curve in figures.CURVES] + [name for name, *_ in figures.BARS]
    assert len(names) == len(set(names))


def test_a_figure_is_kept_once_in_a_round(found: Found) -> None:
    with pytest.raises(AssertionError):
        found.keep(EXECD, "true loop p50_ms", 9.0)
