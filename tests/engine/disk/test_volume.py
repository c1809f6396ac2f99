from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from execd.engine.disk import volume as volumes
from execd.engine.disk.volume import Volume, Volumes
from execd.errors import NoSpace

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
LIMIT = 8 * MIB  # of these 7 MiB can be used


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    (tmp_path / "base").mkdir()
    return Volume("base_dir_bytes", str(tmp_path / "base"), LIMIT)


def write(volume: Volume, name: str, mib: int) -> None:
    with open(os.path.join(volume.path, name), "wb") as file:
        file.write(bytes(mib * MIB))


def test_room_is_what_the_files_leave(volume: Volume) -> None:
    assert tuple(volume.facts().values()) == (LIMIT, MIB, None)
    write(volume, "file", 5)
    volume.take(MIB)
    write(volume, "upload", 1)
    with pytest.raises(NoSpace, match="holds 6 MiB of the allowed 8 MiB"):
        volume.take(MIB + 1)
    assert (volume.facts()["used_bytes"] or 0) >= 6 * MIB


def test_removed_files_are_room_again_at_once(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(volume, "file", 6)
    with pytest.raises(NoSpace):
        volume.take(2 * MIB)
    os.unlink(os.path.join(volume.path, "file"))
    monkeypatch.setattr(volume, "_walk_seconds", 0.0)  # the pause that the walk before asks for
    volume.take(6 * MIB)


def test_a_directory_that_is_gone_limits_nothing(tmp_path: Path) -> None:
    """The write itself tells what is wrong."""
    Volume("tmp_dir_bytes", str(tmp_path / "none"), LIMIT).take(100 * MIB)


def test_a_file_system_of_its_own_is_walked_without_a_walk_over_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard reads what each tree has written at each walk, so not each look is a walk."""
    monkeypatch.setattr(volumes.disk_usage, "count", None)
    volume = Volume("base_dir_bytes", str(tmp_path), 1 << 62)
    assert volume.look().needs_walk
    volume.walk()
    used_bytes, _ = volumes.disk_usage.file_system_bytes(str(tmp_path))
    assert abs((volume.facts()["used_bytes"] or 0) - used_bytes) < 1 << 30
    assert not volume.look().needs_walk


def test_an_upload_waits_only_so_long_for_a_walk(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volumes, "UPLOAD_WALK_SECONDS", 0.01)
    with volume._walking, pytest.raises(NoSpace):
        volume.take(1)


def test_a_closed_volume_keeps_the_figures_of_its_last_walk(volume: Volume) -> None:
    volume.look()
    volume.walk()
    write(volume, "file", 3)
    volume.close()
    volume.walk()
    assert (volume.facts()["used_bytes"] or 0) < MIB


def test_each_file_belongs_to_the_innermost_guarded_directory(tmp_path: Path) -> None:
    inner = tmp_path / "outer/inner"
    inner.mkdir(parents=True)
    (tmp_path / "outer/inner-too").mkdir()
    (tmp_path / "link").symlink_to(inner)
    both = Volumes(
        [
            Volume("tmp_dir_bytes", str(tmp_path / "outer"), LIMIT),
            Volume("base_dir_bytes", str(tmp_path / "link"), LIMIT),
        ]
    )
    found = {}
    for path in (tmp_path, tmp_path / "outer", inner, tmp_path / "outer/inner-too"):
        fd = os.open(path, os.O_PATH)
        room = both.of(fd)
        assert room is None or isinstance(room, Volume)
        found[path.name] = room and room.setting
        os.close(fd)
    assert found == {
        tmp_path.name: None,
        "outer": "tmp_dir_bytes",
        "inner": "base_dir_bytes",
        "inner-too": "tmp_dir_bytes",
    }
