"""The files that a server of OpenSandbox copies out of the image: image/opensandbox."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from .manifests import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
BOOTSTRAP = REPOSITORY / "image" / "opensandbox" / "bootstrap.sh"
SECONDS = 60
# In the place of the daemon: tells how it was started, and ends as the entrypoint would.
DAEMON = """#!/bin/sh
printf '%s\\n' "$@"
env >&2
exit 9
"""


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("entrypoint", [["tail", "-f", "a word", ""], []])
def test_bootstrap_becomes_the_daemon_which_gets_the_entrypoint(
    tmp_path: Path, shell: str, entrypoint: list[str]
) -> None:
    daemon = tmp_path / "execd"
    daemon.write_text(DAEMON)
    daemon.chmod(0o755)
    done = subprocess.run(
        [shell, BOOTSTRAP, *entrypoint],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        env={
            "PATH": os.environ["PATH"],
            "EXECD": str(daemon),
            "EXECD_INIT": "1",
            "EXECD_IMAGE_ENV": "off",
            "EXECD_PYTHON": "/usr/bin/python3",
            "HOME": "/root",
        },
    )
    words = ["serve", *(["--", *entrypoint] if entrypoint else [])]
    assert (done.returncode, done.stdout.splitlines()) == (9, words)
    variables = dict(line.split("=", 1) for line in done.stderr.splitlines())
    assert variables["EXECD_OPENSANDBOX_PORT"] == "44772"
    assert variables["EXECD_HOST"] == "0.0.0.0"
    assert variables["EXECD_ENVS"] == str(tmp_path / ".env")
    assert variables["EXECD_IMAGE_ENV"] == "on"
    assert variables["EXECD_PASS_ENV"] == "*"
    assert (variables["PATH"], variables.get("HOME")) == (os.environ["PATH"], None)
    assert variables["EXECD_PYTHON"] == "/usr/bin/python3", "a setting: the user's interpreter"
    assert not {"EXECD", "EXECD_INIT"} & set(variables)


def test_image_has_the_files_where_both_providers_look() -> None:
    last_stage = DOCKERFILE.rpartition("\nFROM ")[2]
    # Docker's provider reads the files from the root folder.
    assert "\nCOPY --from=tree /execd /\nCOPY image/opensandbox/bootstrap.sh /\n" in last_stage
    assert re.findall(r"^WORKDIR (.*)$", last_stage, re.MULTILINE) == ["/"], (
        "Kubernetes' providers read the files from the working directory"
    )
    assert os.access(BOOTSTRAP, os.X_OK)
