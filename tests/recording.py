"""A record of every phase of every test, for CI: EXECD_TEST_RECORD names a file, and each phase
adds a line of JSON to the file. "reason" tells why a phase was skipped or failed.

pytest's own JUnit report holds one result for a test: a test that fails and whose teardown fails as
well cannot be told from others, and a run that is killed leaves no report. With several worker
processes the reports reach the controller, and the controller writes.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

RECORD = os.environ.get("EXECD_TEST_RECORD")
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
MAX_LINES = 12
MAX_LINE_CHARACTERS = 300


def _add(
    test: str, phase: str, outcome: str, reason: str = "", duration_seconds: float = 0.0
) -> None:
    if RECORD and not IS_WORKER:
        line = {
            "test": test,
            "phase": phase,
            "outcome": outcome,
            "reason": reason,
            "duration_seconds": round(duration_seconds, 3),
        }
        with open(RECORD, "a") as record:
            record.write(json.dumps(line) + "\n")


def pytest_sessionstart() -> None:
    _add("", "begin", "")


def pytest_sessionfinish(exitstatus: int) -> None:
    """A record with more begins than ends is of a run that something ended. The outcome is pytest's
    exit code: an error within pytest itself has no test."""
    _add("", "end", str(int(exitstatus)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    assert report.when
    _add(report.nodeid, report.when, report.outcome, _reason(report), report.duration)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported, or that skips itself as a whole, has no test."""
    if not report.passed:
        _add(report.nodeid, "collect", report.outcome, _reason(report))


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if report.failed:
        return _failure(report)
    if not report.skipped:
        return ""
    assert isinstance(report.longrepr, tuple), "a skip has a place and a reason"
    return report.longrepr[2].removeprefix("Skipped: ")


def _failure(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The place and the first lines of the exception. Where pytest tells no place (a module that
    cannot be imported, a worker process that died), the last lines of the report say the most."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash:
        lines = f"{crash.path}:{crash.lineno}: {crash.message}".splitlines()[:MAX_LINES]
    else:
        lines = report.longreprtext.splitlines()[-MAX_LINES:]
    return "\n".join(line[:MAX_LINE_CHARACTERS] for line in lines)
