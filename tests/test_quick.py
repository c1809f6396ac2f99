"""`make quick` collects the files of ``tests.conftest.QUICK`` and no others, and a run of the tests
that nothing runs beside only the files of these tests."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import LONG, QUICK, TESTS, pytest_ignore_collect

FILES = {str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py")}


def ignores(name: str, markexpr: str) -> bool:
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=markexpr))
    return pytest_ignore_collect(TESTS / name, config) is True


def test_a_quick_run_collects_each_quick_file_and_no_other() -> None:
    folders = {name: [*map(str, (TESTS / name).relative_to(TESTS).parents)] for name in FILES}
    collected = {
        name for name in FILES if not any(ignores(part, "quick") for part in [name, *folders[name]])
    }
    assert collected == QUICK & FILES
    assert len(collected) > 30


def test_the_long_files_are_there() -> None:
    assert LONG <= FILES


def test_a_run_of_the_tests_that_run_alone_collects_each_file_that_has_any() -> None:
    collected = {name for name in FILES if not ignores(name, "alone or timed")}
    marked = {
        name for name in FILES if re.search(r"\bmark\W+(alone|timed)\b", (TESTS / name).read_text())
    }
    assert collected == marked
    assert not any(
        ignores(str(parent), "alone or timed") for name in marked for parent in Path(name).parents
    )


@pytest.mark.parametrize("markexpr", ["", "not quick", "not alone", "quick or alone"])
def test_any_other_run_collects_every_file(markexpr: str) -> None:
    assert not any(ignores(name, markexpr) for name in FILES)


def test_no_test_outside_of_the_list_calls_itself_quick() -> None:
    """Such a test would be marked, and a quick run would not collect the test."""
    marked = {name for name in FILES if re.search(r"\bmark\W+quick\b", (TESTS / name).read_text())}
    assert marked == set()
