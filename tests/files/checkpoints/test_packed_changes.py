"""An archive of changes: after the deletions, unpacking makes the end of the start."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from typing import TYPE_CHECKING, Literal

import pytest

from execd.errors import Conflict
from execd.files.checkpoints.packed_changes import pack_changes
from tests.files.checkpoints.edits import edit, make_project, possible
from tests.files.checkpoints.trees import Tree, changes_between, described, sources

if TYPE_CHECKING:
    from pathlib import Path

Kind = Literal["tar", "tar.gz"]
KINDS: tuple[Kind, ...] = ("tar", "tar.gz")


def packed(start: Path, end: Path, kind: Kind, prefix: bytes = b"") -> bytes:
    changes = changes_between(described(start), described(end))
    return b"".join(pack_changes(changes, {"/root": prefix}, sources(start, end), kind))


def comparable(tree: Tree) -> dict[bytes, tuple[object, ...]]:
    return {
        path: (each.type, each.mode, each.digest, each.target)
        for path, each in tree.items()
        if each.type != "fifo"
    }


def unpack(content: bytes, folder: Path) -> None:
    """As the documentation says."""
    subprocess.run(
        ["tar", "-xp", "-f", "-", ".execd-deleted"], cwd=folder, input=content, check=True
    )
    subprocess.run("xargs -0 rm -rf -- < .execd-deleted", shell=True, cwd=folder, check=True)
    subprocess.run(["tar", "-xp", "-f", "-"], cwd=folder, input=content, check=True)
    (folder / ".execd-deleted").unlink()


@pytest.mark.parametrize("kind", KINDS)
def test_archive_of_all_edits_makes_the_end_of_the_start(kind: Kind, tmp_path: Path) -> None:
    start, end = tmp_path / "start", tmp_path / "end"
    start.mkdir()
    make_project(start)
    os.mkfifo(start / "pipe")
    subprocess.run(["cp", "-a", start, end], check=True)
    for line in possible().values():
        try:
            edit(end, line)
        except AssertionError:  # an earlier edit has removed the file
            continue
    os.mkfifo(end / "second pipe")
    content = packed(start, end, kind)
    if kind == "tar.gz":
        content = subprocess.run(
            ["gzip", "-dc"], input=content, check=True, capture_output=True
        ).stdout
    unpack(content, start)
    assert comparable(described(start)) == comparable(described(end))


def test_archive_begins_with_the_names_of_what_is_gone(tmp_path: Path) -> None:
    start, end = tmp_path / "start", tmp_path / "end"
    for folder in (start, end):
        (folder / "same").mkdir(parents=True)
    (start / "two\nlines").write_bytes(b"x")
    (start / "folder").mkdir()
    (start / "folder/inner").write_bytes(b"x")
    (end / "folder").write_bytes(b"now a file")
    (end / ".execd-deleted").write_bytes(b"the user's own")
    with tarfile.open(fileobj=io.BytesIO(packed(start, end, "tar", b"app/"))) as archive:
        first, *rest = archive.getmembers()
        list_of_names = archive.extractfile(first)
        assert first.name == ".execd-deleted"
        assert list_of_names is not None
        assert list_of_names.read() == b"app/folder\0app/folder/inner\0app/two\nlines\0"
        assert [member.name for member in rest] == ["app/.execd-deleted", "app/folder"]


def test_archive_without_changes_has_an_empty_list(tmp_path: Path) -> None:
    tmp_path.joinpath("start").mkdir()
    content = packed(tmp_path / "start", tmp_path / "start", "tar")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert [(member.name, member.size) for member in archive] == [(".execd-deleted", 0)]


def test_a_file_with_the_name_of_the_list_refuses_the_archive(tmp_path: Path) -> None:
    start, end = tmp_path / "start", tmp_path / "end"
    start.mkdir()
    (end / "below").mkdir(parents=True)
    (end / "below/.execd-deleted").write_text("mine")
    assert packed(start, end, "tar").count(b".execd-deleted") == 2
    (end / ".execd-deleted").write_text("mine")
    with pytest.raises(Conflict, match=r"'/root/\.execd-deleted' has the name"):
        packed(start, end, "tar")
    assert packed(start, end, "tar", prefix=b"root/").count(b".execd-deleted") == 3
