"""image/build, with a podman that only writes down how it was called."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from .manifests import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

PODMAN = """\
#!/bin/sh
printf '%s\\n' "$*" >>"$CALLS"
case $1-$HAS in
    image-no) exit 1 ;;
    image-yes)
        case $* in
            *Architecture*tree:1) echo "$TREE_ARCH" ;;
            *Architecture*) echo amd64 ;;
            *image.revision*) echo commit-of-the-tree ;;
        esac ;;
    pull-no) echo 'Error: short-name did not resolve to an alias' >&2; exit 125 ;;
esac
"""


def build(
    folder: Path, *arguments: str, has: str, tree_arch: str = "amd64"
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run image/build. Return the run, and the calls of podman. ``has``: yes, if the base image is
    on the machine; no, if neither the machine nor a registry has the image. ``tree_arch``: of the
    tree; the base image is for amd64."""
    podman, calls = folder / "podman", folder / "calls"
    podman.write_text(PODMAN)
    podman.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "CALLS": str(calls),
        "HAS": has,
        "TREE_ARCH": tree_arch,
    }
    command = [REPOSITORY / "image" / "build", "--sbom", "none", "--tree", "tree:1", *arguments]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return run, calls.read_text().splitlines()


@pytest.mark.parametrize(
    ("arguments", "base"), [([], "python:3.13-slim"), (["--base", "mine:1"], "mine:1")]
)
def test_build_without_a_base_image_ends_with_the_way_to_one(
    tmp_path: Path, arguments: list[str], base: str
) -> None:
    run, calls = build(tmp_path, *arguments, has="no")
    assert run.returncode == 1
    assert f"no base image {base}" in run.stderr
    assert "image/make-base && image/build --base localhost/execd-base" in run.stderr
    assert calls == [f"image exists {base}", f"pull --quiet {base}"]
    script = (REPOSITORY / "image" / "make-base").read_text()
    assert "tag=${1:-localhost/execd-base}" in script, "the message names the default tag"


def test_build_uses_a_base_image_of_the_machine_without_a_registry(tmp_path: Path) -> None:
    run, calls = build(tmp_path, "--base", "localhost/execd-base", has="yes")
    assert run.returncode == 0, run.stderr
    exists, *_, building = calls
    assert exists == "image exists localhost/execd-base"
    assert building.startswith("build ")
    assert "--build-arg BASE_IMAGE=localhost/execd-base --build-arg TREE_IMAGE=tree:1" in building


def test_image_has_the_commit_of_its_tree(tmp_path: Path) -> None:
    run, calls = build(tmp_path, has="yes")
    assert run.returncode == 0, run.stderr
    assert "--build-arg EXECD_REVISION=commit-of-the-tree " in calls[-1]
    assert "--platform linux/amd64 " in calls[-1]


@pytest.mark.parametrize(
    ("arguments", "tree_arch", "message"),
    [
        ([], "arm64", "tree:1 is for arm64, and the image is to be for amd64"),
        (["--arch", "arm64"], "arm64", "python:3.13-slim is for amd64, and the image"),
    ],
)
def test_tree_or_base_image_of_another_architecture_is_refused(
    tmp_path: Path, arguments: list[str], tree_arch: str, message: str
) -> None:
    run, calls = build(tmp_path, *arguments, has="yes", tree_arch=tree_arch)
    assert run.returncode == 1
    assert message in run.stderr
    assert not [call for call in calls if call.startswith("build ")]


def test_each_argument_of_the_dockerfile_has_a_value() -> None:
    """podman warns about an argument without one."""
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    head = dockerfile.partition("\nFROM ")[0]
    given = set(re.findall(r"^ARG (\w+)=", head, re.MULTILINE))
    without = set(re.findall(r"^ARG (\w+)$", dockerfile, re.MULTILINE))
    assert given == {"BASE_IMAGE", "TREE_IMAGE"}
    assert without == {"BASE_IMAGE"}, "a stage takes the value given before all stages"
