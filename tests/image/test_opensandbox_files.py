"""The files that a server of OpenSandbox copies out of the image: image/opensandbox."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from .manifests import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
FILES = REPOSITORY / "image" / "opensandbox"
DOES_NOT_FIT = 78
SECONDS = 60
# In the place of the daemon: tells how it was started, and ends as the entrypoint would.
DAEMON = """#!/bin/sh
printf '%s\\n' "$@"
env >&2
exit 9
"""


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    """A folder with the two files, as in a sandbox."""
    for name in ("execd", "bootstrap.sh"):
        shutil.copy(FILES / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("entrypoint", [["tail", "-f", "a word", ""], []])
def test_bootstrap_becomes_the_daemon_which_gets_the_entrypoint(
    sandbox: Path, shell: str, entrypoint: list[str]
) -> None:
    daemon = sandbox / "python"
    daemon.write_text(DAEMON)
    daemon.chmod(0o755)
    done = subprocess.run(
        [shell, sandbox / "bootstrap.sh", *entrypoint],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        env={
            "PATH": os.environ["PATH"],
            "EXECD": str(sandbox / "execd"),
            "EXECD_INIT": "1",
            "EXECD_DAEMON_PYTHON": str(daemon),
            "EXECD_PYTHON": "/usr/bin/python3",
            "HOME": "/root",
        },
    )
    words = ["-I", "-m", "execd", "serve", *(["--", *entrypoint] if entrypoint else [])]
    assert (done.returncode, done.stdout.splitlines()) == (9, words)
    variables = dict(line.split("=", 1) for line in done.stderr.splitlines())
    assert variables["EXECD_OPENSANDBOX_PORT"] == "44772"
    assert variables["EXECD_HOST"] == "0.0.0.0"
    assert variables["EXECD_ENVS"] == str(sandbox / ".env")
    assert variables["EXECD_IMAGE_ENV"] == "on"
    assert (variables["PATH"], variables["HOME"]) == (os.environ["PATH"], "/root")
    assert variables["EXECD_PYTHON"] == "/usr/bin/python3", "a setting: the user's interpreter"
    assert not {"EXECD", "EXECD_INIT", "EXECD_DAEMON_PYTHON"} & set(variables)


def test_image_without_the_daemon_is_told_so_before_anything_runs(sandbox: Path) -> None:
    for command in ([sandbox / "execd"], [sandbox / "bootstrap.sh", "touch", sandbox / "ran"]):
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env={
                "PATH": os.environ["PATH"],
                "EXECD": str(sandbox / "execd"),
                "EXECD_DAEMON_PYTHON": "/nowhere/python3",
            },
        )
        assert ended.returncode == DOES_NOT_FIT
        assert "no /nowhere/python3" in ended.stderr
        assert "image/opensandbox/Dockerfile" in ended.stderr
    assert not (sandbox / "ran").exists()


def test_image_has_the_files_where_both_providers_look() -> None:
    last_stage = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.search(
        r"^COPY image/opensandbox/execd image/opensandbox/bootstrap.sh /$", last_stage, re.MULTILINE
    ), "Docker's provider reads the files from the root folder"
    assert re.findall(r"^WORKDIR (.*)$", last_stage, re.MULTILINE) == ["/"], (
        "Kubernetes' providers read the files from the working directory"
    )
    [python] = re.findall(r"\$\{EXECD_DAEMON_PYTHON:-(.*)\}", (FILES / "execd").read_text())
    assert f'ENTRYPOINT ["{python}", "-I", "-m", "execd", "serve"]' in last_stage
    any_image = (FILES / "Dockerfile").read_text()
    assert re.findall(r"^(?:COPY|WORKDIR) (.*)$", any_image, re.MULTILINE) == [
        "execd-${ARCH} /execd",
        "bootstrap.sh /",
        "/",
    ]
    for name in ("execd", "bootstrap.sh"):
        assert os.access(FILES / name, os.X_OK)
        assert (FILES / name).stat().st_size < 4096
