"""What a scan takes over from a former one, and what it reads again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from execd.errors import Conflict, PayloadTooLarge
from execd.files.checkpoints import scan as module
from execd.files.checkpoints.crew import Crew
from execd.files.checkpoints.scan import (
    TICK_NS,
    Scanning,
    begin,
    is_told_by_ctime,
    scan,
)
from execd.files.resolve import Forbidden
from tests.files.checkpoints.conftest import Desk, settle
from tests.files.conftest import on_small_tmpfs, unprivileged
from tests.gvisor import is_gvisor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOW = Scanning(Forbidden(frozenset(), frozenset()), Crew())
WRONG = b"w" * 32
"""A digest that only a former manifest can have."""


@pytest.fixture
def top(base: Path) -> Iterator[int]:
    (base / "file").write_text("content")
    fd = os.open(base, os.O_PATH)
    yield fd
    os.close(fd)


def digest_again(top: int, began_ns: int) -> bytes:
    """The digest of the file in a scan after a former one with a wrong digest."""
    former = scan(top, "/base", HOW)
    entries = [replace(each, digest=WRONG) if each.digest else each for each in former.entries]
    again = scan(top, "/base", HOW, replace(former, entries=entries, began_ns=began_ns))
    [found] = [each.digest for each in again.entries if each.type == "file"]
    return found


def test_a_digest_is_taken_over_only_from_files_older_than_the_scan(top: int, base: Path) -> None:
    changed_ns = (base / "file").stat().st_ctime_ns
    assert digest_again(top, changed_ns + TICK_NS + 1) == WRONG
    for began_ns in (0, changed_ns, changed_ns + TICK_NS):
        assert digest_again(top, began_ns) != WRONG


@pytest.mark.parametrize(
    "change",
    [
        lambda base: (base / "file").chmod(0o600),
        lambda base: os.utime(base / "file", ns=(0, 0)),
        lambda base: (base / "file").write_text("CONTENT"),
        lambda base: (
            (base / "file").rename(base / "other") and (base / "other").rename(base / "file")
        ),
        lambda base: os.link(base / "file", base / "link"),
    ],
)
def test_any_change_of_a_file_has_it_read_again(top: int, base: Path, change: object) -> None:
    former = scan(top, "/base", HOW)
    settle()
    former = replace(
        former,
        entries=[replace(each, digest=WRONG) if each.digest else each for each in former.entries],
        began_ns=begin(top),
    )
    assert callable(change)
    change(base)
    digests = {each.digest for each in scan(top, "/base", HOW, former).entries if each.digest}
    assert WRONG not in digests


@pytest.mark.parametrize("is_open", [False, True])
def test_file_that_was_open_for_writing_is_read_again(
    top: int, base: Path, *, is_open: bool
) -> None:
    """A write sets ctime when it begins, and may end after the checkpoint."""
    settle()
    how = HOW._replace(is_kept=True)
    with open(base / "file", "r+b" if is_open else "rb"):
        former = scan(top, "/base", how)
    [kept] = [each for each in former.entries if each.type == "file"]
    assert kept.digest, "the file was read"
    former = replace(former, entries=[replace(kept, digest=WRONG)], began_ns=begin(top))
    [found] = [each for each in scan(top, "/base", HOW, former).entries if each.type == "file"]
    if is_open and not is_gvisor():  # which gives no leases: only ``stat`` believes ctime there
        assert (found.digest, found.changed_ns) == (
            kept.digest,
            (base / "file").stat().st_ctime_ns,
        )
    else:
        assert found.digest == WRONG, "a quiet file is taken over"


def test_a_tmpfs_does_not_tell_writes_by_ctime(tmp_path: Path) -> None:
    result = on_small_tmpfs(
        tmp_path,
        "import os; from execd.files.checkpoints.scan import is_told_by_ctime\n"
        "result['told'] = is_told_by_ctime(os.open(mount_point, os.O_PATH))",
    )
    assert result == {"told": False}


def test_a_told_write_to_a_mapping_changes_ctime(
    top: int, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file system says that it tells, it tells for the file of a test too."""
    import mmap

    monkeypatch.setattr(module, "_exchanges_contents", lambda _: False)
    if not is_told_by_ctime(top):
        return  # gVisor, or a tmpfs: all contents are read
    with open(base / "file", "r+b") as file, mmap.mmap(file.fileno(), 0) as page:
        page[0] = 1
        began_ns = begin(top)
        before = os.fstat(file.fileno()).st_ctime_ns
        settle()
        page[0] = 2
        after = os.fstat(file.fileno()).st_ctime_ns
        assert after != before
        assert after > began_ns - TICK_NS


def test_a_tree_past_the_bound_of_a_manifest_is_no_manifest(
    top: int, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_MANIFEST_BYTES", 5000)
    for number in range(10):
        (base / f"{number}").touch()
    with pytest.raises(PayloadTooLarge, match="'/base' has too many files"):
        scan(top, "/base", HOW)


def test_a_file_that_keeps_changing_is_a_trouble(
    top: int, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: object) -> bytes:
        (base / "file").write_bytes(os.urandom(20))
        settle()
        return WRONG

    monkeypatch.setattr(module, "digest_of", write)
    [found] = [each for each in scan(top, "/base", HOW).entries if each.type == "file"]
    assert (found.digest, found.trouble) == (b"", "changed while it was read")


@pytest.mark.root
def test_a_closed_directory_of_another_user_is_watched_by_its_ctime(desk: Desk, base: Path) -> None:
    closed = base / "closed"
    closed.mkdir(mode=0o700)
    (closed / "inside").write_text("of another user")
    os.chown(closed, 1234, 1234)
    with pytest.raises(Conflict, match="closed': Permission denied"):
        unprivileged(desk.create)
    closed.chmod(0o711)
    with pytest.raises(Conflict, match="closed': Permission denied"):
        unprivileged(lambda: desk.create([], ["."]))  # what is inside can be reached by its name
    closed.chmod(0o700)
    unprivileged(lambda: desk.create([], ["."]))
    assert unprivileged(lambda: desk.verify("content")).n_differences == 0
    assert unprivileged(desk.kinds) == {}
    settle()
    (closed / "more").touch()
    assert unprivileged(desk.kinds) == {"closed": "modified"}
    assert unprivileged(desk.verify).n_differences == 1
    (closed / "more").unlink()
    closed.chmod(0o755)
    assert unprivileged(desk.kinds) == {"closed": "modified", "closed/inside": "created"}
