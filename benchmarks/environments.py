"""The Python environments of the measured servers, made on first use below .cache/benchmarks.

Like the image: one interpreter, the pinned packages of image/requirements-execd.txt for execd, and
another environment with image/requirements-lean.txt for the user's code.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
BASELINE = HERE / "requirements.txt"
DAEMON = REPOSITORY / "image" / "requirements-execd.txt"
USER = REPOSITORY / "image" / "requirements-lean.txt"
DEBIAN_PYTHON = Path("/usr/bin/python3")

_FACTS = """
import json, os, platform, sys, sysconfig
arguments = sysconfig.get_config_var("CONFIG_ARGS") or ""
print(json.dumps({
    "version": platform.python_version(),
    "minor": sys.version_info[:2],
    "is_optimized": "--enable-optimizations" in arguments,
    "is_debian": sys.base_prefix == "/usr" and os.path.exists("/etc/debian_version"),
}))
"""


@dataclass(frozen=True)
class Python:
    path: Path
    version: str
    minor: tuple[int, int]
    build: str
    """With profile-guided optimisation (PGO) or without: worth a quarter of the time."""

    def __str__(self) -> str:
        return f"Python {self.version} ({self.build})"


def examine(path: Path) -> Python:
    said = subprocess.run(
        [path, "-I", "-c", _FACTS], capture_output=True, text=True, check=True, timeout=60
    )
    facts = json.loads(said.stdout)
    build = "no PGO"
    if facts["is_optimized"]:
        build = "PGO"
    elif facts["is_debian"]:  # debian/rules builds with PGO by its own flags
        build = "Debian's build, PGO"
    return Python(path, facts["version"], tuple(facts["minor"]), build)


def default_python() -> Path:
    """Debian's, because the image has Debian's, if it can load this checkout's C library; else this
    program's."""
    if DEBIAN_PYTHON.exists() and examine(DEBIAN_PYTHON).minor == sys.version_info[:2]:
        return DEBIAN_PYTHON
    return Path(sys.executable)


def made(python: Path, requirements: Path) -> Path:
    """The interpreter of an environment of ``python`` with these packages."""
    content = requirements.read_bytes() + str(examine(python)).encode() + str(python).encode()
    digest = hashlib.sha256(content).hexdigest()[:12]
    folder = REPOSITORY / ".cache" / "benchmarks" / f"{requirements.stem}-{digest}"
    interpreter = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(interpreter)]
        install = ["install", "--quiet", "--disable-pip-version-check", "-r", str(requirements)]
        subprocess.run([*pip, *install], check=True)
        (folder / "complete").touch()
    return interpreter
