from __future__ import annotations

import hashlib
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from execd.engine.files import transfers
from execd.engine.files.threads import FileThreads
from execd.engine.files.transfers import OpenedFile, PackedUpload, Places
from execd.errors import Conflict
from execd.files.read import RegularFile
from execd.proc.spawn import KEEP_IDENTITY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def threads() -> Iterator[FileThreads]:
    made = FileThreads(KEEP_IDENTITY)
    yield made
    made.close()
    made._executor.shutdown(wait=True)


async def test_an_upload_gives_back_no_place_that_it_has_not_taken(threads: FileThreads) -> None:
    places = Places(1, "no place")
    extraction = cast("Any", SimpleNamespace(abort=lambda: None))
    async with PackedUpload(threads, extraction, 0, places):
        pass
    await places.take()
    assert places._places.locked(), "there was one place"


@pytest.mark.parametrize("size_bytes", [1, 4, 5, 12, 13])
async def test_a_digest_is_that_of_all_pieces_of_the_file(
    tmp_path: Path, threads: FileThreads, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    monkeypatch.setattr(transfers, "HASHED_AT_ONCE_BYTES", 4)
    content = bytes(range(size_bytes))
    (tmp_path / "file").write_bytes(content)
    fd = os.open(tmp_path / "file", os.O_RDONLY | os.O_CLOEXEC)
    async with OpenedFile(threads, RegularFile(fd, "file")) as file:
        assert await file.sha256() == hashlib.sha256(content).digest()


async def test_a_digest_is_that_of_the_size_at_the_beginning(
    tmp_path: Path, threads: FileThreads
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"first")
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    async with OpenedFile(threads, RegularFile(fd, "file")) as file:
        with path.open("ab") as log:
            log.write(b"and more")
        assert await file.sha256() == hashlib.sha256(b"first").digest()
        os.truncate(path, 3)
        with pytest.raises(Conflict, match="became shorter"):
            await file.sha256()
