"""The files that a server of OpenSandbox copies out of the image: image/opensandbox."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from .manifests import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
FILES = REPOSITORY / "image" / "opensandbox"
DOES_NOT_FIT = 78
SECONDS = 60
# In the place of the daemon: tells how it was started, and waits for SIGTERM.
DAEMON = """#!/bin/sh
echo "$@" > "$FACTS/arguments"
env > "$FACTS/environment"
trap 'touch "$FACTS/drained"; exit 143' TERM
touch "$FACTS/started"
{more}
while :; do sleep 0.05; done
"""


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    """A folder with the two files, as in a sandbox."""
    for name in ("execd", "bootstrap.sh"):
        shutil.copy(FILES / name, tmp_path / name)
    return tmp_path


def begin(sandbox: Path, *entrypoint: str, more: str = "") -> subprocess.Popen[str]:
    daemon = sandbox / "python"
    daemon.write_text(DAEMON.format(more=more))
    daemon.chmod(0o755)
    return subprocess.Popen(
        [sandbox / "bootstrap.sh", *entrypoint],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            "PATH": os.environ["PATH"],
            "EXECD": str(sandbox / "execd"),
            "EXECD_INIT": "1",
            "EXECD_DAEMON_PYTHON": str(daemon),
            "EXECD_PYTHON": "/usr/bin/python3",
            "HOME": "/root",
            "FROM_CREATE": "a value",
            "FACTS": str(sandbox),
        },
    )


def wait_for(path: Path) -> None:
    pause = threading.Event()
    while not path.exists():
        pause.wait(0.01)


WHEN_STARTED = 'until [ -e "$FACTS/started" ]; do sleep 0.02; done; '


def test_exit_code_is_that_of_the_entrypoint_and_the_daemon_drains(sandbox: Path) -> None:
    entrypoint = WHEN_STARTED + 'read line; echo "got $line"; exit 9'
    with begin(sandbox, "sh", "-c", entrypoint) as process:
        output, errors = process.communicate("a word\n", timeout=SECONDS)
    assert (process.returncode, output, errors) == (9, "got a word\n", "")
    assert (sandbox / "drained").exists()


def test_daemon_gets_the_port_of_opensandbox_and_the_env_file(sandbox: Path) -> None:
    with begin(sandbox, "sh", "-c", WHEN_STARTED) as process:
        assert process.wait(SECONDS) == 0
    assert (sandbox / "arguments").read_text() == "-I -m execd serve\n"
    variables = dict(
        line.split("=", 1) for line in (sandbox / "environment").read_text().splitlines()
    )
    assert variables["EXECD_OPENSANDBOX_PORT"] == "44772"
    assert variables["EXECD_ENVS"] == str(sandbox / ".env")
    assert (variables["EXECD_PASS_ENV"], variables["FROM_CREATE"]) == ("*", "a value")
    assert variables["PATH"] == os.environ["PATH"]
    assert variables["EXECD_PYTHON"] == "/usr/bin/python3", "a setting: the user's interpreter"
    assert not {"EXECD", "EXECD_INIT", "EXECD_DAEMON_PYTHON", "HOME"} & set(variables)


def test_sigterm_ends_the_entrypoint_and_then_the_daemon(sandbox: Path) -> None:
    with begin(sandbox, "tail", "-f", "/dev/null") as process:
        wait_for(sandbox / "started")
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 128 + signal.SIGTERM
    assert (sandbox / "drained").exists()


def test_daemon_that_ends_first_ends_the_sandbox_with_its_exit_code(sandbox: Path) -> None:
    with begin(sandbox, "tail", "-f", "/dev/null", more="exit 5") as process:
        assert process.wait(SECONDS) == 5


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
        assert "FROM" in ended.stderr
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
    for name in ("execd", "bootstrap.sh"):
        assert os.access(FILES / name, os.X_OK)
        assert (FILES / name).stat().st_size < 4096
