"""The programs in examples/ behave as their text says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conformance.target import Target, start

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parent.parent
EXAMPLES = REPOSITORY / "examples"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    made = start(tmp_path_factory.mktemp("daemon"))
    yield made
    assert made.stop() == 0


@pytest.fixture(autouse=True)
def nothing_leaks() -> None:
    """Replaces the guard of the whole suite: the daemon may keep children, for example workers for
    sessions."""


def test_python_runtime_example_puts_runs_and_reads(daemon: Target) -> None:
    program = EXAMPLES / "python_runtime.sh"
    # A fresh machine has no curl. Then this test checks only how sh reads the example, and the
    # conformance suite checks the routes.
    if subprocess.run(["sh", "-c", "command -v curl"], capture_output=True, check=False).returncode:
        subprocess.run(["sh", "-n", program], check=True)
        return
    shown = subprocess.run(
        [program, daemon.url], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    assert '"stdout":"45\\n"' in shown
    assert "\n45\n" in shown
    assert '"sum.py"' in shown


def test_follow_example_loses_nothing_when_the_connection_does(daemon: Target) -> None:
    program = EXAMPLES / "follow.py"
    shown = subprocess.run(
        [sys.executable, program, daemon.url],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout
    assert [line for line in shown.splitlines() if line.startswith("step")] == [
        f"step {number}" for number in range(1, 6)
    ]
    assert "[the connection is lost, and made again]" in shown
    assert shown.splitlines()[-1] == "[exited]"


def ray_interpreter() -> Path:
    """The interpreter of an environment with Ray, made on first use: Ray is too large for the
    suite's own environment. An environment left half-made is made anew."""
    cache = Path(os.environ.get("EXECD_RAY_CACHE", REPOSITORY / ".cache"))
    folder = cache / f"ray-py{sys.version_info.major}.{sys.version_info.minor}"
    interpreter = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        subprocess.run(
            [
                interpreter,
                "-m",
                "pip",
                "install",
                "--quiet",
                "-r",
                EXAMPLES / "requirements-ray.txt",
            ],
            check=True,
        )
        (folder / "complete").touch()
    return interpreter


def test_ray_example_runs_on_a_local_ray(daemon: Target) -> None:
    program = [ray_interpreter(), EXAMPLES / "ray_functions.py", daemon.url]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    ended = subprocess.run(
        program, capture_output=True, text=True, timeout=180, check=False, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    found = {
        name: json.loads(text)
        for name, _, text in (line.partition(": ") for line in ended.stdout.splitlines())
    }
    assert (found["code"]["status"], found["code"]["exit_code"]) == ("success", 0)
    assert found["shell"]["stdout"] == "3\n"
    assert found["total"]["stdout"] == "42\n"
    assert (found["error"]["status"], found["error"]["exit_code"]) == ("error", 1)
    assert "ValueError" in found["error"]["stderr"]
    assert found["alone"]["stdout"] == "False\n"
    assert found["timeout"]["status"] == "error"
    assert found["still there"]["stdout"] == "1\n"
    assert found["stats"]["execution_count"] == 5
    assert found["stats"]["container_status"] == "IDLE"
    assert found["cleanup"]["status"] == "success"
