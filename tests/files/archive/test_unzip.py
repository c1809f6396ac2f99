from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING

import pytest

from execd.errors import InvalidArgument
from execd.files.archive import pack, unpack
from execd.files.archive.tree import UnpackingLimits

if TYPE_CHECKING:
    from pathlib import Path

    from execd.files.root import Root

DOS, UNIX, NTFS, MACOS = 0, 3, 10, 19


def archive(name: bytes, system: int, extra: bytes = b"", *, is_flagged: bool = False) -> bytes:
    """A zip of one file whose name is stored as ``name``, by a program on ``system``."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as made:
        info = zipfile.ZipInfo(("ü" if is_flagged else "") + "x" * (len(name) - 2 * is_flagged))
        info.create_system, info.extra = system, extra
        made.writestr(info, "hi")
    stored = info.filename.encode()
    assert raw.getvalue().count(stored) == 2
    return raw.getvalue().replace(stored, name)


def unicode_path(name: str, stored: bytes) -> bytes:
    """The field 0x7075, as Info-ZIP and 7-Zip on Windows write it."""
    field = b"\1" + struct.pack("<L", zlib.crc32(stored)) + name.encode()
    return struct.pack("<HH", 0x7075, len(field)) + field


def unpacked(root: Root, base: Path, content: bytes) -> list[str]:
    extraction = unpack.unpack(root, "out", "zip", UnpackingLimits(1 << 30, 1000))
    extraction.write(content)
    extraction.commit()
    return sorted(str(path.relative_to(base / "out")) for path in (base / "out").rglob("*"))


OEM = "naïve.txt".encode("cp437")


@pytest.mark.parametrize(
    ("stored", "system", "extra", "names"),
    [
        ("naïve 日本.txt".encode(), UNIX, b"", ["naïve 日本.txt"]),
        ("naïve.txt".encode(), MACOS, b"", ["naïve.txt"]),
        (b"caf\xe9", UNIX, b"", ["caf\udce9"]),
        (b"back\\slash", UNIX, b"", ["back\\slash"]),
        (OEM, DOS, b"", ["naïve.txt"]),
        (OEM, NTFS, b"", ["naïve.txt"]),
        (b"??.txt", NTFS, unicode_path("日本.txt", b"??.txt"), ["日本.txt"]),
        (b"??.txt", NTFS, b"\x99\x99\1\0x" + unicode_path("日", b"??.txt"), ["日"]),
        (b"??.txt", NTFS, unicode_path("renamed", b"other"), ["??.txt"]),
        (b"a\\b\\c.txt", DOS, b"", ["a", "a/b", "a/b/c.txt"]),
        (b"a/b\\c.txt", DOS, b"", ["a", "a/b\\c.txt"]),
        (b"a\\b\\", NTFS, b"", ["a", "a/b"]),
    ],
)
def test_names_in_a_zip_are_those_that_its_program_meant(
    root: Root, base: Path, stored: bytes, system: int, extra: bytes, names: list[str]
) -> None:
    assert unpacked(root, base, archive(stored, system, extra)) == names


def test_a_name_marked_as_utf_8_is_utf_8_on_every_system(root: Root, base: Path) -> None:
    for system in (DOS, UNIX, NTFS):
        content = archive("ü/日本.txt".encode(), system, is_flagged=True)
        assert unpacked(root, base, content) == ["ü", "ü/日本.txt"]


@pytest.mark.parametrize("name", [b"..\\x", b"a\\..\\..\\x", b"\\x"])
def test_a_name_of_windows_that_leads_out_is_refused(root: Root, base: Path, name: bytes) -> None:
    with pytest.raises(InvalidArgument, match="in the archive"):
        unpacked(root, base, archive(name, DOS))
    assert os.listdir(base) == []


def test_names_in_a_zip_keep_bytes_that_are_no_utf_8(root: Root, base: Path) -> None:
    names = [b"caf\xe9", b"caf\\xe9", "café".encode(), "日\n".encode(), b"\xff\xfe"]
    (base / "src").mkdir()
    for name in names:
        (base / "src" / os.fsdecode(name)).write_bytes(name)
    (base / "src" / os.fsdecode(b"dir\xe9")).mkdir()
    packing = pack.pack(root, "src", "zip", max_zip_entries=1000)
    content = b"".join(iter(packing.read, b""))
    packing.close()
    unpacked(root, base, content)
    for name in names:
        assert (base / "out" / os.fsdecode(name)).read_bytes() == name
    assert sorted(os.listdir(bytes(base / "out"))) == sorted([*names, b"dir\xe9"])
    entries = zipfile.ZipFile(io.BytesIO(content)).infolist()
    flags = {info.filename: info.flag_bits & 1 << 11 for info in entries}
    assert flags["café"] == flags["日\n"] == 1 << 11, "other programs read these as UTF-8"
