"""The machine, for the page: figures of two machines do not compare."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path


def release_of(runsc: str) -> str:
    """Return the release of gVisor, a date: "20260905"."""
    said = subprocess.run([runsc, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\b20\d{6}\b", said)
    if found is None:
        raise ValueError(f"{runsc} --version names no release of gVisor: {said!r}")
    return found[0]


def machine(release: str = "") -> str:
    """``release``: of gVisor, if the servers run there."""
    models = [
        line
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    model = models[0].partition(":")[2].strip() if models else platform.machine()
    in_gvisor = f", gVisor {release} (systrap)" if release else ""
    return f"{os.cpu_count()} CPUs ({model}), Linux {platform.release()}{in_gvisor}"
