"""Checkpoints on full disks, after kills, across mounts, and of trees that change meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from execd.errors import Conflict
from execd.files.checkpoints import operations, scan
from tests.files.checkpoints.conftest import Desk, facts, make_tree, settle
from tests.files.conftest import on_small_tmpfs
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from execd.files.checkpoints.crew import Place

CHILD = """
import sys
from pathlib import Path
from tests.files.checkpoints.conftest import Desk
getattr(Desk(Path(sys.argv[1]), Path(sys.argv[2])), sys.argv[3])()
"""


def kept(desk: Desk) -> list[str]:
    return os.listdir(desk.state / "checkpoints/content")


def names_in(top: Path) -> Iterator[str]:
    for _, _, files in os.walk(top):
        yield from files


def kill_at(desk: Desk, act: str, folder: Path, n_names: int) -> None:
    """Kill a process with SIGKILL when ``act`` has made so many files in a folder."""
    command = [sys.executable, "-c", CHILD, str(desk.base), str(desk.state), act]
    child = subprocess.Popen(command)
    try:
        wait_until(lambda: len(list(names_in(folder))) >= n_names or child.poll() is not None)
        child.send_signal(signal.SIGKILL)
    finally:
        child.kill()
        assert child.wait() == -signal.SIGKILL, "the act was over before the kill"


def test_a_full_disk_leaves_nothing_of_a_checkpoint(base: Path, tmp_path: Path) -> None:
    (base / "large").write_bytes(os.urandom(1 << 20))
    (base / "small").write_bytes(b"small")
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    script = f"""
import os
from pathlib import Path
from execd.errors import NoSpace
from tests.files.checkpoints.conftest import Desk
desk = Desk(Path({str(base)!r}), Path(mount_point) / "state")
try:
    desk.create()
except NoSpace as error:
    result["refusal"] = error.message
result["ids"] = desk.shelf.ids()
big = b"x" * (1 << 20)
try:
    desk.shelf.save("y", big)
except OSError:
    result["names"] = os.listdir(desk.state / "checkpoints")
result["left_bytes"] = desk.shelf.sweep([])
desk.create(exclude=["large"])
result["then"] = desk.shelf.ids()
"""
    result = on_small_tmpfs(mount_point, script)
    assert "No space left" in result.pop("refusal")
    assert result == {"ids": [], "names": ["content"], "left_bytes": 0, "then": ["x"]}


def test_a_killed_checkpoint_leaves_nothing(desk: Desk, base: Path) -> None:
    for number in range(2000):
        (base / f"{number}").write_bytes(b"%d" % number * 5000)
    kill_at(desk, "create", desk.state / "checkpoints/content", 20)
    assert desk.shelf.ids() == []
    assert len(kept(desk)) >= 20
    assert desk.shelf.sweep([]) == 0
    assert kept(desk) == []
    desk.create()
    assert desk.verify("content").n_differences == 0


def test_a_killed_restore_is_made_whole_by_the_next(desk: Desk, base: Path) -> None:
    (base / "below").mkdir()
    for number in range(2000):
        (base / f"below/{number}").write_bytes(b"%d" % number * 500)
    settle()
    desk.create()
    before = facts(base)
    shutil.rmtree(base / "below")
    kill_at(desk, "restore", base, 20)
    assert len(list(names_in(base))) < 2000
    desk.restore_all()
    assert facts(base) == before


def test_files_that_are_gone_meanwhile_refuse_a_checkpoint(
    desk: Desk, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tree(base)
    read = scan.digest_of

    def read_and_remove(place: Place, fd: int) -> bytes:
        (base / "run.sh").unlink(missing_ok=True)
        shutil.rmtree(base / "src/deep", ignore_errors=True)
        return read(place, fd)

    monkeypatch.setattr(scan, "digest_of", read_and_remove)
    with pytest.raises(Conflict, match="No such file"):
        desk.create()
    assert desk.shelf.ids() == []


ON_MOUNT = """
import json, subprocess, sys
from pathlib import Path
from tests.files.checkpoints.conftest import Desk, facts
base, state = Path(sys.argv[1]), Path(sys.argv[2])
subprocess.run(["mount", "--bind", sys.argv[3], base / "mounted"], check=True)
(base / "mounted/file").write_text("old")
desk = Desk(base, state)
desk.create()
before = facts(base)
(base / "mounted/file").write_text("new")
(base / "mounted/more").mkdir()
done = desk.restore_all("content")
is_mounted = f" {base}/mounted " in Path("/proc/self/mountinfo").read_text()
print(json.dumps([facts(base) == before, is_mounted, done.removed]))
"""


@pytest.mark.root
def test_a_mount_below_a_root_stays_and_its_content_is_restored(
    base: Path, outside: Path, tmp_path: Path
) -> None:
    (base / "mounted").mkdir()
    paths = [str(base), str(tmp_path / "state"), str(outside)]
    command = ["unshare", "--mount", sys.executable, "-c", ON_MOUNT, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True, True, 1]
    assert (outside / "file").read_text() == "old"
    assert (outside / "secret").read_bytes() == b"secret"


@pytest.mark.root
def test_a_device_with_another_number_is_named(desk: Desk, base: Path) -> None:
    os.mknod(base / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    settle()
    desk.create()
    before = (base / "device").stat().st_mtime_ns
    (base / "device").unlink()
    os.mknod(base / "device", stat.S_IFCHR | 0o600, os.makedev(1, 5))
    os.utime(base / "device", ns=(before, before))
    [named] = [each.path for each in desk.restore().troubles]
    assert named == str(base / "device")
    assert named in [each.path for each in desk.verify().differences]


def test_restored_files_are_taken_over_by_later_scans(
    desk: Desk, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "_exchanges_contents", lambda _: False)  # ext4 and XFS
    for number in range(20):
        (base / f"{number}").write_text(f"{number}")
    settle()
    desk.create()
    if not desk.stored.manifests[0].is_told_by_ctime:
        return  # gVisor, or a tmpfs: all contents are read
    before = facts(base)
    for number in range(20):
        (base / f"{number}").write_text("other")
    desk.restore_all()
    settle()
    was = desk.stored
    assert desk.verify().n_differences == 0
    assert desk.stored == was, "few files are no reason to write all pages of the disk"
    monkeypatch.setattr(operations, "MAX_STALE_FILES", 10)
    assert desk.verify().n_differences == 0
    inodes = {entry.path: entry.inode for entry in desk.stored.manifests[0].entries}
    assert all(inodes[b"%d" % number] == (base / f"{number}").stat().st_ino for number in range(20))
    assert desk.stored.facts == was.facts
    with monkeypatch.context() as patch:
        patch.setattr(scan, "digest_of", lambda *_: pytest.fail("a file was read"))
        assert desk.verify().n_differences == 0
    (base / "7").write_text("8")
    assert desk.kinds() == {"7": "modified"}
    desk.restore_all()
    assert {path: each[:5] for path, each in facts(base).items()} == {
        path: each[:5] for path, each in before.items()
    }


@pytest.mark.any_kernel  # takes minutes in gVisor
def test_a_hundred_thousand_files_are_restored(desk: Desk, base: Path) -> None:
    for folder in range(100):
        (base / f"{folder}").mkdir()
        for number in range(1000):
            os.close(os.open(base / f"{folder}/{number}", os.O_CREAT | os.O_WRONLY))
    desk.create()
    shutil.rmtree(base / "7")
    (base / "9/9").write_text("other")
    done = desk.restore_all()
    assert (done.restored, done.removed) == (1003, 0), "1,001 names, a file, the time of the root"
    assert len(os.listdir(base / "7")) == 1000


ON_TMPFS_BELOW = """
import json, mmap, subprocess, sys
from pathlib import Path
from execd.files.checkpoints import scan
scan._exchanges_contents = lambda _: False
from tests.files.checkpoints.conftest import Desk, settle
base, state = Path(sys.argv[1]), Path(sys.argv[2])
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", base / "mounted"], check=True)
with open(base / "mounted/file", "w+b") as file:
    file.write(b"old!")
    file.flush()
    with mmap.mmap(file.fileno(), 0) as page:
        page[0:1] = b"o"
        settle()
        desk = Desk(base, state)
        desk.create()
        page[0:4] = b"new!"
        print(json.dumps([desk.verify().n_differences, list(desk.kinds())]))
"""


@pytest.mark.root
def test_ctime_is_believed_only_on_the_file_system_of_the_root(base: Path, tmp_path: Path) -> None:
    (base / "mounted").mkdir()
    paths = [str(base), str(tmp_path / "state")]
    command = ["unshare", "--mount", sys.executable, "-c", ON_TMPFS_BELOW, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [1, ["mounted/file"]]


def test_a_restore_reads_no_file_that_differs_by_its_size(
    desk: Desk, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (base / "grown").write_text("small")
    desk.create()
    before = facts(base)
    (base / "hole").touch()
    os.truncate(base / "hole", 15 << 40)
    os.truncate(base / "grown", 15 << 40)
    assert desk.verify("content").n_differences == 3, "two files, the time of the root"
    desk.restore_all("content")
    assert facts(base) == before
