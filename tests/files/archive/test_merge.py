from __future__ import annotations

import io
import os
import stat
import tarfile
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest

from execd.errors import PermissionDenied
from execd.files.archive import unpack
from execd.files.archive.tree import UnpackingLimits
from tests.files.conftest import on_small_tmpfs, unprivileged

if TYPE_CHECKING:
    from pathlib import Path

    from execd.files.root import Root

# The base dir has three mounts: ``data`` (a tmpfs of 256 KiB), ``bound`` (a directory of the same
# file system) and ``config`` (a file of the same file system).
MERGE = """
import ctypes, os
from execd.errors import ExecdError
from execd.files.archive import unpack
from execd.files.archive.tree import UnpackingLimits
from execd.files.root import Root
base = os.path.dirname(mount_point)
libc = ctypes.CDLL(None, use_errno=True)
MS_BIND = 4096
MS_READ_ONLY = MS_BIND | 0x27  # MS_REMOUNT | MS_RDONLY, and MS_NOSUID | MS_NODEV as /tmp may have
def bind(name, *, read_only):
    source, target = (f"{base}/../{name}".encode(), f"{base}/{name}".encode())
    assert libc.mount(source, target, None, MS_BIND, None) == 0
    if read_only:
        done = libc.mount(None, target, None, MS_READ_ONLY, None)
        assert done == 0, os.strerror(ctypes.get_errno())
bind("bound", read_only=READ_ONLY == "bound")
bind("config", read_only=READ_ONLY == "config")
if MASKS:
    mask = f"{base}/zzz".encode()
    assert libc.mount(b"/dev/null", mask, None, MS_BIND, None) == 0
os.makedirs(mount_point + "/deep/er")
open(mount_point + "/deep/er/own", "w").write("own")
extraction = unpack.unpack(Root(base), ".", "tar", UnpackingLimits(1 << 30, 1000))
try:
    extraction.write(open(f"{base}/../archive", "rb").read())
    extraction.commit()
except ExecdError as error:
    result["error"] = [error.code, error.message]
for parent, directories, files in os.walk(base):
    for name in files:
        path = os.path.join(parent, name)
        result[os.path.relpath(path, base)] = open(path).read(100)
    for name in directories:
        path = os.path.join(parent, name)
        result.setdefault("directories", []).append(os.path.relpath(path, base))
result["times"] = os.stat(base + "/data/deep/b").st_mtime if "error" not in result else None
"""
OLD = {"aaa": "old", "config": "old", "zzz": "old", "data/deep/er/own": "own"}
NAMES = ("aaa", "bound/b", "config", "data/deep/b", "data/deep/er/b", "data/new/b", "zzz")


def merged(
    base: Path,
    read_only: str = "",
    large: str = "",
    names: tuple[str, ...] = NAMES,
    *,
    masks: bool = False,
) -> dict[str, Any]:
    """Unpack an archive of ``NAMES`` over ``OLD``, in the mounts of ``MERGE``. A name with a slash
    at the end is a directory. ``masks``: /dev/null is mounted over ``zzz``."""
    for name in ("data", "bound", "../bound"):
        (base / name).mkdir()
    for name in ("aaa", "config", "zzz", "../config"):
        (base / name).write_text("old")
    with tarfile.open(base.parent / "archive", mode="w") as archive:
        for name in names:
            content = b"new" + (bytes(300 << 10) if name == large else b"")
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), 1_700_000_000
            if name.endswith("/"):
                info.type, info.size, info.mode = tarfile.DIRTYPE, 0, 0o755
            archive.addfile(info, io.BytesIO(content))
    script = f"READ_ONLY, MASKS = {read_only!r}, {masks}\n" + MERGE
    return on_small_tmpfs(base / "data", script)


def test_an_archive_is_unpacked_over_mounted_directories_and_files(base: Path) -> None:
    found = merged(base)
    assert sorted(found.pop("directories")) == [
        "bound",
        "data",
        "data/deep",
        "data/deep/er",
        "data/new",
    ]
    assert found.pop("times") == 1_700_000_000
    assert found == dict.fromkeys(NAMES, "new") | {"data/deep/er/own": "own"}
    assert (base / "../config").read_text() == "new", "written in place, not replaced"


@pytest.mark.parametrize(
    ("read_only", "large", "code", "named"),
    [
        ("bound", "", "READ_ONLY", "bound"),
        ("config", "", "READ_ONLY", "config"),
        ("", "data/deep/er/b", "NO_SPACE", "data"),
    ],
)
def test_an_archive_that_a_mount_below_refuses_changes_nothing(
    base: Path, read_only: str, large: str, code: str, named: str
) -> None:
    found = merged(base, read_only, large)
    refusal = found.pop("error")
    assert (refusal[0], named in refusal[1]) == (code, True)
    assert sorted(found.pop("directories")) == ["bound", "data", "data/deep", "data/deep/er"]
    assert found.pop("times") is None
    assert found == OLD


def test_an_archive_over_a_mounted_device_changes_nothing(base: Path) -> None:
    found = merged(base, masks=True)
    assert (found.pop("error")[0], found.pop("directories")) == ("CONFLICT", ANY)
    assert found == OLD | {"zzz": "", "times": None}


def test_a_read_only_mount_is_no_hindrance_where_the_archive_has_nothing_for_it(
    base: Path,
) -> None:
    found = merged(base, "bound", names=("aaa", "bound/", "data/deep/b"))
    assert "error" not in found
    assert (found["aaa"], found["data/deep/b"], found["zzz"]) == ("new", "new", "old")


def unpacked(root: Root, *names: str) -> None:
    """Unpack an archive of empty files."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    extraction = unpack.unpack(root, ".", "tar", UnpackingLimits(1 << 30, 1000))
    extraction.write(raw.getvalue())
    extraction.commit()


def test_an_archive_changes_nothing_where_one_directory_takes_no_entries(
    root: Root, base: Path
) -> None:
    (base / "closed/open").mkdir(parents=True)
    for name in ("aaa", "closed/open/x"):
        (base / name).write_text("old")
    (base / "closed").chmod(0o555)

    with pytest.raises(PermissionDenied, match="closed"):
        unprivileged(lambda: unpacked(root, "aaa", "closed/y"))
    assert (base / "aaa").read_text() == "old"
    assert sorted(os.listdir(base)) == ["aaa", "closed"]
    unprivileged(lambda: unpacked(root, "aaa", "closed/open/x"))
    assert (base / "aaa").read_text() == (base / "closed/open/x").read_text() == ""


@pytest.mark.root
def test_an_archive_changes_nothing_where_one_file_may_not_be_replaced(
    root: Root, base: Path
) -> None:
    (base / "shared").mkdir()
    for name in ("aaa", "shared/x"):
        (base / name).write_text("old")
    os.chown(base / "shared/x", 1234, -1)
    os.chown(base / "shared", 1235, -1)
    (base / "shared").chmod(0o1777)
    with pytest.raises(PermissionDenied, match="shared/x"):
        unprivileged(lambda: unpacked(root, "aaa", "shared/x"))
    assert (base / "aaa").read_text() == "old"
    unprivileged(lambda: unpacked(root, "aaa", "shared/y"))
    assert (base / "aaa").read_text() == ""


def test_directories_of_an_archive_get_their_modes_and_existing_directories_keep_theirs(
    root: Root, base: Path
) -> None:
    modes = {"closed": 0o555, "closed/in": 0o500, "group": 0o2770, "sticky": 0o1777}
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, mode in modes.items():
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, mode
            archive.addfile(info)
        archive.addfile(tarfile.TarInfo("closed/in/x"))

    def unpacked(path: str) -> dict[str, int]:
        extraction = unpack.unpack(root, path, "tar", UnpackingLimits(1 << 30, 1000))
        extraction.write(raw.getvalue())
        extraction.commit()
        assert (base / path / "closed/in/x").is_file()
        return {name: stat.S_IMODE((base / path / name).stat().st_mode) for name in modes}

    try:
        assert unprivileged(lambda: unpacked("new")) == modes
        (base / "there/sticky").mkdir(parents=True, mode=0o755)
        assert unprivileged(lambda: unpacked("there")) == modes | {"sticky": 0o755}
    finally:
        for path in base.rglob("closed"):  # pytest could not remove these
            path.chmod(0o755)
            (path / "in").chmod(0o755)
