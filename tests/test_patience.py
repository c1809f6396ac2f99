"""Upper bounds in seconds: what patience allows, and that no test has others."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import patience as module
from tests.patience import HEADROOM, MAX_SLOWNESS, QUIET_SECONDS, Patience

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.any_kernel

TESTS = Path(__file__).parent
CLOCKS = re.compile(r"^(monotonic|perf_counter)$|elapsed|took|worst_seconds|duration_seconds")


def is_clock(node: ast.AST) -> bool:
    """Whether the time that something took is a part of the expression."""
    names = (
        getattr(part, "id", None) or getattr(part, "attr", None) or getattr(part, "value", None)
        for part in ast.walk(node)
    )
    return any(isinstance(name, str) and CLOCKS.search(name) for name in names)


def is_patience(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", None) == "patience"


def upper_bounds(source: str) -> Iterator[str]:
    """The comparisons of asserts where a measured time has another bound than patience, and than
    another measured time."""
    for asserted in ast.walk(ast.parse(source)):
        if not isinstance(asserted, ast.Assert):
            continue
        for node in ast.walk(asserted.test):
            if not isinstance(node, ast.Compare):
                continue
            sides = [node.left, *node.comparators]
            for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
                small, large = left, right
                if isinstance(operator, ast.Gt | ast.GtE):
                    small, large = right, left
                elif not isinstance(operator, ast.Lt | ast.LtE):
                    continue
                if is_clock(small) and not is_clock(large) and not is_patience(large):
                    yield ast.unparse(node)


def test_no_test_has_an_upper_bound_in_seconds_but_patience() -> None:
    found = [
        f"{path}: {bound}"
        for path in sorted([*TESTS.rglob("*.py"), *TESTS.parent.glob("wings/*/tests/**/*.py")])
        for bound in upper_bounds(path.read_text())
    ]
    assert found == [], "take patience(…), or the marker timed"


@pytest.mark.parametrize(
    ("line", "is_bound"),
    [
        ("assert time.monotonic() - began < 5", True),
        ("assert 1 <= ran.elapsed_seconds <= limit_seconds + 0.5", True),
        ("assert 2.0 > body['duration_seconds']", True),
        ("assert time.monotonic() < deadline, 'late'", True),
        ("assert time.monotonic() - began < patience(5)", False),
        ("assert time.monotonic() - began >= 1.4", False),
        ("assert ran.elapsed_seconds < max(elapsed_seconds)", False),
        ("while time.monotonic() < end: pass", False),
    ],
)
def test_an_upper_bound_is_found(line: str, is_bound: bool) -> None:
    assert bool(list(upper_bounds(line))) is is_bound


@pytest.fixture
def work_seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the piece of work takes in the next measurements."""
    found = [QUIET_SECONDS]
    monkeypatch.setattr(module, "IN_SANDBOX", False)
    monkeypatch.setattr(module, "_work", lambda: found[0])
    return found


def test_patience_is_longer_on_a_slow_machine_and_measures_at_the_last_moment(
    work_seconds: list[float],
) -> None:
    patience = Patience()
    late = 5 * HEADROOM + 0.1
    assert not patience.is_over(4.9, 5)
    assert patience.slowness == 0.0, "not measured yet"
    assert patience.is_over(late, 5)
    work_seconds[0] = 3 * QUIET_SECONDS
    assert not patience.is_over(late, 5)
    assert late < patience(5)
    work_seconds[0] = QUIET_SECONDS
    assert not patience.is_over(late, 5), "patience only grows"
    work_seconds[0] = 1000 * QUIET_SECONDS
    assert patience.is_over(5 * HEADROOM * MAX_SLOWNESS, 5)


def test_the_failure_names_the_fact_and_the_patience(work_seconds: list[float]) -> None:
    with pytest.raises(AssertionError, match=r"not so within 10.0 s \(patience with 5 s\): done"):
        Patience().check(0.0, 5, "done")


def test_patience_is_longer_for_a_daemon_in_a_sandbox(
    work_seconds: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = Patience().seconds(5)
    monkeypatch.setattr(module, "IN_SANDBOX", True)
    assert Patience().seconds(5) > outside
