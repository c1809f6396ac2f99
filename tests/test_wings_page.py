"""The wing of docs/wings.md, as a reader of the page would write the wing: installed beside execd,
asked for by --dialect, and called over HTTP."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from execd.dialects import FOLDERS
from tests.conformance.target import TERMINATED, Target, start
from tests.free_port import free_port
from tests.patience import patience
from tests.test_wing_api import libraries_of, strangers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "wings.md").read_text()
FILES = dict(re.findall(r"`([\w./]+)`:\n\n```(?:python|toml)\n(.*?)```\n", PAGE, re.DOTALL))
"""The text of each file of the wing, by path."""
PROJECT = tomllib.loads(FILES["pyproject.toml"])
PACKAGE = "execd_toy"


class Toy(NamedTuple):
    """A daemon with the wing."""

    target: Target
    port: int

    def run(self, body: bytes) -> tuple[int, Any]:
        """Return the HTTP status and the JSON of the reply."""
        toy = Target(f"http://127.0.0.1:{self.port}")
        answer = toy.request("POST", "/run", body)
        return answer.http_status, answer.json()


@pytest.fixture(autouse=True)
def nothing_leaks() -> None:
    """Replaces the guard of the whole suite: the daemon may keep children, for example workers for
    sessions."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what pip installs: the package, and the entry points of the distribution."""
    folder = tmp_path_factory.mktemp("installed")
    (folder / PACKAGE).mkdir()
    (folder / PACKAGE / "__init__.py").touch()
    for path, text in FILES.items():
        if path.startswith(PACKAGE):
            (folder / path).write_text(text)
    name, version = PROJECT["project"]["name"], PROJECT["project"]["version"]
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    [(group, points)] = PROJECT["project"]["entry-points"].items()
    lines = [f"{point} = {module}" for point, module in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    return folder


@pytest.fixture(scope="module")
def toy(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toy]:
    port = free_port()
    target = start(
        tmp_path_factory.mktemp("daemon"),
        f"--dialect=toy={port}",
        environment={"PYTHONPATH": str(installed), "EXECD_TOY_OUT_BYTES": "100"},
    )
    yield Toy(target, port)
    assert target.stop() == TERMINATED, target.log_text()
    assert target.log_errors() == []


def test_the_page_has_the_files_of_a_wing() -> None:
    assert FILES.keys() == {"pyproject.toml", f"{PACKAGE}/port.py", f"{PACKAGE}/run_route.py"}
    assert PROJECT["tool"]["setuptools"]["packages"] == [PACKAGE]


@pytest.mark.parametrize("path", [path for path in FILES if path.startswith(PACKAGE)])
def test_the_wing_of_the_page_imports_of_execd_the_two_modules_only(path: str) -> None:
    assert strangers(FILES[path], PACKAGE, libraries_of(FILES["pyproject.toml"])) == []


def test_the_wing_of_the_page_runs_the_command_of_the_page(toy: Toy) -> None:
    [(body, reply)] = re.findall(r"localhost:7777/run -d '(.*)'\n    (\{.*\})\n", PAGE)
    assert toy.run(body.encode()) == (200, json.loads(reply))


def test_the_wing_has_its_setting(toy: Toy) -> None:
    status, reply = toy.run(b'{"cmd": "seq 1000"}')
    assert (status, reply["code"], len(reply["out"])) == (200, 0, 100)


def test_a_wrong_body_is_refused_with_the_rule(toy: Toy) -> None:
    status, reply = toy.run(b'{"command": "true"}')
    assert status == 400
    assert reply.keys() == {"error"}
    assert "unknown field" in reply["error"]
    assert "cmd" in reply["error"]


def test_another_route_is_an_error_of_the_wing(toy: Toy) -> None:
    answer = Target(f"http://127.0.0.1:{toy.port}").request("GET", "/v1/executions")
    assert (answer.http_status, answer.json()) == (404, {"error": "this port has POST /run"})


def test_a_command_of_the_wing_is_an_execution_of_its_dialect(toy: Toy) -> None:
    assert toy.run(b'{"cmd": "echo counted"}')[0] == 200
    metrics = toy.target.request("GET", "/metrics").content.decode()
    [count] = re.findall(
        r'^execd_executions_total\{dialect="toy",exit_reason="exited"\} (\d+)',
        metrics,
        re.MULTILINE,
    )
    assert int(count) >= 1
    listed = toy.target.request("GET", "/v1/executions").content
    assert b"echo counted" in listed


def start_error(installed: Path, dialect: str, variables: Mapping[str, str] = {}) -> str:
    """What a start that ends at once with exit code 2 says."""
    ended = subprocess.run(
        [sys.executable, "-m", "execd", "serve", f"--port={free_port()}", f"--dialect={dialect}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(installed), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience.seconds(60),
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    return ended.stderr


def test_a_dialect_that_nobody_has_ends_the_start_and_names_those_that_are_installed(
    installed: Path,
) -> None:
    error = start_error(installed, f"toi={free_port()}")
    assert "'toi'" in error
    assert "toy" in error
    assert all(name in error for name in FOLDERS)


def test_a_bad_setting_of_a_wing_ends_the_start_and_names_the_variable(installed: Path) -> None:
    error = start_error(installed, f"toy={free_port()}", {"EXECD_TOY_OUT_BYTES": "0"})
    assert "EXECD_TOY_OUT_BYTES: " in error
    assert ">= 1" in error
