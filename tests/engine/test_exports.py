"""Exports of changes, while files change and callers leave."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from execd.engine.exports import ExportFormat, export
from execd.errors import Conflict, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.engine.engine import Engine
    from execd.engine.exports import Export

KINDS: tuple[ExportFormat, ...] = ("patch", "tar", "tar.gz")


@pytest.fixture
async def base(engine: Engine) -> Path:
    """A base dir with a checkpoint ``one``, after which ``folder``/``file`` changed."""
    base = Path(engine.config.base_dir)
    (base / "folder").mkdir()
    (base / "folder/file").write_text("old\n")
    await engine.checkpoints.create("one", ["."])
    (base / "folder/file").write_text("newer\n")
    return base


async def whole(exported: Export) -> bytes:
    found = b""
    async with exported:
        while data := await exported.read():
            found += data
    return found


def swap_folder(base: Path) -> None:
    (base / "folder").rename(base / "moved")
    (base / "folder").symlink_to("moved")


MEANWHILE: dict[str, Callable[[Path], object]] = {
    "written": lambda base: (base / "folder/file").write_text("newest\n"),
    "removed": lambda base: (base / "folder/file").unlink(),
    "replaced by a link": lambda base: (
        (base / "folder/file").unlink(),
        (base / "folder/file").symlink_to("/etc/passwd"),
    ),
    "replaced by a FIFO": lambda base: (
        (base / "folder/file").unlink(),
        os.mkfifo(base / "folder/file"),
    ),
    "in a directory that became a link": swap_folder,
    "in a directory that is gone": lambda base: shutil.rmtree(base / "folder"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", MEANWHILE)
async def test_export_of_a_file_that_changes_meanwhile_is_a_conflict(
    engine: Engine, base: Path, change: str, kind: ExportFormat
) -> None:
    exported = await export(engine.checkpoints, "one", kind, None)
    MEANWHILE[change](base)
    with pytest.raises(Conflict, match=r"changed meanwhile|is gone; repeat"):
        await whole(exported)


async def test_patch_of_a_checkpoint_that_is_deleted_meanwhile_fails(
    engine: Engine, base: Path
) -> None:
    exported = await export(engine.checkpoints, "one", "patch", None)
    await engine.checkpoints.delete("one")
    with pytest.raises((Conflict, NotFound)):
        await whole(exported)


@pytest.mark.parametrize("kind", KINDS)
async def test_export_whose_caller_leaves_closes_its_files(
    engine: Engine, base: Path, kind: ExportFormat
) -> None:
    (base / "large").write_bytes(os.urandom(1 << 20))
    exported = await export(engine.checkpoints, "one", kind, None)
    before = set(os.listdir("/proc/self/fd"))
    reading = asyncio.create_task(_read_once(exported))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait((reading,))
    assert set(os.listdir("/proc/self/fd")) <= before


async def _read_once(exported: Export) -> None:
    async with exported:
        await exported.read()


async def test_export_after_the_end_of_the_engine_leaves_nothing(
    engine: Engine, base: Path
) -> None:
    exported = await export(engine.checkpoints, "one", "tar", None)
    async with exported:
        engine.checkpoints.close()
