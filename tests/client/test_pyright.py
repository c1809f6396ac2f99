"""pyright, in its strict mode, finds nothing wrong with a user's program, and finds mistakes.

npm installs pyright into the cache of the SDKs on first use.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.client.test_package import CLIENT, USERS_PROGRAM, WRONG_LINES
from tests.sdk.conftest import ENVIRONMENTS

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "1.1.414"
INSTALL_SECONDS = 300.0


@pytest.fixture(scope="module")
def pyright() -> Path:
    """pyright's program for node. An installation left half-made is made anew."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("no node and npm on this machine")
    folder = ENVIRONMENTS / f"pyright-{VERSION}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        subprocess.run(
            ["npm", "install", "--ignore-scripts", "--silent", f"pyright@{VERSION}"],
            cwd=folder,
            check=True,
            timeout=INSTALL_SECONDS,
        )
        (folder / "complete").touch()
    return folder / "node_modules" / "pyright" / "index.js"


def errors_of(pyright: Path, folder: Path, program: str) -> list[dict[str, Any]]:
    (folder / "program.py").write_text(program)
    settings = {
        "typeCheckingMode": "strict",
        "include": ["program.py"],
        "extraPaths": [str(CLIENT)],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    found = subprocess.run(
        ["node", pyright, "--outputjson", "--pythonpath", sys.executable],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(found.stdout)
    assert report["summary"]["filesAnalyzed"] == 1, found.stdout
    errors: list[dict[str, Any]] = report["generalDiagnostics"]
    return errors


def test_a_users_program_is_clean_under_pyright_and_mistakes_are_found(
    pyright: Path, tmp_path: Path
) -> None:
    assert errors_of(pyright, tmp_path, USERS_PROGRAM) == []
    wrong = "\n".join(f"    {line}" for line in WRONG_LINES)
    program = f"import execd_client\nwith execd_client.Execd() as sandbox:\n{wrong}\n"
    errors = errors_of(pyright, tmp_path, program)
    in_lines = {error["range"]["start"]["line"] for error in errors}
    assert in_lines == set(range(2, 2 + len(WRONG_LINES)))
