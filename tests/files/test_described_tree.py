"""Descriptions of a tree and of single entries."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from execd.errors import InvalidArgument, NotFound, ResourceExhausted
from execd.files import described_tree
from execd.files.described_tree import describe_entry, describe_tree

if TYPE_CHECKING:
    from pathlib import Path

    from execd.files.root import Root


@pytest.fixture
def tree(base: Path) -> Path:
    (base / "a" / "b" / "c").mkdir(parents=True)
    (base / "file").write_bytes(b"12345")
    os.symlink("a", base / "to a")
    os.symlink("nowhere", base / "dangling")
    return base


@pytest.mark.parametrize(
    ("depth", "paths"),
    [
        (1, ["a", "dangling", "file", "to a"]),
        (2, ["a", "a/b", "dangling", "file", "to a"]),
        (9, ["a", "a/b", "a/b/c", "dangling", "file", "to a"]),
    ],
)
def test_tree_is_described_down_to_the_depth_and_links_are_not_followed(
    root: Root, tree: Path, depth: int, paths: list[str]
) -> None:
    assert tree.exists()
    found = describe_tree(root, ".", attribute_prefix="user.", depth=depth, limit=6)
    assert [entry.path for entry in found] == paths


def test_entry_has_its_own_description_and_the_end_of_its_link(root: Root, tree: Path) -> None:
    found = {
        entry.path: entry
        for entry in describe_tree(root, "", attribute_prefix="user.", depth=1, limit=9)
    }
    assert (found["file"].description.size_bytes, found["file"].end) == (5, None)
    link = found["to a"]
    assert (link.description.kind, link.description.target) == ("symlink", "a")
    assert link.end is not None
    assert (link.end.kind, link.end.place) == ("directory", "a")
    assert found["dangling"].end is None
    alone = describe_entry(root, "to a", "user.")
    assert (alone.path, alone.description, alone.end) == ("", link.description, link.end)
    assert (tree / "to a").is_symlink()


def test_link_out_of_the_root_has_no_end(root: Root, base: Path, outside: Path) -> None:
    os.symlink(outside / "secret", base / "out")
    assert describe_entry(root, "out", "user.").end is None


def test_listing_of_a_link_to_a_directory_is_that_of_the_directory(root: Root, tree: Path) -> None:
    [entry] = describe_tree(root, "to a", attribute_prefix="user.", depth=1, limit=9)
    assert (entry.path, entry.description.place) == ("b", "a/b")
    assert tree.exists()


def test_more_entries_than_the_limit_are_refused(root: Root, tree: Path) -> None:
    assert len(describe_tree(root, ".", attribute_prefix="user.", depth=1, limit=4)) == 4
    with pytest.raises(ResourceExhausted, match="over 3 entries"):
        describe_tree(root, ".", attribute_prefix="user.", depth=1, limit=3)
    assert tree.exists()


def test_only_a_directory_has_a_tree(root: Root, tree: Path) -> None:
    with pytest.raises(InvalidArgument, match="not a directory"):
        describe_tree(root, "file", attribute_prefix="user.", depth=1, limit=9)
    for path in ("nothing", "dangling"):
        with pytest.raises(NotFound):
            describe_tree(root, path, attribute_prefix="user.", depth=1, limit=9)
    assert tree.exists()


def test_attributes_of_regular_files_are_described_as_far_as_asked_for(
    root: Root, base: Path
) -> None:
    (base / "attributed").touch()
    for name in ("user.e2b.a", "user.e2b.b", "user.other"):
        os.setxattr(base / "attributed", name, name.encode())
    os.symlink("attributed", base / "to attributed")
    expected = {"user.e2b.a": b"user.e2b.a", "user.e2b.b": b"user.e2b.b"}
    assert describe_entry(root, "attributed", "user.e2b.").attributes == expected
    assert describe_entry(root, "to attributed", "user.e2b.").attributes == {}
    listed = describe_tree(root, ".", attribute_prefix="user.e2b.", depth=1, limit=99)
    assert [entry.path for entry in listed if entry.attributes] == ["attributed"]


def test_more_metadata_than_the_limit_is_refused(
    root: Root, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(described_tree, "TREE_ATTRIBUTE_BYTES", 5)
    for name in ("a", "b"):
        (base / name).touch()
        os.setxattr(base / name, "user.x.key", b"123")
    assert len(describe_tree(root, ".", attribute_prefix="user.y.", depth=1, limit=9)) == 2
    with pytest.raises(ResourceExhausted, match="over 5 bytes of metadata; ask for a smaller"):
        describe_tree(root, ".", attribute_prefix="user.x.", depth=1, limit=9)
