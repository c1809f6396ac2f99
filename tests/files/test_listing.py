from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from execd.errors import NotFound, PermissionDenied
from execd.files import listing as listing_module
from execd.files import names as names_module
from execd.files import write
from execd.files.listing import MAX_PIECE, Entry, open_listing
from execd.files.names import next_names
from execd.files.root import Root
from tests.files.conftest import entries, unprivileged
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path


def test_entries_are_sorted_by_bytes_with_the_facts_of_each(root: Root, base: Path) -> None:
    for name in ("b", "a.txt", ".hidden", "Z", "é"):
        (base / name).write_bytes(b"12345")
        os.utime(base / name, (1, 1000.5))
    (base / "b").chmod(0o751)
    (base / "d").mkdir(mode=0o700)
    found = entries(root, ".")
    assert [entry.name for entry in found] == [".hidden", "Z", "a.txt", "b", "d", "é"]
    assert found[3] == Entry(name="b", size_bytes=5, kind="file", modified_at=1000.5, mode=0o751)
    assert (found[4].kind, found[4].mode) == ("directory", 0o700)


def test_links_are_described_by_their_targets_only_when_those_are_inside(
    base: Path, outside: Path, tmp_path: Path
) -> None:
    state = base / "d/state"
    state.mkdir(parents=True)
    (state / "log").write_bytes(b"12345678")
    (base / "x").write_bytes(b"12345")
    links = {
        "to_file": "d/../x",
        "to_directory": str(base / "d"),
        "to_nothing": "missing",
        "to_itself": "to_itself",
        "to_outside_file": str(outside / "secret"),
        "to_outside_directory": str(outside),
        "to_state": "d/state/log",
        "to_proc": "/proc",
    }
    for name, target in links.items():
        (base / name).symlink_to(target)
    found = {entry.name: entry for entry in entries(Root(str(base), str(state)), "")}
    assert set(found) == {*links, "d", "x"}
    assert (found["to_file"].size_bytes, found["to_file"].kind) == (5, "file")
    assert found["to_directory"].kind == "directory"
    for name in links.keys() - {"to_file", "to_directory"}:
        own = os.lstat(base / name)
        assert found[name] == Entry(
            name, own.st_size, "file", own.st_mtime, own.st_mode & 0o7777
        ), name


def test_everything_that_is_no_directory_is_a_file(root: Root, base: Path) -> None:
    os.mkfifo(base / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(base / "socket"))
        assert [(entry.name, entry.kind) for entry in entries(root, "")] == [
            ("fifo", "file"),
            ("socket", "file"),
        ]


def test_what_is_no_directory_is_not_found(root: Root, base: Path) -> None:
    (base / "x").write_bytes(b"")
    (base / "link").symlink_to("x")
    for path in ("x", "link", "missing", "x/y"):
        with pytest.raises(NotFound):
            entries(root, path)


def test_a_directory_without_read_permission_is_a_permission_error(root: Root, base: Path) -> None:
    (base / "d").mkdir(mode=0o300)
    with pytest.raises(PermissionDenied, match="'d': Permission denied"):
        unprivileged(lambda: entries(root, "d"))


def test_any_name_comes_back_as_its_bytes(root: Root, base: Path) -> None:
    raw = sorted([b"a\nb", b'"', b"\xff", b"y" * 255, b"%2F", b"\xc3\xa9"])
    for name in raw:
        open(os.fsencode(base) + b"/" + name, "wb").close()
    assert [entry.name.encode("utf-8", "surrogateescape") for entry in entries(root, "")] == raw


def test_uploads_under_way_are_left_out_and_leftovers_of_another_process_are_not(
    root: Root, base: Path
) -> None:
    (base / ".execd-upload-00000000-0123456789abcdef").write_bytes(
        b"left by a daemon that was killed"
    )
    draft = write.create(root, "x")
    draft.write(b"half")
    assert len(os.listdir(base)) == 2
    assert [entry.name for entry in entries(root, "")] == [
        ".execd-upload-00000000-0123456789abcdef"
    ]
    draft.abort()


def test_ten_thousand_entries_are_listed_whole(root: Root, base: Path) -> None:
    for number in range(10_000):
        os.close(os.open(base / f"{number:05}", os.O_CREAT | os.O_WRONLY))
    assert [entry.name for entry in entries(root, "")] == [
        f"{number:05}" for number in range(10_000)
    ]


def test_large_directory_comes_in_pieces_of_bounded_size_and_in_order(
    root: Root, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number:05}" for number in range(2 * MAX_PIECE)]
    random.Random(1).shuffle(names)
    for name in names:
        os.close(os.open(base / name, os.O_CREAT | os.O_WRONLY))
    monkeypatch.setattr(names_module, "RUN_NAMES", 100)
    monkeypatch.setattr(listing_module, "next_names", partial(next_names, max_bytes=1000))
    with contextlib.closing(open_listing(root, "")) as listing:
        assert listing.is_large
        pieces = list(iter(listing.read, []))
    assert max(map(len, pieces)) <= MAX_PIECE
    assert [entry.name for piece in pieces for entry in piece] == sorted(names)


CHURN = """
import os, sys
os.chdir(sys.argv[1])
print(flush=True)
while True:
    for i in range(50):
        os.close(os.open(f"v{i}", os.O_CREAT)); os.symlink(f"v{i}", f"w{i}")
    for i in range(50):
        os.unlink(f"v{i}"); os.unlink(f"w{i}")
"""


def test_entries_that_vanish_meanwhile_are_left_out(root: Root, base: Path) -> None:
    (base / "stays").write_bytes(b"")
    with subprocess.Popen(
        [sys.executable, "-c", CHURN, str(base)], stdout=subprocess.PIPE
    ) as churn:
        try:
            assert churn.stdout is not None
            churn.stdout.readline()
            sizes: list[int] = []

            def look() -> bool:
                found = [entry.name for entry in entries(root, "")]
                assert "stays" in found
                sizes.append(len(found))
                return len(sizes) >= 300 and len(set(sizes)) > 1

            wait_until(look, 20)
        finally:
            churn.kill()
