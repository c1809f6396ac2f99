"""Files up and down against a daemon: exact bytes, resume across processes, changes meanwhile."""

from __future__ import annotations

import hashlib
import io
import os
import random
import time
from typing import TYPE_CHECKING

import pytest

from execd_client import (
    AsyncExecd,
    Conflict,
    DeadlineExceeded,
    Execd,
    InvalidArgument,
    NotFound,
    TransferFailed,
)
from execd_client.directories import entry_name
from execd_client.models import EntryReply
from tests.client.conftest import AT_ONCE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conformance.target import Target

CONTENT = random.Random(5).randbytes(3 << 20)


def test_files_are_written_read_listed_moved_copied_and_removed(sandbox: Execd) -> None:
    files = sandbox.files
    files.write("ways/a.txt", "text", mode="0600")
    files.write("ways/b.bin", io.BytesIO(b"\x00\xff"))
    files.write("ways/open.txt", io.StringIO("ü"))
    assert files.read("ways/open.txt").decode() == "ü"
    files.remove("ways/open.txt")
    assert (files.read("ways/a.txt"), files.read("ways/b.bin")) == (b"text", b"\x00\xff")
    assert (files.stat("ways/a.txt").mode, files.stat("ways/a.txt").size) == ("0600", 4)
    files.move("ways/a.txt", "ways/c.txt")
    files.copy("ways/c.txt", "ways/d.txt")
    files.mkdir("ways/deep/er")
    names = [entry.name for entry in files.list("ways")]
    assert sorted(names) == ["b.bin", "c.txt", "d.txt", "deep"]
    assert [match.path for match in files.search("*.txt", "ways").items] == ["c.txt", "d.txt"]
    assert files.exists("ways/d.txt")
    files.remove("ways", recursive=True)
    assert not files.exists("ways/d.txt")


def test_what_is_not_there_or_of_another_kind_is_said(sandbox: Execd) -> None:
    sandbox.files.write("kinds/file", b"x")
    if sandbox.files.exists("kinds/file2"):
        sandbox.files.remove("kinds/file2")
    with pytest.raises(NotFound):
        sandbox.files.read("kinds/missing")
    with pytest.raises(NotFound, match="kinds/missing"):
        sandbox.files.list("kinds/missing")
    with pytest.raises(NotFound):
        sandbox.files.remove("kinds/missing")
    with pytest.raises(Conflict, match="directory"):
        sandbox.files.read("kinds")
    with pytest.raises(Conflict, match="file"):
        sandbox.files.list("kinds/file")
    sandbox.files.copy("kinds/file", "kinds/file2")
    with pytest.raises(Conflict, match="something already"):
        sandbox.files.move("kinds/file2", "kinds/file")
    with pytest.raises(InvalidArgument, match="mode"):
        sandbox.files.write("kinds/file", b"x", mode="999")


def test_a_directory_in_the_place_of_the_file_is_refused_first(
    sandbox: Execd, tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(CONTENT)
    (tmp_path / "folder").mkdir()
    sandbox.files.mkdir("in-the-way/folder")
    with pytest.raises(Conflict, match="in-the-way/folder is a directory"):
        sandbox.files.upload(tmp_path / "large", "in-the-way/folder")
    assert [entry.name for entry in sandbox.files.list("in-the-way")] == ["folder"]
    sandbox.files.write("small-source", b"x")
    with pytest.raises(IsADirectoryError, match="is a directory: name the file"):
        sandbox.files.download("small-source", tmp_path / "folder")
    assert sorted(os.listdir(tmp_path)) == ["folder", "large"]


def test_odd_names_go_there_and_back(sandbox: Execd, tmp_path: Path) -> None:
    for name in ("a b&c=d", "ü€#?%2F", os.fsdecode(b"\xff\xfe")):
        (tmp_path / "x").write_bytes(b"odd")
        sandbox.files.upload(tmp_path / "x", f"odd/{name}")
        assert sandbox.files.read(f"odd/{name}") == b"odd"


def test_a_large_upload_goes_on_where_another_process_broke_off(
    sandbox: Execd, tmp_path: Path
) -> None:
    local = tmp_path / "large"
    local.write_bytes(CONTENT)
    local.chmod(0o640)
    digest = hashlib.sha256(CONTENT).hexdigest()[:16]
    sandbox.files.write(f"resumed/.large.{digest}.part", CONTENT[: 2 << 20])
    told: list[tuple[int, int]] = []
    sandbox.files.upload(local, "resumed/large", progress=lambda *said: told.append(said))
    assert told[0] == (2 << 20, 3 << 20)
    assert told[-1] == (3 << 20, 3 << 20)
    assert sandbox.files.read("resumed/large") == CONTENT
    assert sandbox.files.stat("resumed/large").mode == "0640"
    assert [entry.name for entry in sandbox.files.list("resumed")] == ["large"]


def test_a_partial_file_with_other_bytes_does_no_harm(sandbox: Execd, tmp_path: Path) -> None:
    local = tmp_path / "large"
    local.write_bytes(CONTENT)
    digest = hashlib.sha256(CONTENT).hexdigest()[:16]
    for other in (b"other" * 1000, bytes(len(CONTENT)), bytes(len(CONTENT) + 1)):
        sandbox.files.write(f"harm/.large.{digest}.part", other)
        sandbox.files.upload(local, "harm/large")
        assert sandbox.files.read("harm/large") == CONTENT


def test_a_download_goes_on_where_another_process_broke_off(sandbox: Execd, tmp_path: Path) -> None:
    sandbox.files.write("source", CONTENT, mode="0640")
    sandbox.files.download("source", tmp_path / "first")
    told: list[tuple[int, int]] = []

    def broken(done: int, total: int) -> None:
        told.append((done, total))
        if done >= 1 << 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sandbox.files.download("source", tmp_path / "second", progress=broken)
    resumed: list[tuple[int, int]] = []
    sandbox.files.download(
        "source", tmp_path / "second", progress=lambda *said: resumed.append(said)
    )
    assert resumed[0][0] >= 1 << 20
    assert sorted(os.listdir(tmp_path)) == ["first", "second"]
    assert (tmp_path / "second").read_bytes() == (tmp_path / "first").read_bytes() == CONTENT
    assert (tmp_path / "second").stat().st_mode & 0o777 == 0o640


def test_a_file_that_changes_during_a_download_is_never_mixed(
    sandbox: Execd, tmp_path: Path
) -> None:
    sandbox.files.write("changing", CONTENT)
    newer = CONTENT[::-1]
    changes = iter([True])

    def change_once(done: int, _total: int) -> None:
        if 0 < done < len(CONTENT) and next(changes, False):
            sandbox.files.write("changing", newer)
            raise BrokenPipeError  # the reader goes away, and comes back

    with pytest.raises(BrokenPipeError):
        sandbox.files.download("changing", tmp_path / "got", progress=change_once)
    sandbox.files.download("changing", tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == newer


def test_a_local_file_that_changes_during_an_upload_is_refused(
    sandbox: Execd, tmp_path: Path
) -> None:
    local = tmp_path / "large"
    local.write_bytes(CONTENT)

    def change(done: int, _total: int) -> None:
        if done == 0:
            local.write_bytes(CONTENT[::-1])

    with pytest.raises(TransferFailed, match="changed during the upload"):
        sandbox.files.upload(local, "refused/large", progress=change)
    assert not sandbox.files.exists("refused/large")


@AT_ONCE
def test_a_deadline_ends_an_upload(url: str, tmp_path: Path) -> None:
    """64 MiB in pieces, each of which takes a fifth of the deadline."""
    with (tmp_path / "large").open("wb") as file:
        file.truncate(64 << 20)

    def slow(done: int, _total: int) -> None:
        time.sleep(0.2 if done else 0)

    with Execd(url, deadline_seconds=1) as client, pytest.raises(DeadlineExceeded):
        client.files.upload(tmp_path / "large", "late/large", progress=slow)


def test_directories_go_up_and_down_inside_and_outside_of_the_base_dir(
    sandbox: Execd, outside: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    (source / "deep/empty").mkdir(parents=True)
    (source / "deep/file").write_bytes(CONTENT)
    (source / "small").write_text("small")
    told: list[tuple[int, int]] = []
    for number, remote in enumerate(["tree", f"{outside}/tree"]):
        sandbox.files.upload_dir(source, remote, progress=lambda *said: told.append(said))
        target = tmp_path / f"target-{number}"
        sandbox.files.download_dir(remote, target)
        assert (target / "deep/file").read_bytes() == CONTENT
        assert (target / "deep/empty").is_dir()
        (target / "small").unlink()
        sandbox.files.download_dir(remote, target)
        assert (target / "small").read_text() == "small"
        assert told[-1] == (len(CONTENT) + 5, len(CONTENT) + 5)


def test_a_directory_that_is_missing_locally_makes_none_remotely(
    sandbox: Execd, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(FileNotFoundError):
        sandbox.files.upload_dir(tmp_path / "missing", "never")
    with pytest.raises(NotADirectoryError):
        sandbox.files.upload_dir(tmp_path / "file", "never")
    assert not sandbox.files.exists("never")


def test_a_changed_file_is_fetched_again_and_an_equal_file_is_not(
    sandbox: Execd, tmp_path: Path
) -> None:
    sandbox.files.write("again/a", b"one")
    sandbox.files.write("again/b", b"two")
    sandbox.files.download_dir("again", tmp_path / "target")
    kept = (tmp_path / "target/b").stat().st_ino
    sandbox.files.write("again/a", b"three")
    sandbox.files.download_dir("again", tmp_path / "target")
    assert (tmp_path / "target/a").read_bytes() == b"three"
    assert (tmp_path / "target/b").stat().st_ino == kept


def test_files_that_changed_within_a_second_are_fetched_again(
    sandbox: Execd, tmp_path: Path
) -> None:
    """Same size, same time: only the content tells."""
    target = tmp_path / "target"
    sandbox.run(
        "rm -rf stamps; mkdir stamps; echo 10 > stamps/a; echo 20 > stamps/b; ln -sf a stamps/c"
    ).check()
    sandbox.run("touch -d @1700000000 stamps/*").check()
    sandbox.files.download_dir("stamps", target)
    sandbox.run("echo 99 > stamps/a; touch -d @1700000000 stamps/a").check()
    sandbox.run("chmod 755 stamps/b; rm stamps/c; echo 30 > stamps/c").check()
    sandbox.files.download_dir("stamps", target)
    assert [(target / name).read_text() for name in "abc"] == ["99\n", "20\n", "30\n"]
    assert (target / "b").stat().st_mode & 0o777 == 0o755
    sandbox.run("ln -sf a stamps/b").check()
    sandbox.files.download_dir("stamps", target)
    assert (os.readlink(target / "b"), (target / "b").read_text()) == ("a", "99\n")


def test_a_log_that_grows_is_read_up_to_its_size_at_the_beginning(
    sandbox: Execd, tmp_path: Path
) -> None:
    sandbox.files.write("logs/live", b"")
    n_lines = 0

    def grow(*_: int) -> None:
        nonlocal n_lines
        n_lines += 1
        sandbox.run(
            f"head -c 100000 /dev/zero | tr '\\0' x >> logs/live; echo {n_lines} >> logs/live"
        )

    grow()
    for _ in range(3):
        sandbox.files.download("logs/live", tmp_path / "live", progress=grow)
        (tmp_path / "kept").mkdir(exist_ok=True)
        (tmp_path / "kept/other").touch()
        sandbox.files.download_dir("logs", tmp_path / "kept", progress=grow)
        read = b""
        for piece in sandbox.files.stream("logs/live"):
            read += piece
            grow()
        whole = sandbox.files.read("logs/live")
        for part in (read, (tmp_path / "live").read_bytes(), (tmp_path / "kept/live").read_bytes()):
            assert len(part) > 100_000
            assert whole.startswith(part)
            assert part.endswith(b"\n"), "the log at one moment"
    assert sorted(os.listdir(tmp_path)) == ["kept", "live"], "no part is left"


def test_a_local_log_that_grows_is_sent_up_to_its_size_at_the_beginning(
    sandbox: Execd, tmp_path: Path
) -> None:
    local = tmp_path / "log"
    local.write_bytes(CONTENT)

    def grow(*_: int) -> None:
        with local.open("ab") as log:
            log.write(b"more")

    sandbox.files.upload(local, "grown/log", progress=grow)
    assert sandbox.files.read("grown/log") == CONTENT


@pytest.mark.parametrize("size", [5, 3 << 20])
def test_an_upload_follows_a_link_at_every_size(sandbox: Execd, tmp_path: Path, size: int) -> None:
    content = CONTENT[:size]
    (tmp_path / "file").write_bytes(content)
    for command, end in (
        ("touch linked/deep/end; ln -s deep/end linked/name", "linked/deep/end"),
        ("ln -s next linked/name; ln -s $PWD/linked/deep/end linked/next", "linked/deep/end"),
        ("ln -s deep/missing linked/name", "linked/deep/missing"),
    ):
        sandbox.run(f"rm -rf linked; mkdir -p linked/deep; {command}").check()
        sandbox.files.upload(tmp_path / "file", "linked/name")
        sandbox.run("test -L linked/name").check()
        assert sandbox.files.read(end) == content
    sandbox.run("rm -rf linked; mkdir -p linked/deep; ln -s deep linked/name").check()
    with pytest.raises((Conflict, InvalidArgument), match="is a directory"):
        sandbox.files.upload(tmp_path / "file", "linked/name")
    assert sandbox.run("ls -A linked/deep").stdout == ""


def test_an_upload_of_a_directory_replaces_a_link_at_every_size(
    sandbox: Execd, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    sizes = {"small": 5, "large": 9 << 20}
    for name, size in sizes.items():
        with (tmp_path / "source" / name).open("wb") as file:
            file.truncate(size)
    sandbox.run(
        "rm -rf into; mkdir into; echo kept > into/end; ln -s end into/small; ln -s end into/large"
    ).check()
    sandbox.files.upload_dir(tmp_path / "source", "into")
    assert sandbox.files.read("into/end") == b"kept\n"
    assert {name: sandbox.files.stat(f"into/{name}").size for name in sizes} == sizes


def test_links_that_lead_out_are_left_out_and_named_both_ways(
    sandbox: Execd, tmp_path: Path
) -> None:
    source = tmp_path / "project"
    (source / "bin").mkdir(parents=True)
    (source / "file").write_text("content")
    (source / "bin/python").symlink_to("/usr/bin/python3")
    (source / "bin/file").symlink_to("../file")
    if sandbox.files.exists("project"):
        sandbox.files.remove("project", recursive=True)
    (up,) = sandbox.files.upload_dir(source, "project")
    assert up.startswith("bin/python is left out")
    assert sandbox.run("cat project/bin/file; ls project/bin").stdout == "contentfile\n"
    sandbox.run("ln -s /etc/passwd project/out; ln -s /etc project/bin/etc").check()
    for target in (tmp_path / "new", tmp_path / "old"):
        (target.parent / "old").mkdir(exist_ok=True)
        (target.parent / "old/there").touch()
        down = sandbox.files.download_dir("project", target)
        assert sorted(line.partition(" is left out")[0] for line in down) == ["bin/etc", "out"]
        assert os.readlink(target / "bin/file") == "../file"
        assert sorted(os.listdir(target / "bin")) == ["file"]


def test_odd_names_of_a_directory_come_again(sandbox: Execd, tmp_path: Path) -> None:
    """The second download goes file by file."""
    name = os.fsdecode(b"\xff\xfe%41")
    sandbox.files.write(f"odd-tree/{name}/{name}", b"one")
    target = tmp_path / "target"
    sandbox.files.download_dir("odd-tree", target)
    sandbox.files.write(f"odd-tree/{name}/{name}", b"newer")
    sandbox.files.download_dir("odd-tree", target)
    assert (target / name / name).read_bytes() == b"newer"
    assert os.listdir(target / name) == [name]


@pytest.mark.parametrize("name", ["../out", "..", "/etc/out", ""])
def test_a_name_of_a_listing_that_leads_out_is_refused(name: str) -> None:
    entry = EntryReply(name=name, size=1, type="file", modified_at="", mode="0644")
    with pytest.raises(TransferFailed, match="listing"):
        entry_name(entry)


@pytest.mark.parametrize("remote", ["went-on", "deep/went-on"])
def test_an_upload_of_a_directory_that_broke_off_goes_on(
    sandbox: Execd, tmp_path: Path, remote: str
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "deep").mkdir(parents=True)
    for number in range(3):
        with (source / f"deep/large-{number}").open("wb") as file:
            file.truncate((9 << 20) + number)
    (source / "small").write_text("small")
    if sandbox.files.exists(remote):
        sandbox.files.remove(remote, recursive=True)

    def broken(done: int, _total: int) -> None:
        if done > 20 << 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sandbox.files.upload_dir(source, remote, progress=broken)
    assert not sandbox.files.exists(remote)
    told: list[int] = []
    sandbox.files.upload_dir(source, remote, progress=lambda done, _: told.append(done))
    assert told[0] >= 18 << 20
    sandbox.files.download_dir(remote, target)
    assert (target / "small").read_text() == "small"
    sizes = [(target / f"deep/large-{number}").stat().st_size for number in range(3)]
    assert sizes == [(9 << 20) + number for number in range(3)]
    beside = sandbox.files.list(os.path.dirname(remote) or ".")
    assert not [entry.name for entry in beside if ".went-on" in entry.name]


def test_a_download_of_a_directory_that_broke_off_goes_on(sandbox: Execd, tmp_path: Path) -> None:
    for number in range(8):
        sandbox.files.write(f"broken-off/deep/{number}", CONTENT[number:])
    sandbox.files.write("broken-off/old", b"old")

    def broken(done: int, _total: int) -> None:
        if done > 10 << 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sandbox.files.download_dir("broken-off", tmp_path / "target", progress=broken)
    assert not (tmp_path / "target").exists()
    sandbox.files.remove("broken-off/old")
    sandbox.files.write("broken-off/new", b"new")
    told: list[int] = []
    sandbox.files.download_dir(
        "broken-off", tmp_path / "target", progress=lambda done, _: told.append(done)
    )
    assert os.listdir(tmp_path) == ["target"]
    assert sorted(os.listdir(tmp_path / "target")) == ["deep", "new"]
    for number in range(8):
        assert (tmp_path / f"target/deep/{number}").read_bytes() == CONTENT[number:]


def test_links_to_parents_end(sandbox: Execd, tmp_path: Path) -> None:
    sandbox.run(
        "rm -rf loop; mkdir -p loop/deep && ln -s ../.. loop/deep/up && echo x > loop/file"
    ).check()
    (tmp_path / "target").mkdir()
    (tmp_path / "target/there").write_text("so the directory comes file by file")
    sandbox.files.download_dir("loop", tmp_path / "target")
    assert sorted(os.listdir(tmp_path / "target")) == ["deep", "file", "there"]
    assert os.listdir(tmp_path / "target/deep") == []


async def test_the_async_client_does_the_same(target: Target, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(CONTENT)
    async with AsyncExecd(target.url) as sandbox:
        await sandbox.files.upload(tmp_path / "large", "async/large")
        await sandbox.files.download("async/large", tmp_path / "got")
        pieces = [piece async for piece in sandbox.files.stream("async/large")]
        await sandbox.files.upload_dir(tmp_path, "async/tree")
        await sandbox.files.download_dir("async/tree", tmp_path / "tree")
    assert (tmp_path / "got").read_bytes() == b"".join(pieces) == CONTENT
    assert (tmp_path / "tree/got").read_bytes() == CONTENT


@AT_ONCE
def test_changes_are_watched(sandbox: Execd) -> None:
    sandbox.files.mkdir("watched")
    found = []
    for event in sandbox.files.watch("watched", debounce_seconds=0.0):
        if event.kind == "watching":
            sandbox.files.write("watched/new", b"x")
        if event.kind == "changes":
            if not found:
                sandbox.files.remove("watched", recursive=True)
            found += [(change.type, change.path) for change in event.changes]
        if event.kind == "gone":
            break
    assert ("created", "new") in found
