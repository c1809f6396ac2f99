"""Edits that programs make come back out of a patch, byte for byte."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.files.checkpoints.edits import edit, make_project, possible
from tests.files.checkpoints.trees import (
    Tree,
    apply,
    as_git_sees,
    comments,
    described,
    patch_between,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edits") / "start"
    make_project(folder)
    return folder


def copied(folder: Path, copy: Path) -> Path:
    subprocess.run(["cp", "-a", folder, copy], check=True)
    return copy


def without_repositories(tree: Tree) -> Tree:
    return {path: entry for path, entry in tree.items() if b".git" not in path.split(b"/")}


def apply_to_the_start(project: Path, end: Path, folder: Path) -> bytes:
    content = patch_between(project, end)
    copy = copied(project, folder / "copy")
    apply(content, copy)
    found, wanted = (without_repositories(described(each)) for each in (copy, end))
    assert as_git_sees(found) == as_git_sees(wanted)
    return content


@pytest.mark.parametrize("name", possible())
def test_edit_by_a_program_is_in_the_patch(name: str, project: Path, tmp_path: Path) -> None:
    end = copied(project, tmp_path / "end")
    edit(end, possible()[name])
    content = apply_to_the_start(project, end, tmp_path)
    left_out = {path for path in comments(content) if b".git" not in path.split(b"/")}
    assert not left_out
    assert (b"\ndiff --git " in b"\n" + content) == (name != "nothing")


def test_edits_are_fifty() -> None:
    assert len(possible()) >= 50


def test_edits_one_after_another_are_in_one_patch(project: Path, tmp_path: Path) -> None:
    end = copied(project, tmp_path / "end")
    n_done = 0
    for line in possible().values():
        try:
            edit(end, line)
        except AssertionError:  # an earlier edit has removed the file
            continue
        n_done += 1
    assert n_done >= 25
    apply_to_the_start(project, end, tmp_path)
