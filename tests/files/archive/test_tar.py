from __future__ import annotations

import contextlib
import io
import tarfile
import tracemalloc
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.errors import InvalidArgument
from execd.files.archive.tar import MAX_EXTENDED_BYTES, TarSource
from execd.files.archive.tree import Member, UnpackingLimits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from execd.files.archive.tree import Tree

END = "end"


class Recorder:
    """Stands for the tree: the calls, with neighbouring pieces of content joined."""

    def __init__(self) -> None:
        self.calls: list[Member | bytes | str] = []

    def begin(self, member: Member) -> None:
        self.calls.append(member)

    def write(self, data: bytes) -> None:
        if isinstance(self.calls[-1], bytes):
            self.calls[-1] += data
        else:
            self.calls.append(data)

    def end(self) -> None:
        self.calls.append(END)

    @property
    def members(self) -> list[Member]:
        return [call for call in self.calls if isinstance(call, Member)]


def source(tree: Recorder) -> TarSource:
    return TarSource(cast("Tree", tree), UnpackingLimits(1 << 30, 1000), is_gzip=False)


def archive(tar_format: int) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tar_format, errors="surrogateescape") as made:
        for name, content in (
            ("short", b"x" * 513),
            ("long/" * 60 + "name", b"content"),
            ("empty", b""),
            ("b" * 99, b"y" * 1024),
        ):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), 1_700_000_000
            made.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "target/" * 40
        made.addfile(link)
    return raw.getvalue()


def unpacked(pieces: Sequence[bytes]) -> Recorder:
    """Raises InvalidArgument, also for an archive without its end mark."""
    tree = Recorder()
    tar = source(tree)
    for piece in pieces:
        tar.feed(piece)
    tar.finish()
    return tree


def cut(data: bytes, step: int) -> list[bytes]:
    return [data[at : at + step] for at in range(0, len(data), step)]


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("step", [1, 7, 511, 512, 513, 1 << 20])
def test_every_cut_gives_the_same_members(tar_format: int, step: int) -> None:
    tree = unpacked(cut(archive(tar_format) + b"whatever follows", step))
    assert [(member.name, member.kind, member.size_bytes) for member in tree.members] == [
        (b"short", "file", 513),
        (b"long/" * 60 + b"name", "file", 7),
        (b"empty", "file", 0),
        (b"b" * 99, "file", 1024),
        (b"link", "symlink", 0),
    ]
    assert tree.members[-1].target == b"target/" * 40
    assert [call for call in tree.calls if isinstance(call, bytes)] == [
        b"x" * 513,
        b"content",
        b"y" * 1024,
    ]
    assert tree.calls.count(END) == 5


def test_an_archive_without_its_end_mark_is_not_complete() -> None:
    with pytest.raises(InvalidArgument, match="ends before its end mark"):
        unpacked(cut(archive(tarfile.PAX_FORMAT)[:5000], 512))


def header(kind: bytes, size: int, content: bytes) -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)


@pytest.mark.parametrize(
    "data",
    [
        header(tarfile.XHDTYPE, MAX_EXTENDED_BYTES + 1, b""),
        header(tarfile.XHDTYPE, 9, b"99 path=x"),
        header(tarfile.XHDTYPE, 9, b"x path=x\n"),
        header(tarfile.XHDTYPE, 8, b"8 path=x"),
        header(tarfile.XHDTYPE, 10, b"10 size=x\n") + header(tarfile.REGTYPE, 0, b""),
        header(tarfile.XHDTYPE, 11, b"11 size=-1\n") + header(tarfile.REGTYPE, 0, b""),
        header(tarfile.XHDTYPE, 22, b"22 GNU.sparse.major=1\n") + header(tarfile.REGTYPE, 0, b""),
        header(tarfile.GNUTYPE_SPARSE, 0, b""),
        header(tarfile.CHRTYPE, 0, b""),
        b"\1" * 512,
    ],
)
def test_what_is_malformed_or_not_for_us_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        source(Recorder()).feed(data)


@given(st.lists(st.binary(max_size=2000)), st.integers(0, 3000), st.binary(min_size=1, max_size=3))
def test_any_bytes_are_members_or_the_one_declared_error(
    chunks: list[bytes], at: int, damage: bytes
) -> None:
    damaged = bytearray(archive(tarfile.PAX_FORMAT))
    damaged[at : at + len(damage)] = damage
    for pieces in (chunks, [bytes(damaged)]):
        with contextlib.suppress(InvalidArgument):
            unpacked(pieces)


def test_the_rest_of_a_chunk_is_not_copied_for_every_header() -> None:
    content = bytes(100 * 1024)
    chunk = header(tarfile.REGTYPE, len(content), content) * 100
    tree = Recorder()
    tar = source(tree)
    tracemalloc.start()
    try:
        tar.feed(chunk)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(tree.calls) == 300
    assert peak_bytes < 1.5 * len(chunk), "the contents, and no copy of the chunk besides"


def record(key: str, value: str) -> bytes:
    """A record of an extended header: its length counts itself."""
    rest = f" {key}={value}\n"
    n_bytes = len(rest)
    while n_bytes != len(str(n_bytes)) + len(rest):
        n_bytes = len(str(n_bytes)) + len(rest)
    return f"{n_bytes}{rest}".encode()


def test_extended_headers_before_a_member_are_not_kept_in_memory() -> None:
    def extended(number: int) -> bytes:
        records = b"".join(record(f"own.{number}.{at}", "x" * 50) for at in range(1000))
        return header(tarfile.XHDTYPE, len(records), records)

    chunks = [extended(number) for number in range(50)]
    tree = Recorder()
    tar = source(tree)
    tracemalloc.start()
    try:
        for chunk in chunks:
            tar.feed(chunk)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 2 * len(chunks[0])
    path = record("path", "named")
    tar.feed(header(tarfile.XHDTYPE, len(path), path) + chunks[0] + header(tarfile.REGTYPE, 0, b""))
    assert [member.name for member in tree.members] == [b"named"]


def test_an_extended_header_of_nothing_but_digits_takes_no_longer_than_others() -> None:
    """tarfile's search for a character set in the header takes a square of the digits: hours."""
    digits = record("SCHILY.xattr.user.x", "1" * 900_000)
    tree = Recorder()
    source(tree).feed(
        header(tarfile.XHDTYPE, len(digits), digits) + header(tarfile.REGTYPE, 0, b"")
    )
    assert len(tree.members) == 1


def test_the_label_of_a_volume_is_passed_over() -> None:
    label, file = header(b"V", 0, b""), header(tarfile.REGTYPE, 3, b"abc")
    tree = unpacked(cut(label + file + bytes(1024), 100))
    assert tree.calls == [*tree.members, b"abc", END]
    assert len(tree.members) == 1
