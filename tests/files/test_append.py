from __future__ import annotations

import fcntl
import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from execd.errors import (
    Conflict,
    InvalidArgument,
    PayloadTooLarge,
    PermissionDenied,
    PreconditionFailed,
)
from execd.files import append, read
from execd.files.write import PLAINLY, Writing
from execd.model import Precondition
from tests.files.conftest import on_small_tmpfs

if TYPE_CHECKING:
    from pathlib import Path

    from execd.files.root import Root


def extend(
    root: Root, path: str, data: bytes, how: Writing = PLAINLY, offset: int | None = None
) -> str:
    extension = append.extend(root, path, how, offset=offset)
    try:
        extension.write(data)
        return extension.commit()
    finally:
        extension.abort()


def test_appends_go_to_the_end_wherever_it_is(root: Root, base: Path) -> None:
    first, second = append.extend(root, "a/x"), append.extend(root, "a/x")
    first.write(b"1")
    second.write(b"2")
    first.write(b"3")
    for extension in (first, second):
        extension.commit()
        extension.abort()
    assert (base / "a/x").read_bytes() == b"123"


def test_the_tag_after_it_is_that_of_the_file(root: Root) -> None:
    tag = extend(root, "x", b"1")
    file = read.open_file(root, "x")
    assert file.etag == tag
    file.close()


def test_an_offset_must_be_the_end(root: Root, base: Path) -> None:
    with pytest.raises(Conflict) as refused:
        append.extend(root, "x", offset=3)
    assert refused.value.details == {"size_bytes": 0}
    assert not (base / "x").exists()
    extend(root, "x", b"123", offset=0)
    with pytest.raises(Conflict) as refused:
        append.extend(root, "x", offset=2)
    assert refused.value.details == {"size_bytes": 3}
    extend(root, "x", b"45", offset=3)
    assert (base / "x").read_bytes() == b"12345"


def test_two_uploads_at_one_offset_never_mix(root: Root) -> None:
    first = append.extend(root, "x", offset=0)
    with pytest.raises(Conflict, match="under way"):
        append.extend(root, "x", offset=0)
    first.abort()
    append.extend(root, "x", offset=0).abort()


def test_a_lock_of_user_code_is_a_conflict_and_not_a_wait(root: Root, base: Path) -> None:
    with open(base / "x", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(Conflict):
            append.extend(root, "x", offset=0)


def test_a_digest_that_does_not_match_takes_back_this_piece_only(root: Root, base: Path) -> None:
    extend(root, "x", b"first ", offset=0)
    with pytest.raises(InvalidArgument) as refused:
        extend(
            root,
            "x",
            b"damaged",
            Writing(sha256=hashlib.sha256(b"first second").digest()),
            offset=6,
        )
    assert refused.value.details["sha256"] == hashlib.sha256(b"first damaged").hexdigest()
    assert (base / "x").read_bytes() == b"first "


def test_a_piece_over_the_limit_is_not_written(root: Root, base: Path) -> None:
    extension = append.extend(root, "x", Writing(max_bytes=5))
    extension.write(b"12345")
    with pytest.raises(PayloadTooLarge):
        extension.write(b"6")
    extension.abort()
    assert (base / "x").read_bytes() == b"12345"


def test_conditions_are_judged_before_anything_is_written(root: Root, base: Path) -> None:
    with pytest.raises(PreconditionFailed):
        append.extend(root, "new/x", Writing(precondition=Precondition(match="*")))
    assert not (base / "new").exists()
    extend(root, "x", b"1")
    with pytest.raises(PreconditionFailed):
        append.extend(root, "x", Writing(precondition=Precondition(none_match="*")))


def test_links_are_followed_inside_and_refused_outside(
    root: Root, base: Path, outside: Path
) -> None:
    (base / "x").write_bytes(b"1")
    (base / "link").symlink_to("x")
    (base / "out").symlink_to(outside / "secret")
    extend(root, "link", b"2")
    assert (base / "x").read_bytes() == b"12"
    with pytest.raises(PermissionDenied):
        append.extend(root, "out")
    assert (outside / "secret").read_bytes() == b"secret"


def test_what_is_no_regular_file_is_refused_at_once(root: Root, base: Path) -> None:
    os.mkfifo(base / "fifo")
    (base / "d").mkdir()
    for path in ("fifo", "d", "fifo/x"):
        with pytest.raises(InvalidArgument):
            append.extend(root, path)


def test_a_full_disk_keeps_what_fits(base: Path) -> None:
    script = """
import os
from execd.errors import NoSpace
from execd.files import append
from execd.files.root import Root
root = Root(mount_point)
extension = append.extend(root, "x", offset=0)
try:
    for _ in range(100):
        extension.write(bytes(8192))
except NoSpace:
    result["error"] = "NoSpace"
extension.abort()
result["resumable_at"] = os.stat(mount_point + "/x").st_size
extension = append.extend(root, "x", offset=result["resumable_at"])
extension.abort()
"""
    result = on_small_tmpfs(base, script)
    assert result["error"] == "NoSpace"
    assert 0 < result["resumable_at"] <= 256 * 1024
