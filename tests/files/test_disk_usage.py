from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from execd.files import disk_usage
from execd.files.disk_usage import DiskUsage, count, file_system_bytes
from execd.proc.spawn import Identity, act_as
from tests.waiting import DEADLINE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20


def usage_of(path: Path) -> DiskUsage:
    return count(str(path), rest_seconds=0.0)


def du_bytes(path: Path) -> int:
    """The judge: du(1) counts blocks, each inode once."""
    told = subprocess.run(["du", "-sx", "-B1", path], capture_output=True, check=True, text=True)
    return int(told.stdout.split()[0])


def test_bytes_are_counted_as_du_counts(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/file").write_bytes(bytes(3 * MIB))
    (tmp_path / "a/b/small").write_bytes(b"x")
    (tmp_path / "link").symlink_to("/usr")
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    found = usage_of(tmp_path)
    assert found.used_bytes == du_bytes(tmp_path)
    assert found.n_unreadable == 0


def test_hard_links_count_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(2 * MIB))
    for number in range(5):
        os.link(tmp_path / "file", tmp_path / f"link-{number}")
    found = usage_of(tmp_path)
    assert found.used_bytes == du_bytes(tmp_path)
    assert 2 * MIB <= found.used_bytes < 3 * MIB


@pytest.mark.linux_only("st_blocks of gVisor's tmpfs counts holes, for du as well")
def test_holes_do_not_count(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    found = usage_of(tmp_path)
    assert found.used_bytes == du_bytes(tmp_path)
    assert found.used_bytes < MIB


def test_more_links_than_are_remembered_count_by_their_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_usage, "MAX_LINKED", 0)
    (tmp_path / "file").write_bytes(bytes(2 * MIB))
    for number in range(3):
        os.link(tmp_path / "file", tmp_path / f"link-{number}")
    assert usage_of(tmp_path).used_bytes == du_bytes(tmp_path)


def test_a_file_that_is_deleted_and_still_open_does_not_count(tmp_path: Path) -> None:
    """The kubelet does not count such a file either."""
    with (tmp_path / "gone").open("wb") as file:
        file.write(bytes(4 * MIB))
        file.flush()
        (tmp_path / "gone").unlink()
        assert usage_of(tmp_path).used_bytes < MIB


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that every user reaches. /tmp may be closed, and a sandbox has no /var/tmp to
    write to."""
    made = Path(tempfile.mkdtemp(dir="/var/tmp" if os.access("/var/tmp", os.W_OK) else None))
    made.chmod(0o777)
    yield made
    subprocess.run(["chmod", "-R", "u+rwX", made], check=True)
    shutil.rmtree(made)


def test_a_directory_that_cannot_be_read_is_told_and_the_rest_is_counted(
    open_folder: Path,
) -> None:
    (open_folder / "closed/below").mkdir(parents=True)
    (open_folder / "closed/below/hidden").write_bytes(bytes(3 * MIB))
    (open_folder / "seen").write_bytes(bytes(MIB))
    (open_folder / "closed").chmod(0)
    # As root the count sees everything: so the count runs as a user.
    begin = partial(act_as, Identity(1234, 1234, ())) if os.geteuid() == 0 else None
    with ThreadPoolExecutor(1, initializer=begin) as threads:
        found = threads.submit(usage_of, open_folder).result()
    assert found.n_unreadable == 1
    assert MIB <= found.used_bytes < 2 * MIB


def test_a_tree_deeper_than_the_descriptors_is_counted(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(600):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    found = usage_of(tmp_path)
    assert (found.n_entries, found.n_unreadable) == (2 * 600, 0)


def test_a_count_rests_after_each_slice_and_ends_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1000):
        (tmp_path / f"{number}").touch()
    monkeypatch.setattr(disk_usage, "SLICE_SECONDS", 0.0)
    rests: list[float] = []
    monkeypatch.setattr("execd.files.disk_usage.time.sleep", rests.append)
    whole = count(str(tmp_path), rest_seconds=0.25)
    assert whole.n_entries == 1000
    assert rests == [0.25] * (1000 // disk_usage.ENTRIES_PER_CHECK)
    cut = count(str(tmp_path), rest_seconds=0.25, stop=lambda: True)
    assert cut.n_entries == disk_usage.ENTRIES_PER_CHECK


def test_a_count_does_not_rest_within_a_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count that rested after every few entries would take minutes for a large directory."""
    for number in range(2 * disk_usage.ENTRIES_PER_CHECK):
        (tmp_path / f"{number}").touch()
    monkeypatch.setattr(disk_usage, "SLICE_SECONDS", DEADLINE_SECONDS)
    monkeypatch.setattr("execd.files.disk_usage.time.sleep", pytest.fail)
    whole = count(str(tmp_path), rest_seconds=0.25, stop=lambda: True)
    assert whole.n_entries == 2 * disk_usage.ENTRIES_PER_CHECK


def test_a_directory_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        usage_of(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        file_system_bytes(str(tmp_path / "none"))


def test_the_file_system_grows_with_its_files(tmp_path: Path) -> None:
    used_bytes, size_bytes = file_system_bytes(str(tmp_path))
    assert 0 <= used_bytes <= size_bytes
