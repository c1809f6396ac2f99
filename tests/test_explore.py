"""`make explore` keeps what fails, and the gate tries what was kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests import explore, found
from tests.profiles import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

HIDDEN = ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS", "EXECD_TEST_RECORD", "EXECD_TEST_PROFILE")
PROPERTY = """
from hypothesis import given, strategies as st

@given(st.integers(0, 10**6))
def test_planted(number):
    assert number < {bound}

@given(st.integers(0, 10**6))
def test_sound(number):
    assert number >= 0
"""


def python(*arguments: str, cwd: Path = REPOSITORY, **more: str) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=cwd,
        env={**environment, "PYTHONPATH": str(REPOSITORY), **more},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


def replay(case: Path, folder: Path = REPOSITORY) -> tuple[int, str]:
    test = json.loads(case.read_text())["test"]
    return python(
        *explore.PYTEST,
        "-p",
        "tests.drawn",
        "-p",
        "tests.replays",
        test,
        cwd=folder,
        EXECD_REPLAY=str(case),
    )


def test_properties_hold_for_the_examples_that_once_failed() -> None:
    for case in found.cases("properties"):
        exit_code, text = replay(case)
        assert exit_code == 0, f"{case}\n{text}"


def test_example_that_fails_is_kept_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(found, "FOUND", tmp_path / "found")
    (tmp_path / "pytest.ini").touch()  # the name of the test begins here
    planted = tmp_path / "test_planted.py"
    planted.write_text(PROPERTY.format(bound=1234))
    exit_code, text = python(
        *("tests.explore", "--only", "properties", "--seconds", "60", "--seed", "2"),
        *("--properties", str(planted)),
        EXECD_FOUND=str(tmp_path / "found"),
    )
    assert exit_code == 1
    [case] = found.cases("properties")
    assert f"kept: {case}" in text
    assert json.loads(case.read_text())["example"] == ["{'number': 1234}"], "shrunk"
    exit_code, text = replay(case, tmp_path)
    assert (exit_code, "assert 1234 < 1234" in text) == (1, True), text
    planted.write_text(PROPERTY.format(bound=10**7))
    exit_code, text = replay(case, tmp_path)
    assert (exit_code, "1 passed" in text) == (0, True), text
    planted.write_text(
        PROPERTY.format(bound=10**7).replace(
            "st.integers(0, 10**6)", "st.text(min_size=9).map(len)"
        )
    )
    exit_code, text = replay(case, tmp_path)
    assert (exit_code, "draw another example now" in text) == (1, True), text


@pytest.mark.parametrize(("bound", "kept"), [(0, [5]), (1, [])])
def test_seed_of_a_run_that_fails_is_a_seed_of_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: int, kept: list[int]
) -> None:
    monkeypatch.setattr(found, "FOUND", tmp_path / "found")
    planted = tmp_path / "test_planted.py"
    planted.write_text(
        "import os\ndef test_planted():\n"
        f"    assert os.environ['EXECD_SEED'] != '5' or {bound}, 'lost'\n"
    )
    monkeypatch.setattr(
        explore, "commands", lambda *_: {"readers": [*explore.PYTEST, str(planted)]}
    )
    assert explore.explore("readers", 0.1, 5, []) is not bool(kept)
    assert found.seeds("readers") == [found.FIXED_SEED, *kept]
    assert all("lost" in case.read_text() for case in found.cases("readers"))
