"""Tests of promises about time, on the real clock.

A test marked ``timed`` takes the fixture ``timed`` and says what the test has measured:
``timed(seconds, limit_seconds)``. Nothing may run beside these tests: natively the last call of
pytest in ``make test`` has them, in gVisor a lane of ``.ci/test-image``. A late test has
ATTEMPTS attempts, because any machine may pause once; any other failure fails the test at once.
pytest and CI see the last attempt alone, and the end of the run shows the seconds of all attempts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from _pytest.runner import runtestprotocol  # as in the documentation of pytest_runtest_protocol

if TYPE_CHECKING:
    from collections.abc import Callable

ATTEMPTS = 3
PROPERTY = "timed"
IS_LATE = pytest.StashKey[bool]()
MEASURED: dict[str, list[tuple[float, float]]] = {}
"""By test: the seconds, and their limit."""


class TooLateError(AssertionError):
    """A promise about time was not kept."""


@pytest.fixture
def timed(request: pytest.FixtureRequest) -> Callable[[float, float], None]:
    def record(seconds: float, limit_seconds: float) -> None:
        request.node.user_properties.append((PROPERTY, (seconds, limit_seconds)))
        if seconds >= limit_seconds:
            request.node.stash[IS_LATE] = True
            raise TooLateError(f"took {seconds:.3f} s; the limit is {limit_seconds:g} s")

    return record


def pytest_itemcollected(item: pytest.Item) -> None:
    is_marked = item.get_closest_marker("timed") is not None
    if is_marked != ("timed" in getattr(item, "fixturenames", ())):
        raise pytest.UsageError(f"{item.nodeid}: the marker and the fixture `timed` go together")
    for other in ("third_party", "root"):
        if item.get_closest_marker(other) and (is_marked or item.get_closest_marker("alone")):
            raise pytest.UsageError(f"{item.nodeid}: tests marked `{other}` run beside others")


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not item.get_closest_marker("timed"):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for _ in range(ATTEMPTS):
        item.stash[IS_LATE] = False
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        # The error of a fixture is never repeated.
        if not item.stash[IS_LATE] or any(r.failed for r in reports if r.when != "call"):
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The reports of xdist's workers come here too."""
    if report.when == "teardown":
        measured = [value for name, value in report.user_properties if name == PROPERTY]
        if measured:
            MEASURED[report.nodeid] = measured


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if MEASURED:
        terminalreporter.section("promises about time: seconds of each attempt (limit)")
    for test, measured in MEASURED.items():
        told = ", ".join(f"{seconds:.3f} ({limit:g})" for seconds, limit in measured)
        terminalreporter.write_line(f"{told}  {test}")
