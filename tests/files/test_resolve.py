"""The daemon's own directories. The walk of peers' paths is tested with ``Root``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from execd.files.resolve import open_own_directory

if TYPE_CHECKING:
    from pathlib import Path


def where(path: Path | str, mode: int = 0o711) -> str:
    """The path of the opened directory."""
    fd = open_own_directory(str(path), mode)
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def test_a_missing_directory_is_made_with_its_mode_and_parents_that_others_may_enter(
    tmp_path: Path,
) -> None:
    assert where(tmp_path / "a/b") == f"{tmp_path}/a/b"
    assert (tmp_path / "a/b").stat().st_mode & 0o777 == 0o711
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o755
    assert where(tmp_path / "a/b") == f"{tmp_path}/a/b"


def test_our_own_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real/deep").mkdir(parents=True)
    (tmp_path / "relative").symlink_to("real/../real")
    (tmp_path / "absolute").symlink_to(tmp_path / "relative")
    (tmp_path / "real/deep/up").symlink_to("..")
    assert where(tmp_path / "absolute/deep") == f"{tmp_path}/real/deep"
    assert where(tmp_path / "real/deep/up/deep/new") == f"{tmp_path}/real/deep/new"
    assert where("/") == "/"


def test_a_loop_of_links_and_a_file_on_the_way_are_errors_with_a_path(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    for name in "loop/x", "file/x", "file":
        with pytest.raises(OSError) as caught:  # noqa: PT011
            where(tmp_path / name)
        assert str(caught.value.filename).startswith(str(tmp_path))


@pytest.mark.root
def test_root_follows_nobody_elses_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    os.lchown(tmp_path / "link", 1234, 1234)
    for path in "link", "link/x":
        with pytest.raises(PermissionError, match="a link that belongs to uid 1234"):
            where(tmp_path / path)
    assert os.listdir(tmp_path / "real") == []


@pytest.mark.root
def test_a_directory_that_takes_the_place_of_a_new_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir

    def make_and_swap(name: bytes, mode: int, *, dir_fd: int) -> None:
        mkdir(name, mode, dir_fd=dir_fd)
        os.chown(name, 1234, 1234, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", make_and_swap)
    with pytest.raises(PermissionError, match="somebody took the name"):
        where(tmp_path / "new")


@pytest.mark.root
def test_the_link_that_was_judged_is_the_link_that_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "trap").mkdir()
    (tmp_path / "link").symlink_to("real")
    readlink = os.readlink

    def swap_and_read(name: bytes, *, dir_fd: int) -> bytes:
        (tmp_path / "link").unlink()
        (tmp_path / "link").symlink_to("trap")
        os.lchown(tmp_path / "link", 1234, 1234)
        return readlink(name, dir_fd=dir_fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "readlink", swap_and_read)
        fd = open_own_directory(str(tmp_path / "link"), 0o711)
    try:
        assert os.path.samestat(os.fstat(fd), (tmp_path / "real").stat())
    finally:
        os.close(fd)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    before = os.listdir("/proc/self/fd")
    for name in "a/b", "loop", "a/b":
        try:
            where(tmp_path / name)
        except OSError:
            pass
    assert len(os.listdir("/proc/self/fd")) == len(before)
