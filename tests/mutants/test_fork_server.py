"""The fork server, on tests of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from .slot import SERVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SURVIVES = """
import os, pathlib, signal, subprocess, sys
def test_first():
    left = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"],
                            start_new_session=True)
    pathlib.Path("left").write_text(str(left.pid))
    {end}
"""


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """Runs these tests, in a folder of their own."""
    (tmp_path / "conftest.py").touch()
    environment = {**os.environ}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS", "EXECD_TEST_RECORD"):
        environment.pop(name, None)
    with subprocess.Popen(
        ["nohup", sys.executable, SERVER],  # SIGHUP is ignored
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def run(tests: str, limit_seconds: float = 60.0) -> dict[str, Any]:
            (tmp_path / "test_planted.py").write_text(tests)
            request = {
                "tests": ["test_planted.py"],
                "limit_seconds": limit_seconds,
                "writes_bytecode": False,
            }
            print(json.dumps(request), file=server.stdin, flush=True)
            found: dict[str, Any] = json.loads(server.stdout.readline())
            return found

        yield run
        server.stdin.close()
        assert server.wait(60) == 0


def test_each_run_reads_the_sources_anew_and_names_the_test_that_failed(
    ask: Callable[..., dict[str, Any]],
) -> None:
    passed = ask("def test_first(): pass")
    assert (passed["exit_code"], passed["failed"]) == (0, [])
    assert list(passed["passed"]) == ["test_planted.py::test_first"]
    failed = ask("def test_first(): pass\ndef test_other(): assert False")
    assert (failed["exit_code"], failed["failed"]) == (1, ["test_planted.py::test_other"])
    broken = ask("import no_such_module")
    assert (broken["exit_code"], broken["failed"]) == (2, ["test_planted.py"])
    skipped = ask("import pytest\ndef test_first(): pytest.skip()")
    assert (skipped["exit_code"], skipped["passed"]) == (0, {})


@pytest.mark.parametrize(
    ("end", "exit_code", "limit_seconds"),
    [("pass", 0, 60.0), ("os._exit(9)", 9, 60.0), ("signal.pause()", None, 5.0)],
    ids=["passes", "ends pytest", "hangs"],
)
def test_no_process_of_a_run_is_left(
    ask: Callable[..., dict[str, Any]],
    tmp_path: Path,
    end: str,
    exit_code: int | None,
    limit_seconds: float,
) -> None:
    assert ask(SURVIVES.format(end=end), limit_seconds)["exit_code"] == exit_code
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "left").read_text()), 0)
