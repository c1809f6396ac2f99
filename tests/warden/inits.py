"""Scripts of tests that run as the init of a new PID namespace, as the warden does."""

from __future__ import annotations

import subprocess
import sys


def told_by_init(script: str, lines: str) -> list[str]:
    """What ``script`` prints, which runs ``lines`` as its first argument."""
    done = subprocess.run(
        [
            *["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"],
            "--kill-child",
            *[sys.executable, "-c", script, lines],
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
