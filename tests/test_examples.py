"""What examples/ shows is what happens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conformance.target import Target, start

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    made = start(tmp_path_factory.mktemp("daemon"))
    yield made
    assert made.stop() == 0


def test_python_runtime_example_puts_runs_and_reads(daemon: Target) -> None:
    program = EXAMPLES / "python_runtime.sh"
    # A fresh machine has no curl: then the example is checked for what sh makes of it, and the routes by the conformance suite.
    if subprocess.run(["sh", "-c", "command -v curl"], capture_output=True, check=False).returncode:
        subprocess.run(["sh", "-n", program], check=True)
        return
    shown = subprocess.run([program, daemon.url], capture_output=True, text=True, check=True, timeout=30).stdout
    assert '"stdout":"45\\n"' in shown
    assert "\n45\n" in shown
    assert '"sum.py"' in shown


def test_follow_example_loses_nothing_when_the_connection_does(daemon: Target) -> None:
    program = EXAMPLES / "follow.py"
    shown = subprocess.run([sys.executable, program, daemon.url], capture_output=True, text=True, check=True, timeout=30).stdout
    assert [line for line in shown.splitlines() if line.startswith("step")] == [f"step {number}" for number in range(1, 6)]
    assert "[the connection is lost, and made again]" in shown
    assert shown.splitlines()[-1] == "[exited]"
