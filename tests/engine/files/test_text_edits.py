from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from execd.engine.files import text_edits
from execd.engine.files.service import Files
from execd.engine.files.text_edits import Replacement, read_lines, replace_text
from execd.errors import NotFound, PayloadTooLarge

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    made = Files(str(tmp_path))
    yield made
    made.close()


async def lines(files: Files, first: int, count: int | None) -> bytes:
    async with await files.open("f") as file:
        return await read_lines(file, first, count)


LINES = st.lists(st.sampled_from(["", "a", "bb\r", "ccc"]), max_size=8)


@settings(suppress_health_check=list(HealthCheck))
@given(LINES, st.integers(1, 10), st.none() | st.integers(1, 10), st.booleans())
async def test_lines_are_those_of_splitlines(
    files: Files, tmp_path: Path, text: list[str], first: int, count: int | None, ends: bool
) -> None:
    (tmp_path / "f").write_bytes(("\n".join(text) + "\n" * ends).encode())
    all_lines = (tmp_path / "f").read_bytes().split(b"\n")
    if all_lines[-1] == b"":
        all_lines.pop()
    wanted = all_lines[first - 1 : None if count is None else first - 1 + count]
    assert await lines(files, first, count) == b"\n".join(one.removesuffix(b"\r") for one in wanted)


async def test_lines_across_reads_are_whole(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_edits, "READ_AT_ONCE_BYTES", 3)
    (tmp_path / "f").write_bytes(b"first\nsecond\nthird\n")
    assert await lines(files, 2, 1) == b"second"
    assert await lines(files, 2, None) == b"second\nthird"


async def test_replacement_keeps_the_mode_and_counts(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"aaa\xff")
    path.chmod(0o751)
    assert await replace_text(files, "f", Replacement(b"aa", b"b")) == 1
    assert path.read_bytes() == b"ba\xff"
    assert path.stat().st_mode & 0o777 == 0o751


async def test_file_without_the_text_is_not_written(files: Files, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    before = (tmp_path / "f").stat()
    assert await replace_text(files, "f", Replacement(b"x", b"y")) == 0
    after = (tmp_path / "f").stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )


async def test_large_texts_and_missing_files_are_refused(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_edits, "MAX_TEXT_BYTES", 10)
    (tmp_path / "f").write_bytes(b"a\n" * 5)
    with pytest.raises(PayloadTooLarge):
        await replace_text(files, "f", Replacement(b"a", b"bb"))
    assert (tmp_path / "f").read_bytes() == b"a\n" * 5
    (tmp_path / "f").write_bytes(b"a\n" * 6)
    with pytest.raises(PayloadTooLarge):
        await replace_text(files, "f", Replacement(b"x", b"y"))
    with pytest.raises(PayloadTooLarge):
        await lines(files, 1, None)
    with pytest.raises(NotFound):
        await replace_text(files, "no", Replacement(b"x", b"y"))
