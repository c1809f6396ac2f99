from __future__ import annotations

import io
import tarfile
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.errors import InvalidArgument
from execd.files.archive.tar import MAX_EXTENDED_BYTES, Event, Member, MemberEnd, TarDecoder


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


def joined(events: list[Event]) -> list[Event]:
    """Join neighbouring pieces of content: the decoder may cut content anywhere."""
    found: list[Event] = []
    for event in events:
        if isinstance(event, bytes) and found and isinstance(found[-1], bytes):
            found[-1] += event
        else:
            found.append(event)
    return found


def decode(data: bytes, step: int) -> tuple[list[Event], bool]:
    decoder = TarDecoder()
    events = [
        event for at in range(0, len(data), step) for event in decoder.feed(data[at : at + step])
    ]
    return joined(events), decoder.is_complete


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("step", [1, 7, 511, 512, 513, 1 << 20])
def test_every_cut_gives_the_same_members(tar_format: int, step: int) -> None:
    events, is_complete = decode(archive(tar_format) + b"whatever follows", step)
    assert is_complete
    members = [event for event in events if isinstance(event, Member)]
    assert [(member.name, member.kind, member.size_bytes) for member in members] == [
        (b"short", "file", 513),
        (b"long/" * 60 + b"name", "file", 7),
        (b"empty", "file", 0),
        (b"b" * 99, "file", 1024),
        (b"link", "symlink", 0),
    ]
    assert members[-1].target == b"target/" * 40
    assert [event for event in events if isinstance(event, bytes)] == [
        b"x" * 513,
        b"content",
        b"y" * 1024,
    ]
    assert sum(isinstance(event, MemberEnd) for event in events) == 5


def test_an_archive_without_its_end_mark_is_not_complete() -> None:
    whole = archive(tarfile.PAX_FORMAT)
    assert not decode(whole[:5000], 512)[1]


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
        TarDecoder().feed(data)


@given(st.lists(st.binary(max_size=2000)), st.integers(0, 3000), st.binary(min_size=1, max_size=3))
def test_any_bytes_are_events_or_the_one_declared_error(
    chunks: list[bytes], at: int, damage: bytes
) -> None:
    damaged = bytearray(archive(tarfile.PAX_FORMAT))
    damaged[at : at + len(damage)] = damage
    for pieces in (chunks, [bytes(damaged)]):
        decoder = TarDecoder()
        try:
            for piece in pieces:
                decoder.feed(piece)
        except InvalidArgument:
            pass


def test_the_rest_of_a_chunk_is_not_copied_for_every_header() -> None:
    content = bytes(100 * 1024)
    chunk = header(tarfile.REGTYPE, len(content), content) * 100
    decoder = TarDecoder()
    tracemalloc.start()
    try:
        n_events = len(decoder.feed(chunk))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert n_events == 300
    assert peak_bytes < 1.5 * len(chunk), "the contents, and no copy of the chunk besides"


def test_the_label_of_a_volume_is_passed_over() -> None:
    label, file = header(b"V", 0, b""), header(tarfile.REGTYPE, 3, b"abc")
    events, _ = decode(label + file, 100)
    assert [type(event) for event in joined(events)] == [Member, bytes, MemberEnd]
