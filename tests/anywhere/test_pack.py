"""image/tree/pack: the archive and the single file."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from tests.anywhere.conftest import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

FILES = {"a": b"program", "folder/b": b"b" * 1000, "folder/c": b"", "z": b"last"}
PACKED = ("archive.tar.zst", "execd")


def pack(place: Path, names: list[str], time: int, owner: int) -> list[bytes]:
    """The archive and the single file of a tree whose files are made in the order of ``names``."""
    tree = place / "tree"
    for name in names:
        file = tree / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(FILES[name])
        file.chmod(0o755 if name == "a" else 0o644)
        os.utime(file, (time, time))
        os.chown(file, owner, owner)
    (tree / "link").symlink_to("a")
    (place / "program").write_bytes(b"program")
    subprocess.run(
        [REPOSITORY / "image/tree/pack", tree, place / "program", *(place / n for n in PACKED)],
        check=True,
    )
    return [(place / name).read_bytes() for name in PACKED]


def test_archives_of_the_same_tree_have_the_same_bytes(tmp_path: Path) -> None:
    first = pack(tmp_path / "a", list(FILES), 1, os.getuid())
    second = pack(tmp_path / "longer", list(reversed(FILES)), 2_000_000_000, 1000)
    assert first == second
