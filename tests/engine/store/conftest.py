from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import execd
from execd.engine.store.state_dir import StateDir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINKS = {"python": "/usr/bin/python3", "python3": "/usr/bin/python3"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


def close(state_dir: StateDir) -> None:
    state_dir.threads.shutdown(wait=True)
    state_dir.close()


@pytest.fixture
def state_dir(path: Path) -> Iterator[StateDir]:
    state_dir = StateDir(str(path), 1000, LINKS)
    yield state_dir
    close(state_dir)


def on_small_disk(tmp_path: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run ``program`` on a real small disk: a tmpfs of 256 KiB in a new mount namespace."""
    root = os.path.dirname(next(iter(execd.__path__)))
    mount = f'mount -t tmpfs -o size=256k none {tmp_path} && exec "$@"'
    return subprocess.run(
        [
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            mount,
            "sh",
            sys.executable,
            "-c",
            program,
            f"{tmp_path}/state",
        ],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": root},
    )
