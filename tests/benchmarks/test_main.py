"""The command line: ``python -m benchmarks``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks import __main__ as program
from benchmarks import environments, subjects

if TYPE_CHECKING:
    import argparse


def given(monkeypatch: pytest.MonkeyPatch, *flags: str) -> argparse.Namespace:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *flags])
    return program.arguments()


@pytest.fixture(autouse=True)
def without_installations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCHMARK_PEERS", raising=False)
    monkeypatch.setattr(environments, "made", lambda *_: Path(sys.executable))


def chosen(monkeypatch: pytest.MonkeyPatch, *flags: str) -> tuple[list[str], list[str]]:
    """The names of the subjects, and the notes."""
    notes: list[str] = []
    python = environments.examine(Path(sys.executable))
    found = program.selected(given(monkeypatch, *flags), python, notes)
    return [each.name for each in found], notes


def test_without_peers_a_run_says_so_and_goes_on_with_fastapi(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names, notes = chosen(monkeypatch)
    assert names[:2] == [subjects.EXECD, subjects.SESSIONS_OFF]
    assert names[-1] == subjects.FASTAPI
    [note] = notes
    assert note.startswith("sandboxd, OpenSandbox, E2B envd: --peers names no folder")


def test_each_dialect_that_execd_serves_is_a_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    names, _ = chosen(monkeypatch)
    assert {"execd by sandboxd", "execd by opensandbox", "execd by e2b"} <= set(names)


def test_a_run_can_be_restricted_and_takes_servers_that_run_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = "other=opensandbox+http://127.0.0.1:44772#1"
    names, _ = chosen(monkeypatch, "--add", server, "--subjects", "execd,other")
    assert names == ["execd", "other"]


def test_an_unknown_subject_is_refused_with_the_names_of_the_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SystemExit, match=r"no subject nobody; there are execd, .*FastAPI"):
        chosen(monkeypatch, "--subjects", "execd,nobody")


def test_a_python_is_named_with_its_version_and_its_build() -> None:
    python = environments.examine(Path(sys.executable))
    version = ".".join(map(str, sys.version_info[:3]))
    assert str(python) in {
        f"Python {version} ({build})" for build in ("PGO", "no PGO", "Debian's build, PGO")
    }
