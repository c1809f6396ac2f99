"""The Pythons of this machine, and interpreters made for a test.

A Python counts if the daemon's user can run it: where the suite starts the daemon elsewhere
(EXECD_CONFORMANCE_LAUNCHER), the daemon runs as another user.

    EXECD_TEST_PYTHONS  paths of more interpreters, with blanks between
    PYENV_ROOT          the folder of pyenv (default ~/.pyenv); no pyenv is needed
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from .target import COMMAND, LAUNCHER

SUPPORTED = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
TOO_OLD = "3.8"


def without_blank(python: str) -> str:
    """The interpreter by a path that the first line of a script and an unquoted word of a shell can
    hold. The link is to the folder of the environment, so that Python finds the environment."""
    if " " not in python:
        return python
    folder = tempfile.mkdtemp(prefix="execd-python-")
    atexit.register(shutil.rmtree, folder)
    Path(folder, "environment").symlink_to(Path(python).parents[1])
    return f"{folder}/environment/bin/{Path(python).name}"


PYTHON = without_blank(COMMAND[0] if LAUNCHER and COMMAND else sys.executable)
"""The interpreter of the daemon: Python 3.11 or newer."""


class Found(NamedTuple):
    version: str
    """Major and minor number."""
    path: str


def find_pythons() -> dict[str, Found]:
    """Return one interpreter for each version, in the order of versions."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    candidates = [
        *os.environ.get("EXECD_TEST_PYTHONS", "").split(),
        *_listed(pyenv / "versions"),
        *(shutil.which(f"python{version}") for version in (TOO_OLD, *SUPPORTED)),
        shutil.which("python3", path="/usr/bin"),
    ]
    found: dict[str, Found] = {}
    for candidate in filter(None, candidates):
        python = _ask(candidate)
        if python is not None and python.version in (TOO_OLD, *SUPPORTED):
            found.setdefault(python.version, python)
    return {version: found[version] for version in (TOO_OLD, *SUPPORTED) if version in found}


def _listed(versions: Path) -> list[str]:
    try:
        return sorted(str(path / "bin/python") for path in versions.iterdir())
    except OSError:  # none, or another user's
        return []


def _ask(python: str) -> Found | None:
    """Ask an interpreter, or pyenv's script for one, for the version and the path."""
    program = (
        "import os, sys; print('%d.%d' % sys.version_info[:2], "
        "os.path.realpath(getattr(sys, '_base_executable', sys.executable)))"
    )
    try:
        asked = subprocess.run(
            [python, "-c", program], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if not (said := re.fullmatch(r"(\d+\.\d+) (/.+)\n", asked.stdout)):
        return None
    version, path = said.groups()
    return Found(version, path) if _is_open(path) else None


def _is_open(path: str) -> bool:
    """Whether the daemon's user can reach the file."""
    if not LAUNCHER:
        return os.access(path, os.X_OK)
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in Path(path).parents)


def make_environment(python: str, folder: Path) -> Path:
    """Make a virtual environment without any package; return the site-packages folder."""
    made = subprocess.run(
        [python, "-m", "venv", "--without-pip", "--symlinks", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    (packages,) = folder.glob("lib/python3*/site-packages")
    return packages


def lent_ipython(name: str) -> Path:
    """The folder of ``image/make-ipython`` beside the daemon's interpreter: py39 or py311."""
    return Path(PYTHON).parents[1] / "share/execd/ipython" / name


def add_ipython(packages: Path, name: str) -> None:
    """Give an interpreter an IPython of its own, by links."""
    for path in lent_ipython(name).iterdir():
        if path.name != "__pycache__":
            (packages / path.name).symlink_to(path)


def write_program(path: Path, text: str) -> Path:
    """Put the program in place at once: a daemon may start the program at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f".{path.name}")
    written.write_text(text)
    written.chmod(0o755)
    return written.replace(path)
