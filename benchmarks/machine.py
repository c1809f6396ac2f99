"""The machine, for the page: figures of two machines do not compare."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine() -> str:
    models = [
        line
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    model = models[0].partition(":")[2].strip() if models else platform.machine()
    return f"{os.cpu_count()} CPUs ({model}), Linux {platform.release()}"
