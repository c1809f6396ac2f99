from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from execd.errors import NotFound, PermissionDenied
from execd.files import read, write
from tests.files.conftest import unprivileged

if TYPE_CHECKING:
    from pathlib import Path

    from execd.files.root import Root


def etag(root: Root, path: str) -> str:
    file = read.open_file(root, path)
    file.close()
    return file.etag


def test_bytes_come_by_offset_and_end_with_none(root: Root, base: Path) -> None:
    (base / "x").write_bytes(bytes(range(256)) * 1000)
    file = read.open_file(root, "x")
    try:
        assert file.size_bytes == 256_000
        assert file.read(250, 12) == bytes([250, 251, 252, 253, 254, 255, 0, 1, 2, 3, 4, 5])
        assert file.read(255_999, 100) == b"\xff"
        assert file.read(256_000, 100) == b""
        assert file.read(10**15, 100) == b""
    finally:
        file.close()
        file.close()


def test_an_open_file_stays_the_same_file_when_its_name_goes_to_another(
    root: Root, base: Path
) -> None:
    (base / "x").write_bytes(b"old")
    file = read.open_file(root, "x")
    draft = write.create(root, "x")
    draft.write(b"new content")
    draft.commit()
    assert file.read(0, 100) == b"old"
    (base / "x").unlink()
    assert file.read(1, 1) == b"l"
    file.close()


def test_facts_are_those_of_the_file_and_the_name_is_the_one_asked_for(
    root: Root, base: Path
) -> None:
    (base / "d").mkdir()
    (base / "d/x").write_bytes(b"12345")
    os.utime(base / "d/x", (1, 1234567890.5))
    (base / "link").symlink_to("d/x")
    for path, name in (("d/x", "x"), ("link", "link"), ("d/x/", "x")):
        file = read.open_file(root, path)
        file.close()
        assert (file.name, file.size_bytes, file.modified_at) == (name, 5, 1234567890.5)


def test_the_etag_is_strong_quoted_and_stable(root: Root, base: Path) -> None:
    (base / "x").write_bytes(b"1")
    tag = etag(root, "x")
    assert tag.startswith('"')
    assert tag.endswith('"')
    assert tag.isascii()
    assert '"' not in tag[1:-1]
    assert etag(root, "x") == tag
    (base / "link").symlink_to("x")
    assert etag(root, "link") == tag


def test_the_etag_changes_with_every_upload_even_of_the_same_bytes(root: Root) -> None:
    tags = set()
    previous = None
    for _ in range(5):
        draft = write.create(root, "x")
        draft.write(b"same")
        draft.commit()
        tag = etag(root, "x")
        assert tag != previous
        previous = tag
        tags.add(tag)
    assert len(tags) > 1


def test_the_etag_sees_a_write_in_place_whose_mtime_was_set_back(root: Root, base: Path) -> None:
    (base / "x").write_bytes(b"1")
    os.utime(base / "x", (1000, 1000))
    before, changed_at = etag(root, "x"), (base / "x").stat().st_ctime_ns
    for number in range(1_000_000):  # until the clock for file times has ticked
        (base / "x").write_bytes(b"%d" % (number % 10))
        os.utime(base / "x", (1000, 1000))
        if (base / "x").stat().st_ctime_ns != changed_at:
            break
    assert (base / "x").stat().st_mtime == 1000
    assert etag(root, "x") != before


def test_a_file_without_read_permission_is_a_permission_error(root: Root, base: Path) -> None:
    (base / "x").write_bytes(b"x")
    (base / "x").chmod(0)
    with pytest.raises(PermissionDenied, match="'x': Permission denied"):
        unprivileged(lambda: read.open_file(root, "x"))
    assert unprivileged(lambda: read.exists(root, "x"))


@pytest.mark.parametrize(
    "raw", [b"a\nb", b'"quoted"', b"\xff\xfe", b"sp ace", "ü€".encode(), b"y" * 255, b"\\", b"%2F"]
)
def test_any_name_can_be_read_and_asked_for(root: Root, base: Path, raw: bytes) -> None:
    path = raw.decode("utf-8", "surrogateescape")
    assert not read.exists(root, path)
    with pytest.raises(NotFound) as caught:
        read.open_file(root, path)
    assert caught.value.message.encode("utf-8")  # fit for JSON with any name
    with open(os.fsencode(base) + b"/" + raw, "wb") as f:
        f.write(raw)
    assert read.exists(root, path)
    file = read.open_file(root, path)
    assert (file.name, file.read(0, 1000)) == (path, raw)
    file.close()


def test_a_file_that_became_shorter_is_sent_in_part_and_waits_for_no_room(
    root: Root, base: Path
) -> None:
    (base / "x").write_bytes(b"12345")
    file = read.open_file(root, "x")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert file.send(ours.fileno(), 2, 100) == (3, False)
        assert file.send(ours.fileno(), 5, 100) == (0, False)
        assert theirs.recv(100) == b"345"
    file.close()
