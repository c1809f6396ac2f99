"""The plugin of tests/timed.py, in runs of pytest of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.timed import ATTEMPTS

pytestmark = pytest.mark.any_kernel

REPOSITORY = Path(__file__).parents[1]
HEAD = """
import pytest
pytest_plugins = ["tests.timed"]
from tests.recording import *
"""


def run(folder: Path, tests: str, *arguments: str) -> tuple[list[tuple[str, str]], str]:
    """The phases that were recorded with their outcomes, and what pytest printed."""
    (folder / "conftest.py").write_text(HEAD)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    timed: of the plugin\n")
    (folder / "test_it.py").write_text(
        f"import pytest\nfrom pathlib import Path\nattempts = Path({str(folder)!r}) / 'attempts'\n"
        "@pytest.fixture\n"
        "def attempt():\n"
        "    with attempts.open('a') as file: file.write('x')\n"
        "    yield attempts.stat().st_size\n" + tests
    )
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, folder],
        cwd=folder,
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("PYTEST")},
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": str(REPOSITORY),
            "EXECD_TEST_RECORD": str(folder / "record"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in (folder / "record").read_text().splitlines()]
    return [(line["phase"], line["outcome"]) for line in lines if line["test"]], ran.stdout


PASSED = [("setup", "passed"), ("call", "passed"), ("teardown", "passed")]
FAILED = [("setup", "passed"), ("call", "failed"), ("teardown", "passed")]


@pytest.mark.parametrize(
    "arguments", [(), ("-p", "xdist", "--numprocesses=1")], ids=["here", "xdist"]
)
def test_a_late_test_is_tried_again_and_its_last_attempt_alone_is_reported(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    tests = "@pytest.mark.timed\ndef test_late(timed, attempt): timed(3.5 - attempt, 1)\n"
    phases, said = run(tmp_path, tests, *arguments)
    assert phases == PASSED
    assert "2.500 (1), 1.500 (1), 0.500 (1)  test_it.py::test_late" in said


def test_a_test_that_is_late_each_time_fails_and_the_run_goes_on(tmp_path: Path) -> None:
    tests = (
        "@pytest.mark.timed\ndef test_late(timed, attempt): timed(attempt, 1)\n"
        "def test_other(): pass\n"
    )
    phases, said = run(tmp_path, tests)
    assert phases == FAILED + PASSED
    assert (tmp_path / "attempts").stat().st_size == ATTEMPTS
    assert "TooLateError: took 3.000 s; the limit is 1 s" in said


def test_a_timed_test_that_fails_for_another_reason_is_not_tried_again(tmp_path: Path) -> None:
    tests = "@pytest.mark.timed\ndef test_wrong(timed, attempt):\n    timed(0, 1)\n    assert 0\n"
    assert run(tmp_path, tests)[0] == FAILED
    assert (tmp_path / "attempts").stat().st_size == 1


def test_an_error_of_a_fixture_is_not_tried_again(tmp_path: Path) -> None:
    tests = (
        "@pytest.fixture\ndef leaking(): yield; assert 0\n"
        "@pytest.mark.timed\ndef test_late(timed, attempt, leaking): timed(2, 1)\n"
    )
    assert [outcome for _, outcome in run(tmp_path, tests)[0]] == ["passed", "failed", "failed"]
    assert (tmp_path / "attempts").stat().st_size == 1


@pytest.mark.parametrize(
    "tests",
    ["@pytest.mark.timed\ndef test_it(): pass\n", "def test_it(timed): pass\n"],
    ids=["no fixture", "no marker"],
)
def test_the_marker_and_the_fixture_go_together(tmp_path: Path, tests: str) -> None:
    phases, said = run(tmp_path, tests)
    assert phases == []
    assert "go together" in said
