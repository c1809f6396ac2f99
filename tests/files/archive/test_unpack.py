from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import stat
import struct
import tarfile
import zipfile
from typing import TYPE_CHECKING, Literal

import pytest

from execd.errors import (
    Conflict,
    ExecdError,
    InvalidArgument,
    PayloadTooLarge,
    PermissionDenied,
)
from execd.files import change, search
from execd.files.archive import pack, tree, unpack
from execd.files.archive.tree import UnpackingLimits
from tests.files.conftest import on_small_tmpfs, unprivileged

if TYPE_CHECKING:
    from pathlib import Path

    from execd.files.root import Root
    from execd.model import ArchiveFormat

LIMITS = UnpackingLimits(max_bytes=1 << 30, max_entries=1000)
FORMATS: list[ArchiveFormat] = ["tar", "tar.gz", "zip"]
any_format = pytest.mark.parametrize("kind", FORMATS)


def packed(root: Root, path: str, kind: ArchiveFormat) -> bytes:
    packing = pack.pack(root, path, kind, max_zip_entries=1000)
    try:
        pieces = []
        while data := packing.read():
            pieces.append(data)
        return b"".join(pieces)
    finally:
        packing.close()
        packing.close()


@any_format
@pytest.mark.parametrize("step", [1000, 1 << 20])
def test_what_was_packed_is_unpacked_cut_anywhere(
    root: Root, base: Path, kind: ArchiveFormat, step: int
) -> None:
    (base / "src/sub").mkdir(parents=True)
    (base / "src/sub/x").write_bytes(random.Random(1).randbytes(300_000))
    (base / "src/empty").touch()
    content = packed(root, "src", kind)
    extraction = unpack.unpack(root, "new/out", kind, LIMITS)
    for at in range(0, len(content), step):
        extraction.write(content[at : at + step])
    assert not (base / "new").exists()
    done = extraction.commit()
    extraction.abort()
    assert (done.n_files, done.n_directories, done.n_bytes) == (2, 1, 300_000)
    assert (base / "new/out/sub/x").read_bytes() == (base / "src/sub/x").read_bytes()
    assert sorted(os.listdir(base)) == ["new", "src"]
    assert os.listdir(base / "new") == ["out"]


@any_format
def test_an_abort_leaves_nothing(root: Root, base: Path, kind: ArchiveFormat) -> None:
    (base / "src").mkdir()
    (base / "src/x").write_bytes(bytes(100_000))
    extraction = unpack.unpack(root, "src/below/out", kind, LIMITS)
    extraction.write(packed(root, "src", kind)[:1000])
    assert len(os.listdir(base / "src")) == 2
    extraction.abort()
    extraction.abort()
    assert os.listdir(base / "src") == ["x"]


def test_a_directory_of_the_archive_swapped_for_a_link_leads_nowhere(
    root: Root, base: Path, outside: Path
) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name in ("d/x", "e/x", "d/y"):
            archive.addfile(tarfile.TarInfo(name))
    extraction = unpack.unpack(root, "out", "tar", LIMITS)
    extraction.write(raw.getvalue()[:1024])
    (staging,) = base.iterdir()
    (staging / "d").rename(staging / "aside")
    (staging / "d").symlink_to(outside)
    with pytest.raises(InvalidArgument):
        extraction.write(raw.getvalue()[1024:])
    assert os.listdir(outside) == ["secret"]
    assert os.listdir(base) == []


def test_what_appears_while_it_is_unpacked_is_merged_with(root: Root, base: Path) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("d/x"))
    for blocks_way in (False, True):
        extraction = unpack.unpack(root, f"out{blocks_way}", "tar", LIMITS)
        extraction.write(raw.getvalue())
        (base / f"out{blocks_way}").mkdir()
        (base / f"out{blocks_way}/own").touch()
        if blocks_way:
            (base / f"out{blocks_way}/d").touch()
            with pytest.raises(Conflict):
                extraction.commit()
            assert sorted(os.listdir(base / "outTrue")) == ["d", "own"]
        else:
            extraction.commit()
            assert sorted(os.listdir(base / "outFalse")) == ["d", "own"]
        extraction.abort()


@any_format
def test_a_full_disk_ends_it_with_nothing_left(base: Path, kind: ArchiveFormat) -> None:
    raw = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x", bytes(1_000_000))
    else:
        with tarfile.open(fileobj=raw, mode="w:gz" if kind == "tar.gz" else "w") as tar:
            info = tarfile.TarInfo("x")
            info.size = 1_000_000
            tar.addfile(info, io.BytesIO(bytes(1_000_000)))
    (base.parent / "archive").write_bytes(raw.getvalue())
    script = f"""
import os
from execd.errors import NoSpace
from execd.files.archive import unpack
from execd.files.root import Root
from execd.files.archive.tree import UnpackingLimits as Limits
extraction = unpack.unpack(Root(mount_point), "out", {kind!r}, Limits(1 << 30, 1000))
try:
    extraction.write(open({str(base.parent / "archive")!r}, "rb").read())
    extraction.commit()
except NoSpace:
    result["error"] = "NoSpace"
result["left"] = os.listdir(mount_point)
"""
    assert on_small_tmpfs(base, script) == {"error": "NoSpace", "left": []}


def test_a_zip_that_claims_a_huge_directory_is_refused_before_it_is_read(
    root: Root, base: Path
) -> None:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr("x", b"")
    lying = bytearray(raw.getvalue())
    lying[-10:-6] = b"\xff\xff\xff\x7f"  # bytes of the archive's directory
    extraction = unpack.unpack(root, "out", "zip", LIMITS)
    extraction.write(bytes(lying))
    with pytest.raises(ExecdError) as refused:
        extraction.commit()
    assert refused.value.code in ("PAYLOAD_TOO_LARGE", "INVALID_ARGUMENT")
    assert os.listdir(base) == []


def tarred(*members: tuple[str, bytes, str]) -> bytes:
    """A tar archive. Each member is a name, a type and a link target."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, kind, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kind, target, 0o755
            archive.addfile(info)
    return raw.getvalue()


def unpacked(root: Root, content: bytes, kind: ArchiveFormat = "tar") -> None:
    extraction = unpack.unpack(root, "out", kind, UnpackingLimits(1 << 30, 10_000))
    try:
        extraction.write(content)
        extraction.commit()
    finally:
        extraction.abort()


def test_a_link_that_leads_out_through_another_is_refused(root: Root, base: Path) -> None:
    up = ("a/b/c/up", tarfile.SYMTYPE, "../../..")  # the top itself
    for winding in (("m", "a/b/c/up/../../../x"), ("m", "a/b/c/up/../x"), ("a/m", "b/c/up/../x")):
        with pytest.raises(InvalidArgument, match="leads out"):
            unpacked(root, tarred(up, (winding[0], tarfile.SYMTYPE, winding[1])))
        with pytest.raises(InvalidArgument, match="leads out"):
            unpacked(root, tarred((winding[0], tarfile.SYMTYPE, winding[1]), up))
    assert os.listdir(base) == []
    harmless = ("a/b/../x", "gone/../x", "loop/../x", "a/b/c/up/a/../x", "x" * 300 + "/../x")
    unpacked(
        root,
        tarred(
            up,
            ("loop", tarfile.SYMTYPE, "loop"),
            *((str(n), tarfile.SYMTYPE, to) for n, to in enumerate(harmless)),
        ),
    )
    assert [os.readlink(base / "out" / str(n)) for n in range(len(harmless))] == list(harmless)


def test_a_deep_archive_is_merged_with_itself(root: Root, base: Path) -> None:
    content = tarred(("d/" * 1500 + "x", tarfile.REGTYPE, ""))
    try:
        for _ in range(2):
            unpacked(root, content)
        assert search.search(root, "out", "**/x", limit=10, seconds=20).n_scanned == 1501
    finally:
        change.remove(root, "out", recursive=True)  # pytest could not


@pytest.mark.parametrize("padding", [b"", bytes(100), b"\x1f", b"\0\x1f\x8b"])
def test_members_of_a_gzip_may_be_cut_anywhere(root: Root, base: Path, padding: bytes) -> None:
    whole = tarred(("x", tarfile.REGTYPE, ""), ("y", tarfile.REGTYPE, ""))
    content = gzip.compress(whole[:700]) + gzip.compress(whole[700:]) + padding
    extraction = unpack.unpack(root, "out", "tar.gz", LIMITS)
    for at in range(len(content)):
        extraction.write(content[at : at + 1])
    extraction.commit()
    assert sorted(os.listdir(base / "out")) == ["x", "y"]


@pytest.mark.parametrize("n_missing_bytes", [1, 4, 8])
def test_a_gzip_without_its_whole_trailer_is_refused(
    root: Root, base: Path, n_missing_bytes: int
) -> None:
    """The tar inside is complete: the trailer is the last 8 bytes, a checksum and a length."""
    content = gzip.compress(tarred(("x", tarfile.REGTYPE, "")))
    with pytest.raises(InvalidArgument, match="ends before its end mark"):
        unpacked(root, content[:-n_missing_bytes], "tar.gz")
    assert os.listdir(base) == []


@pytest.mark.parametrize("kind", ["tar", "tar.gz"])
def test_a_tar_without_its_end_mark_is_refused(root: Root, base: Path, kind: ArchiveFormat) -> None:
    """The member is whole, and so is the gzip around a cut tar: only the mark is missing."""
    content = tarred(("x", tarfile.REGTYPE, ""))[: tarfile.BLOCKSIZE]
    with pytest.raises(InvalidArgument, match="ends before its end mark"):
        unpacked(root, gzip.compress(content) if kind == "tar.gz" else content, kind)
    assert os.listdir(base) == []


@any_format
def test_an_archive_is_closed_to_others_until_the_archive_is_in_place(
    root: Root, base: Path, kind: ArchiveFormat
) -> None:
    (base / "src").mkdir()
    (base / "src/x").touch()
    extraction = unpack.unpack(root, "out", kind, LIMITS)
    try:
        extraction.write(packed(root, "src", kind))
        (staging,) = set(os.listdir(base)) - {"src"}
        assert stat.S_IMODE((base / staging).stat().st_mode) == 0o700
        extraction.commit()
    finally:
        extraction.abort()
    assert (base / "out").stat().st_mode == (base / "src").stat().st_mode


def test_the_names_of_directories_in_memory_are_bounded(
    root: Root, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their modes come last, so their names are kept."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name in ("a" * 50, "b" * 50):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o555
            archive.addfile(info)
    monkeypatch.setattr(tree, "MAX_NAMES_BYTES", 99)
    with pytest.raises(PayloadTooLarge, match="names in the archive"):
        unpacked(root, raw.getvalue())
    assert os.listdir(base) == []
    monkeypatch.setattr(tree, "MAX_NAMES_BYTES", 100)
    unpacked(root, raw.getvalue())
    assert len(os.listdir(base / "out")) == 2


def zipped(method: int = zipfile.ZIP_STORED, n_entries: int = 1, content: bytes = b"") -> bytearray:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", method) as archive:
        for number in range(n_entries):
            archive.writestr(str(number), content)
    return bytearray(raw.getvalue())


def refusal(extraction: unpack.Extraction, content: bytes) -> ExecdError:
    extraction.write(content)
    with pytest.raises(ExecdError) as refused:
        extraction.commit()
    assert extraction._tree is not None
    assert extraction._tree.done.n_files == 0, "refused before anything was unpacked"
    return refused.value


def test_a_zip_whose_names_would_fill_the_memory_is_refused(root: Root) -> None:
    plain = zipped(n_entries=1)
    at = plain.rfind(b"PK\x05\x06")
    (offset,) = struct.unpack_from("<L", plain, at + 16)
    n_bytes = (64 << 20) + 1
    end = plain[at : at + 12] + struct.pack("<LL", n_bytes, offset) + bytes(2)
    extraction = unpack.unpack(root, "out", "zip", UnpackingLimits(1 << 30, 1 << 30))
    extraction.write(plain[:at])
    os.ftruncate(extraction._source._file.fileno(), offset + n_bytes)  # type: ignore[union-attr]
    os.lseek(extraction._source._file.fileno(), 0, os.SEEK_END)  # type: ignore[union-attr]
    error = refusal(extraction, bytes(end))
    assert (error.code, error.message) == (
        "PAYLOAD_TOO_LARGE",
        "the names in the archive take more than 64 MiB",
    )


def test_the_ways_to_the_entries_are_bounded(
    root: Root, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "MAX_STEPS", 100)
    deep = ["/".join(letter * 30) for letter in "ab"]
    together = [f"{folder}/{number}" for folder in deep for number in range(50)]
    unpacked(root, tarred(*((name, tarfile.REGTYPE, "") for name in together)))
    in_turn = [f"{folder}/{number}" for number in range(2) for folder in deep]
    with pytest.raises(PayloadTooLarge, match="more than 100 directories"):
        unpacked(root, tarred(*((name, tarfile.REGTYPE, "") for name in in_turn)))
    links = [("x", tarfile.REGTYPE, "")] + [(str(n), tarfile.LNKTYPE, "x") for n in range(200)]
    with pytest.raises(PayloadTooLarge, match="more than 100 directories"):
        unpacked(root, tarred(*((name, kind, target) for name, kind, target in links)))


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_only_a_zip_is_bounded_in_its_entries(
    root: Root, base: Path, kind: Literal["tar", "zip"]
) -> None:
    for number in range(11):
        (base / f"{number}").touch()
    packing = pack.pack(root, "", kind, max_zip_entries=10)
    try:
        if kind == "zip":
            with pytest.raises(ExecdError, match="more than 10 entries, too many for a zip"):
                packing.read()
        else:
            assert packing.read()
    finally:
        packing.close()


def test_entries_of_a_zip_are_counted_where_they_are_read(root: Root, base: Path) -> None:
    limits = UnpackingLimits(max_bytes=1 << 20, max_entries=9)
    plain = zipped(n_entries=10)
    at = plain.rfind(b"PK\x05\x06")
    directory_bytes, offset = struct.unpack_from("<LL", plain, at + 12)
    # If an end record of 64 bits exists, the small end record does not count.
    record = struct.pack(
        "<4sQHHLLQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 10, 10, directory_bytes, offset
    )
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, at, 1)
    one_entry = plain[at : at + 8] + struct.pack("<HHLL", 1, 1, 46, 0) + bytes(2)
    # Here the offset of the directory has the bytes of an end record, behind the true end record.
    shifted = struct.unpack("<L", b"PK\x05\x06")[0]
    signed = plain[at : at + 16] + struct.pack("<L", shifted) + bytes(2)
    for content in (plain, plain[:at] + record + locator + one_entry):
        assert (
            refusal(unpack.unpack(root, "out", "zip", limits), bytes(content)).code
            == "PAYLOAD_TOO_LARGE"
        )
    extraction = unpack.unpack(root, "out", "zip", limits)
    extraction.write(plain[:offset])
    os.ftruncate(extraction._source._file.fileno(), shifted)  # type: ignore[union-attr]  # a hole instead of 100 MB sent
    os.lseek(extraction._source._file.fileno(), 0, os.SEEK_END)  # type: ignore[union-attr]
    assert refusal(extraction, bytes(plain[offset:at] + signed)).code == "PAYLOAD_TOO_LARGE"
    assert os.listdir(base) == []


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_ways_to_compress_that_cannot_be_bounded_are_refused(
    root: Root, base: Path, method: int
) -> None:
    for content in (zipped(method, content=b"x" * 1000), zipped(method, content=bytes(50 << 20))):
        error = refusal(unpack.unpack(root, "out", "zip", LIMITS), bytes(content))
        assert (error.code, "deflate" in error.message) == ("INVALID_ARGUMENT", True)
    assert os.listdir(base) == []


def test_a_zip_without_dates_is_unpacked(root: Root, base: Path) -> None:
    raw = zipped(content=b"hi")
    for at in (raw.find(b"PK\x03\x04") + 10, raw.find(b"PK\x01\x02") + 12):
        raw[at : at + 4] = bytes(4)
    extraction = unpack.unpack(root, "out", "zip", LIMITS)
    extraction.write(bytes(raw))
    extraction.commit()
    assert (base / "out/0").read_bytes() == b"hi"


def test_a_file_that_becomes_shorter_ends_the_archive(root: Root, base: Path) -> None:
    (base / "d").mkdir()
    (base / "d/x").write_bytes(bytes(2 << 20))
    packing = pack.pack(root, "d", "tar", max_zip_entries=0)
    assert packing.read()
    os.truncate(base / "d/x", 10)
    with pytest.raises(Conflict):
        list(iter(packing.read, b""))
    packing.close()


@any_format
def test_an_archive_may_have_as_many_bytes_as_are_allowed(
    root: Root, base: Path, kind: ArchiveFormat
) -> None:
    (base / "src").mkdir()
    (base / "src/a").write_bytes(bytes(100))
    (base / "src/b").touch()
    content = packed(root, "src", kind)
    extraction = unpack.unpack(root, "out", kind, UnpackingLimits(max_bytes=100, max_entries=10))
    extraction.write(content)
    assert extraction.commit().n_bytes == 100
    assert sorted(os.listdir(base / "out")) == ["a", "b"]


def test_a_zip_has_as_many_entries_as_are_allowed(root: Root, base: Path) -> None:
    """The folder is no entry of its own archive."""
    (base / "src").mkdir()
    for name in ("x", "y", "z"):
        (base / "src" / name).touch()

    def names(max_zip_entries: int) -> list[str]:
        packing = pack.pack(root, "src", "zip", max_zip_entries=max_zip_entries)
        try:
            content = b"".join(iter(packing.read, b""))
        finally:
            packing.close()
        return zipfile.ZipFile(io.BytesIO(content)).namelist()

    assert names(3) == ["x", "y", "z"]
    with pytest.raises(Conflict, match="more than 2 entries"):
        names(2)


@pytest.mark.parametrize("kind", [None, "tar", "zip"])
@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("tar.bz2", bz2.compress(tarred(("x", tarfile.REGTYPE, "")))),
        ("tar.xz", lzma.compress(tarred(("x", tarfile.REGTYPE, "")))),
        ("tar.zst", bytes.fromhex("28b52ffd0458") + bytes(1000)),
        ("7z", b"7z\xbc\xaf\x27\x1c" + bytes(1000)),
        ("rar", b"Rar!\x1a\x07\x01\0" + bytes(1000)),
    ],
)
def test_an_archive_of_another_format_is_named_with_the_formats_to_send(
    root: Root, base: Path, kind: ArchiveFormat | None, name: str, head: bytes
) -> None:
    extraction = unpack.unpack(root, "out", kind, LIMITS)
    extraction.write(head[:7])
    with pytest.raises(InvalidArgument, match=f"is a {name}; send a tar, tar.gz or zip"):
        extraction.write(head[7:])
    assert os.listdir(base) == []


def test_an_old_tar_may_begin_with_the_name_of_another_format(root: Root, base: Path) -> None:
    old = bytearray(tarred(("BZh9", tarfile.REGTYPE, "")))
    old[148:156], old[257:265] = b"        ", bytes(8)  # without the mark of a tar
    old[148:156] = b"%06o\0 " % sum(old[:512])
    extraction = unpack.unpack(root, "out", None, LIMITS)
    extraction.write(bytes(old))
    extraction.commit()
    assert os.listdir(base / "out") == ["BZh9"]


@pytest.mark.parametrize(
    ("kind", "headers"),
    [(tarfile.GNUTYPE_SPARSE, {}), (tarfile.REGTYPE, {"GNU.sparse.major": "1"})],
)
def test_a_sparse_file_in_an_archive_is_refused_with_the_way_out(
    root: Root, base: Path, kind: bytes, headers: dict[str, str]
) -> None:
    """Both forms of GNU tar: its own, and with --format=posix."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("hole")
        info.type, info.pax_headers = kind, headers
        archive.addfile(info)
    with pytest.raises(InvalidArgument, match=r"'hole' .* without --sparse"):
        unpacked(root, raw.getvalue())
    assert os.listdir(base) == []


@any_format
def test_the_error_of_an_archive_names_the_file_that_cannot_be_read(
    root: Root, base: Path, kind: ArchiveFormat
) -> None:
    (base / "src/in").mkdir(parents=True)
    (base / "src/in/closed").mkdir(mode=0)
    with pytest.raises(PermissionDenied, match="'src/in/closed'"):
        unprivileged(lambda: packed(root, "src", kind))
    (base / "src/in/closed").rmdir()
    (base / "src/in/x").touch(mode=0)
    with pytest.raises(PermissionDenied, match="'src/in/x'"):
        unprivileged(lambda: packed(root, "src", kind))
