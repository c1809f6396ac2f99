"""The programs in examples/ behave as their text says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conformance.target import TERMINATED, Target, start

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parent.parent
EXAMPLES = REPOSITORY / "examples"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    # The tests' interpreter has matplotlib, for the notebook.
    made = start(tmp_path_factory.mktemp("daemon"), f"--python={sys.executable}")
    yield made
    assert made.stop() == TERMINATED


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


def shown_by(program: str, *arguments: str | Path, folder: Path | None = None) -> list[str]:
    ended = subprocess.run(
        [sys.executable, EXAMPLES / program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=folder,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_follow_example_loses_nothing_when_the_connection_does(daemon: Target) -> None:
    steps = [f"step {number}" for number in range(1, 6)]
    assert shown_by("follow.py", daemon.url) == [*steps, "exit code 0"]


@pytest.mark.third_party
def test_notebook_example_keeps_state_and_saves_a_plot(daemon: Target, tmp_path: Path) -> None:
    assert shown_by("notebook.py", daemon.url, folder=tmp_path) == [
        "sum: 285",
        "error: list index out of range",
    ]
    assert (tmp_path / "squares.png").read_bytes().startswith(b"\x89PNG")
    assert daemon.request("GET", "/v1/sessions").json()["items"] == []


def test_branches_example_tries_four_ideas_on_one_state(daemon: Target) -> None:
    assert shown_by("branches.py", daemon.url) == [
        "sum(data): 499999500000",
        "max(data): 999999",
        "data.clear(): None",
        "len(data): 1000000",
    ]
    assert daemon.request("GET", "/v1/sessions").json()["items"] == []


def test_directory_example_brings_the_results_back(daemon: Target, tmp_path: Path) -> None:
    source, results = tmp_path / "source", tmp_path / "results"
    source.mkdir()
    (source / "poem.txt").write_text("one two\nthree\n")
    assert shown_by("directory.py", source, results, daemon.url) == ["exit code 0"]
    assert (results / "words.txt").read_text() == "3 poem.txt\n"


def test_terminal_example_types_into_a_shell_and_ends_as_the_shell(daemon: Target) -> None:
    program = [sys.executable, EXAMPLES / "terminal.py", daemon.url]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 7, ended.stderr
    assert "30 100" in ended.stdout
    assert "\n42\n" in ended.stdout


def test_agent_tool_example_answers_calls_of_a_model(daemon: Target) -> None:
    assert shown_by("agent_tool.py", daemon.url) == [
        "schema: run_python",
        "done, no output",
        "42",
        "ZeroDivisionError: division by zero",
    ]


def test_scoring_example_finds_the_one_wrong_answer(daemon: Target) -> None:
    assert shown_by("scoring.py", daemon.url) == ["reward: 0.975"]


def ray_interpreter() -> Path:
    """The interpreter of an environment with Ray, made on first use: Ray is too large for the
    suite's own environment. An environment left half-made is made anew."""
    cache = Path(os.environ.get("EXECD_RAY_CACHE", REPOSITORY / ".cache"))
    folder = cache / f"rayai-py{sys.version_info.major}.{sys.version_info.minor}"
    interpreter = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder)
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "--python", interpreter),
                *(
                    "install",
                    "--quiet",
                    "--no-compile",
                    f"{REPOSITORY / 'clients' / 'python'}[rayai]",
                ),
            ],
            check=True,
        )
        (folder / "complete").touch()
    return interpreter


def run_with_ray(*arguments: str | Path) -> str:
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    ended = subprocess.run(
        [ray_interpreter(), *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env=environment,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.third_party
def test_ray_example_runs_on_a_local_ray(daemon: Target) -> None:
    shown = run_with_ray(EXAMPLES / "ray_functions.py", daemon.url)
    found = {
        name: json.loads(text)
        for name, _, text in (line.partition(": ") for line in shown.splitlines())
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


@pytest.mark.third_party
def test_ray_snippet_of_the_docs_runs(daemon: Target) -> None:
    page = (
        (REPOSITORY / "docs" / "dialects.md").read_text().partition("\n## RayAI's functions\n")[2]
    )
    [snippet] = re.findall(r"```python\n(.*?)```", page.partition("\n## ")[0], re.DOTALL)
    program = snippet.replace("http://127.0.0.1:8888", daemon.url)
    assert run_with_ray("-c", program) == "{'stdout': '42\\n', 'stderr': '', 'exit_code': 0}\n"
