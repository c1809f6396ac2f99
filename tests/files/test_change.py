from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from execd.errors import Conflict, NotFound, PermissionDenied, PreconditionFailed
from execd.files import change, copy, read
from execd.files.root import Root
from execd.model import Precondition
from tests.files.conftest import on_small_tmpfs, unprivileged

if TYPE_CHECKING:
    from pathlib import Path


def names(top: Path) -> list[str]:
    return sorted(str(path.relative_to(top)) for path in top.rglob("*"))


# Removing


def test_what_cannot_be_removed_stays_and_the_rest_goes(root: Root, base: Path) -> None:
    (base / "d/locked").mkdir(parents=True)
    (base / "d/locked/x").touch()
    (base / "d/other").touch()
    (base / "d/locked").chmod(0o500)
    try:
        with pytest.raises(PermissionDenied):
            unprivileged(lambda: change.remove(root, "d", recursive=True))
        assert names(base / "d") == ["locked", "locked/x"]
    finally:
        (base / "d/locked").chmod(0o700)


def test_an_empty_directory_that_cannot_be_listed_is_removed_with_the_rest(
    root: Root, base: Path
) -> None:
    (base / "d/closed").mkdir(parents=True)
    (base / "d/closed").chmod(0)
    unprivileged(lambda: change.remove(root, "d", recursive=True))
    assert names(base) == []


def test_a_condition_keeps_what_is_another_version(root: Root, base: Path) -> None:
    (base / "x").touch()
    with pytest.raises(PreconditionFailed):
        change.remove(root, "x", precondition=Precondition(match=frozenset({'"other"'})))
    change.remove(
        root, "x", precondition=Precondition(match=frozenset({read.describe(root, "x").etag}))
    )
    with pytest.raises(NotFound):
        change.remove(root, "x", precondition=Precondition(match=None))


def test_the_root_is_emptied_and_stays(root: Root, base: Path) -> None:
    (base / "a/b").mkdir(parents=True)
    for path in (".", "/", str(base), "a/.."):
        with pytest.raises(Conflict):
            change.remove(root, path)
    before = base.stat().st_ino
    change.remove(root, ".", recursive=True)
    assert (names(base), base.stat().st_ino) == ([], before)


def test_the_state_dir_survives_the_removal_of_all_around_it(tmp_path: Path) -> None:
    (tmp_path / "d/state/kept").mkdir(parents=True)
    (tmp_path / "d/other").touch()
    (tmp_path / "base").mkdir()
    tree = Root.whole_tree(str(tmp_path / "base"), str(tmp_path / "d/state"))
    with pytest.raises(PermissionDenied):
        change.remove(tree, str(tmp_path / "d"), recursive=True)
    assert names(tmp_path / "d") == ["state", "state/kept"]
    for source in (tmp_path / "d", tmp_path / "d/state", tmp_path / "d/state/kept"):
        with pytest.raises(PermissionDenied):
            change.move(tree, str(source), str(tmp_path / "elsewhere"))
    copied = copy.copy(tree, str(tmp_path / "d"), str(tmp_path / "copy"))
    assert (copied.n_skipped, names(tmp_path / "copy")) == (1, [])


# Moving


def test_a_move_to_another_file_system_is_refused_with_the_way_out(base: Path) -> None:
    script = f"""
import os
from execd.errors import ExecdError
from execd.files import change, copy
from execd.files.root import Root
tree = Root.whole_tree({str(base.parent)!r})
open({str(base.parent / "x")!r}, "w").close()
try:
    change.move(tree, "x", mount_point + "/x")
except ExecdError as error:
    result["code"], result["message"] = error.code, error.message
copy.copy(tree, "x", mount_point + "/x")
result["copied"] = os.listdir(mount_point)
"""
    result = on_small_tmpfs(base, script)
    assert (result["code"], result["copied"]) == ("INVALID_ARGUMENT", ["x"])
    assert "copy it" in result["message"]


def test_a_read_only_file_system_is_named_as_such(base: Path) -> None:
    script = """
from execd.errors import ExecdError
from execd.files import append, change, copy, write
from execd.files.archive import unpack
from execd.files.root import Root
from execd.files.archive.tree import UnpackingLimits as Limits
root = Root(mount_point)
for name, call in {
    "create": lambda: write.create(root, "x"),
    "extend": lambda: append.extend(root, "x"),
    "mkdir": lambda: change.make_directory(root, "d"),
    "chmod": lambda: change.change_mode(root, ".", 0o700),
    "unpack": lambda: unpack.unpack(root, "d", "tar", Limits(1, 1)),
}.items():
    try:
        call()
    except ExecdError as error:
        result[name] = error.code
"""
    assert set(on_small_tmpfs(base, script, read_only=True).values()) == {"READ_ONLY"}


# Copying


def test_a_copy_that_fills_the_disk_says_so_and_leaves_no_temporary(base: Path) -> None:
    script = """
import os
from execd.errors import NoSpace
from execd.files import copy
from execd.files.root import Root
root = Root(mount_point)
os.mkdir(mount_point + "/d")
with open(mount_point + "/d/x", "wb") as file:
    file.write(bytes(150_000))
for source, target in ("d/x", "y"), ("d", "e"):
    try:
        copy.copy(root, source, target)
    except NoSpace:
        result[source] = "NoSpace"
result["left"] = sorted(os.listdir(mount_point)) + os.listdir(mount_point + "/e")
"""
    assert on_small_tmpfs(base, script) == {"d/x": "NoSpace", "d": "NoSpace", "left": ["d", "e"]}


def test_a_copy_that_is_stopped_ends_between_two_pieces(root: Root, base: Path) -> None:
    (base / "d").mkdir()
    for number in range(10):
        (base / f"d/{number}").write_bytes(b"x")
    asked = iter(range(100))
    copy.copy(root, "d", "e", stop=lambda: next(asked) >= 6)
    assert 0 < len(names(base / "e")) < 10
    (base / "large").write_bytes(bytes(10 << 20))
    with pytest.raises(Conflict):
        copy.copy(root, "large", "large2", stop=lambda: True)
    assert not (base / "large2").exists()
    assert not [name for name in os.listdir(base) if name.startswith(".")]


def test_nothing_goes_wrong_when_a_tree_is_removed_under_its_copy(root: Root, base: Path) -> None:
    for number in range(30):
        (base / f"d/{number}/deep/er").mkdir(parents=True)
    asked = iter(range(10_000))

    def remove_after_a_while() -> bool:
        if next(asked) == 20:
            shutil.rmtree(base / "d")
        return False

    with contextlib.suppress(Conflict, NotFound):
        copy.copy(root, "d", "e", stop=remove_after_a_while)
    assert not (base / "d").exists()


# Owners


def test_owner_and_group_are_set_and_none_keeps_them(root: Root, base: Path) -> None:
    (base / "x").touch()
    before = (base / "x").stat()
    change.change_owner(root, "x", None, os.getegid())
    change.change_owner(root, "x", os.geteuid(), None)
    after = (base / "x").stat()
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    with pytest.raises(NotFound):
        change.change_owner(root, "no", 1, 1)


def test_only_root_gives_files_away(root: Root, base: Path) -> None:
    (base / "x").touch()
    with pytest.raises(PermissionDenied):
        unprivileged(lambda: change.change_owner(root, "x", 12345, None))
