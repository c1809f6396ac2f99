"""``execd[sessions]`` from pip, in a plain virtual environment."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.conformance.target import REPOSITORY
from tests.free_port import free_port
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path


def ask(port: int, path: str, body: dict[str, str] | None = None) -> dict[str, object]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as reply:
        found: dict[str, object] = json.load(reply)
        return found


def is_up(port: int) -> bool:
    try:
        return ask(port, "/healthz")["status"] == "ok"
    except OSError:
        return False


@pytest.mark.third_party
def test_pip_with_the_extra_sessions_gives_sessions_without_a_further_step(tmp_path: Path) -> None:
    """The first python3 on PATH is no Python, as that of a machine has no IPython."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(REPOSITORY / "execd", source / "execd", ignore=ignored)
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    pip = [f"{place}/bin/python", "-m", "pip", "install", "--quiet", f"{source}[sessions]"]
    subprocess.run(pip, check=True)
    (tmp_path / "bin").mkdir()
    shutil.copy("/bin/false", tmp_path / "bin/python3")
    port = free_port()
    daemon = subprocess.Popen(
        [f"{place}/bin/execd", "serve", f"--port={port}"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"},
    )
    try:
        wait_until(lambda: is_up(port))
        cell = ask(port, "/v1/code", {"code": "import sys; sys.prefix", "session_id": "s"})
        assert cell["status"] == "success", cell
        assert str(place) in json.dumps(cell["result"])
        found = ask(port, "/v1/sessions/s")["interpreter"]
        assert isinstance(found, dict)
        assert found["origin"] == "own"
    finally:
        daemon.terminate()
        assert daemon.wait() == 143
