"""The Makefile's two environments: running the daemon installs the packages of the daemon only, and
every step says what happens. Dry runs; the real installations are CI's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [
    "Makefile",
    "pyproject.toml",
    "execd/__init__.py",
    "execd/proc/_spawn.c",
    "execd/warden/_brake.c",
    "execd/warden/_children.c",
    "execd/warden/_early_end.c",
    "execd/warden/_quick_starts.c",
    "execd/proc/_spawn.h",
    "execd/warden/_children.h",
    "execd/warden/_early_end.h",
    "execd/kernel/_orphan.c",
    "image/make-ipython",
    "image/requirements-ipython-py39.txt",
    "image/requirements-ipython-py311.txt",
]
CLIENT = "clients/python/pyproject.toml"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files that the Makefile compares, without an environment."""
    for source in [*SOURCES, CLIENT]:
        (tmp_path / source).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / source, tmp_path / source)
    return tmp_path


def planned(clone: Path, target: str) -> str:
    """What `make TARGET` would do."""
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    done = subprocess.run(
        ["make", "--dry-run", target],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def stamp(clone: Path, *names: str) -> None:
    (clone / ".venv").mkdir(exist_ok=True)
    for name in names:
        (clone / ".venv" / name).touch()


def test_make_run_installs_what_the_daemon_needs_and_no_more(clone: Path) -> None:
    plan = planned(clone, "run")
    assert "--editable '.'" in plan
    assert "[dev]" not in plan
    assert "image/make-ipython .venv/bin/python .venv/share/execd/ipython" in plan
    assert "exec .venv/bin/execd serve" in plan


@pytest.mark.parametrize("target", ["run", "test"])
def test_an_installation_says_what_happens_and_hides_no_download(clone: Path, target: str) -> None:
    plan = planned(clone, target)
    assert "== make: install the" in plan
    assert "--quiet" not in plan


def test_make_test_installs_the_rest_and_names_what_the_tests_fetch(clone: Path) -> None:
    stamp(clone, "daemon")
    plan = planned(clone, "test")
    assert "--editable '.[dev]'" in plan
    assert "k8s-agent-sandbox" in plan
    assert "Ray" in plan


def test_make_docs_installs_the_builder_and_fails_on_warnings_and_stale_pages(clone: Path) -> None:
    stamp(clone, "daemon", "made")
    plan = planned(clone, "docs")
    assert "--editable '.[docs]'" in plan
    assert "[dev]" not in plan
    assert "docs.generate --check" in plan
    assert "--fail-on-warning" in plan
    assert "docs.generate.site_links" in plan


def test_nothing_is_installed_twice(clone: Path) -> None:
    stamp(clone, "daemon", "made", "docs")
    for target in ("run", "test", "env", "docs"):
        assert "pip" not in planned(clone, target)


@pytest.mark.parametrize("source", SOURCES[1:])
def test_a_change_of_the_project_is_installed(clone: Path, source: str) -> None:
    stamp(clone, "daemon", "made")
    newer = (clone / ".venv" / "made").stat().st_mtime + 10
    os.utime(clone / source, (newer, newer))
    assert "--editable '.'" in planned(clone, "run")
    assert "--editable '.[dev]'" in planned(clone, "test")


def test_a_change_of_the_client_is_installed(clone: Path) -> None:
    stamp(clone, "daemon", "made")
    newer = (clone / ".venv" / "made").stat().st_mtime + 10
    os.utime(clone / CLIENT, (newer, newer))
    assert "pip" not in planned(clone, "run")
    assert "--editable 'clients/python[mcp]'" in planned(clone, "test")


def test_the_audit_reads_every_file_of_pins_that_reaches_users(clone: Path) -> None:
    """requirements-lean is part of requirements; setuptools builds the wheel and stays outside."""
    plan = planned(clone, "audit")
    read = {
        *("requirements-execd.txt", "requirements.txt", "tools-sbom.txt"),
        *("requirements-ipython-py39.txt", "requirements-ipython-py311.txt"),
    }
    assert set(re.findall(r"--requirement image/(\S+)", plan)) == read
    assert "--strict" in plan
