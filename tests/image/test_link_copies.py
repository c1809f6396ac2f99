"""image/link-copies makes equal files of several folders one file."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from .manifests import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path


def link(*folders: Path) -> str:
    return subprocess.run(
        [sys.executable, REPOSITORY / "image" / "link-copies", *folders],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def make(path: Path, content: str, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(mode)
    return path


def test_equal_files_become_one_file_under_all_names(tmp_path: Path) -> None:
    size = 2_000_000
    first = make(tmp_path / "a" / "one.py", "x" * size)
    copies = [
        make(tmp_path / "a" / "two.py", "x" * size),
        make(tmp_path / "b" / "folder" / "one.py", "x" * size),
    ]
    time_of_first = first.stat().st_mtime_ns
    assert link(tmp_path / "a", tmp_path / "b") == "link-copies: 4 MB saved\n"
    for copy in copies:
        assert copy.samefile(first)
        assert copy.read_text() == "x" * size
    assert first.stat().st_mtime_ns == time_of_first
    assert link(tmp_path / "a", tmp_path / "b") == "link-copies: 0 MB saved\n"


def test_files_that_differ_and_metadata_stay_apart(tmp_path: Path) -> None:
    files = [
        make(tmp_path / "content", "x"),
        make(tmp_path / "other_content", "y"),
        make(tmp_path / "program", "x", 0o755),
        make(tmp_path / "empty", ""),
        make(tmp_path / "other_empty", ""),
        make(tmp_path / "a-1.dist-info" / "licenses" / "LICENSE", "x"),
        make(tmp_path / "a-1.dist-info" / "METADATA", "x"),
    ]
    (tmp_path / "symlink").symlink_to("content")
    link(tmp_path)
    assert len({path.stat().st_ino for path in files}) == len(files)
    assert (tmp_path / "symlink").is_symlink()


def test_a_name_that_is_replaced_leaves_the_other_as_it_was(tmp_path: Path) -> None:
    first, copy = make(tmp_path / "a" / "x", "old"), make(tmp_path / "b" / "x", "old")
    link(tmp_path / "a", tmp_path / "b")
    copy.unlink()
    make(copy, "new")
    assert first.read_text() == "old"
