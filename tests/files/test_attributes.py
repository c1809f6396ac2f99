"""Extended attributes of new files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from execd.files.attributes import read_attributes, set_attributes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_PATH)
    yield fd
    os.close(fd)


def test_attributes_are_read_below_a_directory_and_from_a_descriptor(
    directory: int, tmp_path: Path
) -> None:
    with (tmp_path / "f").open("wb") as file:
        assert set_attributes(file.fileno(), {"user.x.a": b"1", "user.y": b""})
        assert read_attributes(file.fileno(), b"", "user.") == {"user.x.a": b"1", "user.y": b""}
    assert read_attributes(directory, b"f", "user.x.") == {"user.x.a": b"1"}


def test_link_below_a_directory_is_not_followed(directory: int, tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as file:
        set_attributes(file.fileno(), {"user.a": b"1"})
    os.symlink("f", tmp_path / "link")
    assert read_attributes(directory, b"link", "user.") == {}


def test_missing_file_has_no_attributes(directory: int) -> None:
    assert read_attributes(directory, b"missing", "user.") == {}


def test_a_file_gets_all_attributes_or_none(tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as file:
        assert not set_attributes(file.fileno(), {"user.a": b"1", "user." + "b" * 300: b""})
        assert read_attributes(file.fileno(), b"", "user.") == {}


def test_attributes_beyond_the_limit_are_left_out(tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as file:
        os.setxattr(file.fileno(), "user.a", b"x" * 1000)
        os.setxattr(file.fileno(), "user.b", b"y")
        assert set(read_attributes(file.fileno(), b"", "user.", limit_bytes=2)) == {"user.b"}
        assert set(read_attributes(file.fileno(), b"", "user.")) == {"user.a", "user.b"}
