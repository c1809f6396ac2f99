from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING, Any

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


# Mount points

MOUNTED = """
import ctypes, os, tempfile
from execd.errors import ExecdError
from execd.files import change, copy, read, write
from execd.files.root import Root
base = os.path.dirname(mount_point)
libc = ctypes.CDLL(None, use_errno=True)
MS_BIND = 4096
READ_ONLY = MS_BIND | 0x27  # MS_REMOUNT | MS_RDONLY, and MS_NOSUID | MS_NODEV as /tmp may have
for name in ("tree/config", "config"):
    source, target = f"{base}/../{name.replace('/', '-')}".encode(), f"{base}/{name}".encode()
    assert libc.mount(source, target, None, MS_BIND, None) == 0, os.strerror(ctypes.get_errno())
root = Root(base)
def attempt(call, *arguments, **options):
    try:
        return repr(call(root, *arguments, **options))
    except ExecdError as error:
        return [error.code, error.message]
def content(path):
    with open(f"{base}/{path}") as file:
        return file.read()
def left():
    return sorted(os.path.relpath(os.path.join(parent, name), base)
                  for parent, _, names in os.walk(base) for name in names)
"""


def in_mounts(base: Path, script: str) -> dict[str, Any]:
    """Run ``script`` where ``config`` and ``tree/config`` are mounted files, and ``data`` is a
    mounted directory of 256 KiB."""
    for name in ("data", "tree/in"):
        (base / name).mkdir(parents=True)
    for name in ("config", "tree/config", "tree/in/x", "x", "../config", "../tree-config"):
        (base / name).write_text("old")
    return on_small_tmpfs(base / "data", MOUNTED + script)


def test_a_mounted_file_is_written_in_place(base: Path) -> None:
    script = """
before = os.stat(base + "/config")
draft = write.create(root, "config", write.Writing(mode=0o640))
draft.write(b"written")
tag = draft.commit()
draft.abort()
after = os.stat(base + "/config")
result["written"] = content("config")
result["same"] = before.st_ino == after.st_ino
result["mode"] = after.st_mode & 0o777
result["tag"] = tag == read.describe(root, "config").etag
copy.copy(root, "x", "config", overwrite=True)
result["copied"] = content("config")
os.mkdir(base + "/new")
open(base + "/new/config", "w").write("a longer text from a tree")
copy.copy(root, "new", "tree", overwrite=True)
result["copied tree"] = content("tree/config")
change.move(root, "x", "config", overwrite=True)
result["left"] = left()
"""
    assert in_mounts(base, script) == {
        "written": "written",
        "same": True,
        "mode": 0o640,
        "tag": True,
        "copied": "old",
        "copied tree": "a longer text from a tree",
        "left": ["config", "new/config", "tree/config", "tree/in/x"],
    }
    assert (base / "../config").read_text() == "old", "the file behind the mount"


def test_nothing_is_written_into_a_mounted_device(base: Path) -> None:
    script = """
assert libc.mount(b"/dev/null", f"{base}/config".encode(), None, MS_BIND, None) == 0
result["moved"] = attempt(change.move, "x", "config", overwrite=True)[0]
os.mkdir(base + "/new")
open(base + "/new/config", "w").write("new")
copy.copy(root, "new", "copied")
assert libc.mount(b"/dev/null", f"{base}/copied/config".encode(), None, MS_BIND, None) == 0
result["copied tree"] = attempt(copy.copy, "new", "copied", overwrite=True)[0]
result["left"] = left()
"""
    assert in_mounts(base, script) == {
        "moved": "CONFLICT",
        "copied tree": "CONFLICT",
        "left": ["config", "copied/config", "new/config", "tree/config", "tree/in/x", "x"],
    }


def test_a_mounted_file_in_a_read_only_directory_is_written_in_place(base: Path) -> None:
    """As in a pod with a read-only root, and a file of a volume in the directory of a program."""
    script = """
def mount(source, target, flags):
    done = libc.mount(source and source.encode(), target.encode(), None, flags, None)
    assert done == 0, os.strerror(ctypes.get_errno())
tree = base + "/tree/in"
mount(tree, tree, MS_BIND)
mount(None, tree, READ_ONLY)
result["refused"] = attempt(write.create, "tree/in/x")[0]
mount(base + "/config", tree + "/x", MS_BIND)
for view, path in (root, "tree/in/x"), (Root.whole_tree(base), tree + "/x"):
    for content in b"a longer text", b"short":
        draft = write.create(view, path)
        draft.write(content)
        tag = draft.commit()
        assert tag == read.describe(view, path).etag
        assert open(tree + "/x", "rb").read() == content
draft = write.create(root, "tree/in/x")
draft.write(b"given up")
draft.abort()
result["content"] = open(tree + "/x").read()
result["left"] = left()
"""
    assert in_mounts(base, script) == {
        "refused": "READ_ONLY",
        "content": "short",
        "left": ["config", "tree/config", "tree/in/x", "x"],
    }


def test_a_mounted_file_on_a_full_disk_keeps_its_content(base: Path) -> None:
    script = """
open(mount_point + "/small", "w").write("old")
assert libc.mount(f"{mount_point}/small".encode(), f"{base}/x".encode(), None, MS_BIND, None) == 0
draft = write.create(root, "x")
draft.write(bytes(1 << 20))
result["error"] = attempt(lambda _: draft.commit())[0]
result["content"] = content("x")
result["left"] = left()
"""
    assert in_mounts(base, script) == {
        "error": "NO_SPACE",
        "content": "old",
        "left": ["config", "data/small", "tree/config", "tree/in/x", "x"],
    }


def test_nothing_is_removed_where_a_mount_point_is_in_the_way(base: Path) -> None:
    script = """
before = left()
for path in "tree", "data", ".":
    result[path] = attempt(change.remove, path, recursive=True)
result["config"] = attempt(change.remove, "config")
assert left() == before
change.remove(root, "tree/in", recursive=True)
"""
    found = in_mounts(base, script)
    assert {refusal[0] for refusal in found.values()} == {"CONFLICT"}
    assert [found[path][1].split("'")[1] for path in ("tree", "data", ".", "config")] == [
        "tree/config",
        "data",
        "./config",
        "config",
    ]
    assert "files in it" in found["data"][1]
    assert not (base / "tree/in").exists()


def test_a_move_that_a_mount_refuses_changes_nothing(base: Path) -> None:
    script = """
before = left(), sorted(os.listdir(mount_point))
for name, (source, target) in {
    "to another mount": ("x", "data/new/x"),
    "of a mounted file": ("config", "other"),
    "of a mounted file onto another": ("config", "tree/config"),
    "of a directory": ("data", "tree/new/data"),
    "onto a directory": ("tree/in", "data"),
}.items():
    result[name] = attempt(change.move, source, target, overwrite=True)[0]
    assert (left(), sorted(os.listdir(mount_point))) == before, name
    assert content("config") == content("tree/config") == "old"
    assert not os.path.exists(base + "/tree/new"), name
"""
    assert in_mounts(base, script) == {
        "to another mount": "INVALID_ARGUMENT",
        "of a mounted file": "CONFLICT",
        "of a mounted file onto another": "CONFLICT",
        "of a directory": "CONFLICT",
        "onto a directory": "CONFLICT",
    }


def test_a_move_needs_no_mount_at_the_root(base: Path) -> None:
    """As in a chroot: the kernel lists the mounts below the root alone."""
    (base / "proc").mkdir()
    script = """
assert libc.mount(b"/proc", f"{base}/proc".encode(), None, MS_BIND | 0x4000, None) == 0  # MS_REC
os.chroot(base)
root = Root("/tree")
result["moved"] = attempt(change.move, "in/x", "new/x")
result["content"] = open("/tree/new/x").read()
"""
    assert in_mounts(base, script) == {"moved": "None", "content": "old"}


def test_the_error_of_a_tree_names_the_entry_that_stays(root: Root, base: Path) -> None:
    (base / "d/a/locked").mkdir(parents=True)
    (base / "d/a/locked/x").touch()
    (base / "d/a/locked").chmod(0o500)
    try:
        with pytest.raises(PermissionDenied, match="'d/a/locked/x': Permission denied"):
            unprivileged(lambda: change.remove(root, "d", recursive=True))
    finally:
        (base / "d/a/locked").chmod(0o700)


# Hard links


def test_a_move_onto_another_name_of_the_file_removes_the_old_name(root: Root, base: Path) -> None:
    (base / "a").write_text("x")
    (base / "b").hardlink_to(base / "a")
    change.move(root, "a", "b", overwrite=True)
    assert names(base) == ["b"]
    (base / "a").hardlink_to(base / "b")
    for same in ("a", "./a", str(base / "a")):
        change.move(root, "a", same, overwrite=True)
        assert names(base) == ["a", "b"], "a name moved onto itself stays"
