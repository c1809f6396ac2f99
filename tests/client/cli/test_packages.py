"""The packages of the extra ``cli``: one that is missing, and one that few commands need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from execd_client.cli import REFUSED
from tests.client.cli.conftest import EXECCTL, TIMEOUT_SECONDS

# Runs execctl as if a package were not installed.
WITHOUT = """
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, *arguments):
        return None if name == missing else super().find_spec(name, *arguments)

missing = sys.argv.pop()
sys.meta_path[:] = [Finder if finder is PathFinder else finder for finder in sys.meta_path]
from execd_client.cli import main
main()
"""


@pytest.mark.parametrize("package", ["click", "prompt_toolkit", "rich"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, package],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert (done.returncode, done.stderr) == (
        REFUSED,
        f"execctl: the package {package} is missing. Install the command line with\n"
        "    pip install 'execd-client[cli]'\n",
    )


def test_a_command_without_an_editor_does_not_load_the_editor() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", EXECCTL, "run", "--help"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "execd_client.cli.python" in loaded
    assert "prompt_toolkit" not in loaded
