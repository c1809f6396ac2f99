"""``execctl checkpoint``, ``changes``, ``diff``, ``restore`` and ``reset``."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from execd_client import Execd
from tests.client.conftest import reached
from tests.conformance.target import TERMINATED, Target, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module", params=["router"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of the daemon of other tests behind a router, or of this module's own."""
    if request.param == "own":
        yield request.getfixturevalue("own").url
        return
    with reached(request.getfixturevalue("target"), request.param) as found:
        yield found


@pytest.fixture
def project(execctl: Run) -> Iterator[str]:
    """A directory, and a checkpoint of the same name."""
    name = execctl("run", "--", "mktemp", "-d", "project-XXXXXX").stdout.strip()
    execctl("run", "--", "sh", "-c", f"seq 9 > {name}/numbers")
    assert execctl("checkpoint", name, "--root", name).stdout == f"{name}\n"
    yield name
    assert execctl("checkpoint", name, "--delete").returncode == 0


def test_changes_and_diff_show_the_work(execctl: Run, project: str, tmp_path: Path) -> None:
    assert execctl("changes", project).stdout == ""
    execctl("run", "--", "sh", "-c", f"cd {project}; sed -i s/5/five/ numbers; echo x > new")
    lines = execctl("changes", project).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["created", "modified"]
    found = json.loads(execctl("changes", project, "--json").stdout)
    assert [each["was_size_bytes"] for each in found] == [None, 18]
    (tmp_path / "numbers").write_text("".join(f"{number}\n" for number in range(1, 10)))
    patch = execctl("diff", project).stdout
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch, text=True, check=True)
    assert "five" in (tmp_path / "numbers").read_text()
    assert execctl("diff", project, "--path", f"{project}/new").stdout.count("diff --git") == 1


def test_restore_makes_the_files_as_they_were(execctl: Run, project: str) -> None:
    execctl("run", "--", "sh", "-c", f"cd {project}; rm numbers; touch new")
    assert execctl("restore", project).stdout.endswith(" restored, 1 removed\n")
    assert execctl("changes", project).stdout == ""


def test_checkpoints_are_listed(execctl: Run, project: str) -> None:
    assert project in execctl("checkpoint", "--list").stdout
    found = json.loads(execctl("checkpoint", "--list", "--json").stdout)
    assert project in [each["id"] for each in found]
    refused = execctl("changes", "never-made")
    assert refused.returncode == 125
    assert "never-made" in refused.stderr


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A daemon to reset, with a checkpoint that watches a directory."""
    made = start(tmp_path_factory.mktemp("own"))
    with Execd(made.url) as sandbox:
        sandbox.run("mkdir kept watched").check()
        sandbox.checkpoint("task", roots=["kept"], watched=["watched"])
    yield made
    assert made.stop() == TERMINATED, made.log_text()


@pytest.mark.parametrize("url", ["own"], indirect=True)
def test_clean_reset_is_exit_code_0(execctl: Run) -> None:
    execctl("run", "--", "touch", "kept/new")
    done = execctl("reset", "task", "--verify", "content")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("clean, episode ")
    assert execctl("changes", "task").stdout == ""
    found = json.loads(execctl("reset", "task", "--keep-records", "--json").stdout)
    assert found["clean"]


@pytest.mark.parametrize("url", ["own"], indirect=True)
def test_reset_that_is_not_clean_is_exit_code_3(execctl: Run) -> None:
    execctl("run", "--", "touch", "watched/new")
    done = execctl("reset", "task")
    assert done.returncode == 3
    assert done.stdout.startswith("NOT clean, episode ")
    assert "watched/new" in done.stderr
    done = execctl("reset", "task", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["differences"]["total"] > 0
    assert execctl("reset", "never-made").returncode == 125
