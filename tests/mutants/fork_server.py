"""Runs pytest over and over for a slot, each time in a fork of one process that has imported pytest
and the packages that the tests need: a start of pytest takes longer than most tests.

The program runs with the slot's interpreter and knows nothing of the mutants. No module of execd
and of the tests is imported before the fork, so each run reads the sources anew. A request and its
reply are lines of JSON:

    {"tests": [ARGUMENT...], "limit_seconds": N, "writes_bytecode": BOOL}
    {"exit_code": INTEGER or null, "passed": {TEST: SECONDS...}, "failed": [TEST...],
     "output": TEXT}

``exit_code`` is null for a run that did not end in time. ``failed`` names tests, and the files that
pytest could not import. Before the reply all processes that the run has left are killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import sys
import tempfile
from typing import IO, Any

import pytest

PACKAGES = (
    "aiohttp.test_utils",
    "aiohttp.web",
    "click",
    "ctypes.util",
    "httpx",
    "hypothesis.stateful",
    "hypothesis.strategies",
    "msgspec",
    "multidict",
    "psutil",
    "uvloop",
    "yaml",
)
OPTIONS = (
    *("-x", "-q", "--tb=short", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"),
    # pytest would rewrite the asserts of its plugins, and PACKAGES brings the plugins' packages.
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)
PR_SET_CHILD_SUBREAPER = 36
MOST_OUTPUT = 20_000


class Record:
    """A plugin of pytest: adds to a file the outcome, the duration and the name of each test, in a
    line of its own. What a killed run has written stays."""

    def __init__(self, record: IO[str]) -> None:
        self._record = record

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.when == "call":
            self._add(report, report.duration)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._add(report)

    def _add(self, report: pytest.TestReport | pytest.CollectReport, seconds: float = 0.0) -> None:
        print(report.outcome, seconds, report.nodeid, file=self._record, flush=True)


def run(tests: list[str], limit_seconds: float, *, writes_bytecode: bool) -> dict[str, Any]:
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as record:
        if (pid := os.fork()) == 0:
            _be_pytest(tests, output, record, writes_bytecode=writes_bytecode)
        ended = os.pidfd_open(pid)
        try:
            in_time = bool(select.select([ended], [], [], limit_seconds)[0])
        finally:
            os.close(ended)
        if not in_time:
            os.kill(pid, signal.SIGKILL)
        exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        _kill_children()
        output.seek(0)
        record.seek(0)
        outcomes = [line.rstrip("\n").split(" ", 2) for line in record]
        return {
            "exit_code": exit_code if in_time else None,
            "passed": {name: float(s) for outcome, s, name in outcomes if outcome == "passed"},
            "failed": [name for outcome, _, name in outcomes if outcome == "failed"],
            "output": output.read()[-MOST_OUTPUT:],
        }


def _be_pytest(
    tests: list[str], output: IO[str], record: IO[str], *, writes_bytecode: bool
) -> None:
    """Never returns."""
    exit_code: int = pytest.ExitCode.INTERNAL_ERROR
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        sys.dont_write_bytecode = not writes_bytecode
        os.environ["PYTHONDONTWRITEBYTECODE"] = "" if writes_bytecode else "1"
        exit_code = pytest.main([*OPTIONS, *tests], plugins=[Record(record)])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(exit_code)


def _kill_children() -> None:
    """The server is a subreaper: daemons that lost their pytest are its children, and after the
    death of a child the children of the child are."""
    with contextlib.suppress(ChildProcessError):
        while True:
            with open(f"/proc/self/task/{os.getpid()}/children") as children:
                pids = [int(pid) for pid in children.read().split()]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            os.wait()


def main() -> None:
    # The folder of the program must not be among the folders of modules.
    sys.path.pop(0)
    # nohup, and a shell that runs `make mutants &`, have set these to be ignored, and the programs
    # of the tests would inherit the setting.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for package in PACKAGES:
        importlib.import_module(package)
    requests = os.fdopen(os.dup(0), "r")
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in requests:
        print(json.dumps(run(**json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    main()
