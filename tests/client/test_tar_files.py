"""Unpacking stays inside the target, and a cut archive leaves whole files only."""

from __future__ import annotations

import io
import os
import tarfile
from typing import TYPE_CHECKING

import pytest

from execd_client.tar_files import BATCH_BYTES, batches, entries, packed, unpack, without_links_out

if TYPE_CHECKING:
    from pathlib import Path


def archive(*members: tuple[str, bytes | None, str]) -> io.BytesIO:
    """Members as name, content and link target."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content, link in members:
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.linkname = tarfile.SYMTYPE, link
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    buffer.seek(0)
    return buffer


def test_a_tree_is_the_same_after_packing_and_unpacking(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "d/empty").mkdir(parents=True)
    (source / "d/program").write_bytes(b"#!/bin/sh\n")
    (source / "d/program").chmod(0o755)
    (source / "link").symlink_to("d/program")
    os.mkfifo(source / "fifo")
    for batch in batches(entries(source)):
        unpack(io.BytesIO(packed(batch)), target)
    assert [entry.name for entry in entries(target)] == ["d", "link", "d/empty", "d/program"]
    assert (target / "d/program").stat().st_mode & 0o777 == 0o755
    assert os.readlink(target / "link") == "d/program"


@pytest.mark.parametrize(
    "members",
    [
        [("../out", b"x", "")],
        [("/out", b"x", "")],
        [("a/../../out", b"x", "")],
    ],
)
def test_an_archive_that_leads_out_is_refused(
    tmp_path: Path, members: list[tuple[str, bytes | None, str]]
) -> None:
    with pytest.raises(ValueError, match="outside"):
        unpack(archive(*members), tmp_path / "target")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", ["../elsewhere", "/etc", "d/../../x"])
def test_a_link_of_an_archive_that_leads_out_is_left_out_and_named(
    tmp_path: Path, target: str
) -> None:
    members = archive(("first", b"x", ""), ("link", None, target), ("last", b"x", ""))
    (warning,) = unpack(members, tmp_path / "target")
    assert warning == f"link is left out: the link leads out of the copied directory, to {target}"
    assert sorted(os.listdir(tmp_path / "target")) == ["first", "last"]


def test_local_links_that_lead_out_are_left_out_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "file").write_bytes(b"x")
    for name, target in (
        ("deep/good", "../file"),
        ("deep/dangling", "nothing"),
        ("deep/up", "../.."),
        ("absolute", str(folder / "file")),
        ("through", "deep/up/other"),
    ):
        (folder / name).symlink_to(target)
    kept, left_out = without_links_out(entries(folder), folder)
    assert [entry.name for entry in kept] == ["deep", "file", "deep/dangling", "deep/good"]
    assert [line.partition(" is left out")[0] for line in left_out] == [
        "absolute",
        "through",
        "deep/up",
    ]


def test_nothing_is_written_through_a_link_that_was_there(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="through a link"):
        unpack(archive(("link/out", b"x", "")), target)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("cut", [100, 512, 700, 1600, 2500, 3000])
def test_a_cut_archive_leaves_whole_files_only(tmp_path: Path, cut: int) -> None:
    whole = archive(("a", b"a" * 600, ""), ("b", b"b" * 600, "")).getvalue()
    target = tmp_path / "target"
    unpack(io.BytesIO(whole[:cut]), target)
    for name in os.listdir(target):
        assert (target / name).read_bytes() == name.encode() * 600


def test_large_files_travel_alone(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(BATCH_BYTES + 1)
    for number in range(3):
        (tmp_path / f"half-{number}").write_bytes(bytes(BATCH_BYTES // 2))
    found = [[entry.name for entry in batch] for batch in batches(entries(tmp_path))]
    assert found == [["half-0", "half-1"], ["half-2"]]


def test_a_folder_that_is_missing_or_a_file_or_unreadable_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(FileNotFoundError):
        entries(tmp_path / "missing")
    with pytest.raises(NotADirectoryError):
        entries(tmp_path / "file")
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def as_another_user(path: str) -> object:
        """Root reads each directory: the kernel's refusal is played."""
        if os.path.basename(path) == "closed":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", as_another_user)
    with pytest.raises(PermissionError, match="closed"):
        entries(tmp_path)
