"""A tiny run of the whole instrument, execd beside FastAPI."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks import environments, figures, goals, report, rounds, scenarios, subjects
from benchmarks.figures import Found
from benchmarks.report import Report
from benchmarks.rounds import Run
from benchmarks.servers import Place, baseline_interpreter
from benchmarks.subjects import EXECD, FASTAPI, SESSIONS_OFF, Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

SCALE = 0.05
PYTHON = Path(sys.executable)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with pytest.MonkeyPatch.context() as patch:
        for name, values in (
            *(("LIVE", (0, 4)), ("SESSIONS", (0, 10)), ("LOG_MIB", (1,))),
            *(("OUTPUT_KIB", (1,)), ("MIXED_CONNECTIONS", 2)),
        ):
            patch.setattr(figures, name, values)
        patch.setattr(rounds, "IDLE_WITHIN_SECONDS", 2.0)
        python = environments.examine(PYTHON)
        chosen = [
            *subjects.execd_subjects(python, PYTHON, PYTHON)[:2],
            subjects.fastapi_subject(python, baseline_interpreter(), PYTHON),
            Subject("broken", "python_runtime", "", lambda _: subjects.Launch(["false"], {})),
        ]
        made = Run(Place(), chosen, Found(), SCALE)
        made.measure_round(0)
        yield made


def test_a_round_has_every_figure_of_execd_and_of_the_baseline(run: Run) -> None:
    pages = {EXECD, FASTAPI}
    for row in figures.TABLE:
        have = set(run.found.subjects(row.key))
        assert have >= pages, row.key
    assert run.found.values("rest pss_mib", SESSIONS_OFF)
    assert not run.found.values("true loop p50_ms", SESSIONS_OFF)


def test_the_cpu_of_a_command_is_more_with_the_command_than_without(run: Run) -> None:
    for name in (EXECD, FASTAPI):
        [own] = run.found.values("true loop cpu_ms", name)
        [all_of_it] = run.found.values("true loop all_cpu_ms", name)
        assert 0 < own <= all_of_it


def test_the_curves_of_sessions_and_logs_are_of_execd_alone(run: Run) -> None:
    for key in ("sessions 10 pss_mib", "sessions 10 cell_ms", "log 1 read_mb_per_second"):
        assert run.found.subjects(key) == [EXECD]


def test_a_subject_that_does_not_start_is_noted_and_the_others_are_measured(run: Run) -> None:
    [note] = [note for note in run.notes if note.startswith("broken")]
    assert "exit code 1 before the first answer" in note
    assert run.notes == [note]


def test_a_run_gives_the_table_of_goals_and_the_plots(run: Run, tmp_path: Path) -> None:
    builds = {each.name: each.software for each in run.subjects}
    done = Report("native", "m", "c", "d", "Python", 1, 1.0, builds, run.notes, run.found)
    names = report.write(done, tmp_path)
    assert {"native-cpu.svg", "native-latency-by-live-executions.svg"} <= names.keys()
    assert json.loads((tmp_path / "native.json").read_text())["figures"]
    table = goals.table(run.found, in_gvisor=False)
    unknown = {line.split("|")[1].strip() for line in table.splitlines() if "not measured" in line}
    assert all("sandboxd" in title for title in unknown)


def test_a_failing_command_is_an_error_and_no_figure(tmp_path: Path) -> None:
    python = environments.examine(PYTHON)
    subject = subjects.fastapi_subject(python, baseline_interpreter(), PYTHON)
    run = Run(Place(), [dataclasses.replace(subject, name="F")], Found(), SCALE)
    failing = [("a failing command", lambda bench: scenarios.loop(bench, "false", 1.0))]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("ORDINARY", failing), ("LAST", []), ("IDLE_WITHIN_SECONDS", 0.0)):
            patch.setattr(rounds, name, value)
        run.measure_round(0)
    assert any(note.startswith("F, a failing command: ") for note in run.notes)
    assert run.found.subjects("false loop p50_ms") == []
